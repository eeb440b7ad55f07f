"""Eigenvectors and triangular systems of many matrices, which on a CPU LAPACK takes one by one.

Given a batch, jaxlib's calls of LAPACK leave the matrices to XLA's threads and wait for them on one
of these (`ParallelBatchMap`, jaxlib 0.10.2). With as many calls at a time as there are threads, all
of them wait for ever: on two cores, the two systems in the gradient of one, or the eigenvectors of
two layers. A call with one matrix does not wait. Devices that share a batch each do all of it then;
on a mesh of Explicit axes a call keeps its batch. n any shape.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from pe_jax.numerics.arrays import align, varying_like
from pe_jax.numerics.products import matmul


def eigh(hermitian: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues [*n, b], rising, and eigenvectors [*n, b, b] of Hermitian matrices [*n, b, b]."""
    return _one_by_one(functools.partial(jnp.linalg.eigh, symmetrize_input=False), hermitian)


def solve_unit_lower(lower: jax.Array, right: jax.Array) -> jax.Array:
    """X [*n, T, S] of (I + L) X = R: `lower` [*n, T, T] is L, 0 on and above the diagonal.

    The derivative solves one further system, where that of JAX's `solve_triangular` solves two.
    """
    system = functools.partial(
        jax.lax.linalg.triangular_solve, left_side=True, lower=True, unit_diagonal=True
    )
    transposed = functools.partial(system, transpose_a=True)
    return jax.lax.custom_linear_solve(
        lambda x: x + matmul(lower, x),
        right,
        lambda _, right: _one_by_one(system, lower, right),
        lambda _, right: _one_by_one(transposed, lower, right),
    )


@jax.custom_jvp
def inverse_unit_lower(lower: jax.Array) -> jax.Array:
    """(I + L)⁻¹ [*n, b, b]: `lower` is L, 0 on and above the diagonal. By products, not LAPACK."""
    size, batch = lower.shape[-1], lower.shape[:-2]
    widths = [(0, 0)] * len(batch) + [(0, -size % BLOCK)] * 2
    lower = jnp.pad(lower, widths)
    unit = align(jnp.eye(lower.shape[-1], dtype=lower.dtype), lower)
    unit = jnp.broadcast_to(unit, lower.shape)

    def rows(i, inverse):
        """Rows of the inverse from those above: B⁻¹ (I - L X), B on the diagonal."""
        own, ones = (jax.lax.dynamic_slice_in_dim(x, i, BLOCK, -2) for x in (lower, unit))
        block = jax.lax.dynamic_slice_in_dim(own, i, BLOCK, -1)
        right = matmul(_inverse_of_block(block), ones - matmul(own, inverse))
        return jax.lax.dynamic_update_slice_in_dim(inverse, right, i, -2)

    count, start = lower.shape[-1] // BLOCK, varying_like(jnp.zeros_like(lower), lower)
    inverse = jax.lax.fori_loop(0, count, lambda n, x: rows(n * BLOCK, x), start)
    return inverse[..., :size, :size]


BLOCK = 8  # rows


def _inverse_of_block(lower: jax.Array) -> jax.Array:
    """The inverse for BLOCK rows, from those of its parts on the diagonal, of 2 and 4 rows.

    Where rows are alike (tokens that repeat) powers of L are far larger than the inverse, and what
    a sum of them rounds off would be left: 1e-3 of it.
    """
    index = jnp.arange(BLOCK, dtype=jnp.int32)
    differ = align(index[:, None] ^ index[None], lower)
    inverse = align(jnp.eye(BLOCK, dtype=lower.dtype), lower) - jnp.where(differ == 1, lower, 0)
    for rows in (2, 4):  # two neighbours of so many rows differ in that bit first
        between = jnp.where(differ // rows == 1, lower, 0)
        inverse = inverse - matmul(inverse, matmul(between, inverse))
    return inverse


@inverse_unit_lower.defjvp
def _(primals, tangents):
    inverse = inverse_unit_lower(*primals)
    return inverse, -matmul(inverse, matmul(tangents[0], inverse))


def _one_by_one(f: Callable, *matrices: jax.Array) -> Any:
    """f of matrices [*n, b, c] → arrays [*n, …]; under `vmap` too."""
    call = jax.custom_batching.custom_vmap(functools.partial(_on_any_device, f))

    @call.def_vmap
    def batched(size, is_batched, *matrices):
        each = zip(matrices, is_batched, strict=True)
        out = call(*(x if its else jnp.broadcast_to(x, (size, *x.shape)) for x, its in each))
        return out, jax.tree.map(lambda _: True, out)

    return call(*matrices)


def _on_any_device(f: Callable, *matrices: jax.Array) -> Any:
    meshes = (jax.typeof(x).sharding.mesh for x in matrices)  # in force or not
    if any(AxisType.Explicit in mesh.axis_types for mesh in meshes):
        return f(*matrices)  # turns would merge axes that devices share, which these do not allow
    return jax.lax.platform_dependent(*matrices, cpu=functools.partial(_in_turn, f), default=f)


def _in_turn(f: Callable, *matrices: jax.Array) -> Any:
    batch = matrices[0].shape[:-2]
    flat = tuple(x.reshape(math.prod(batch), *x.shape[-2:]) for x in matrices)
    out = jax.lax.map(lambda each: f(*each), flat)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), out)
