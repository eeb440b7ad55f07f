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

from pe_jax.numerics.arrays import align


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
        lambda x: x + jnp.matmul(lower, x, precision=jax.lax.Precision.HIGHEST),
        right,
        lambda _, right: _one_by_one(system, lower, right),
        lambda _, right: _one_by_one(transposed, lower, right),
    )


@jax.custom_jvp
def inverse_unit_lower(lower: jax.Array) -> jax.Array:
    """(I + L)⁻¹ [*n, b, b]: `lower` is L, 0 on and above the diagonal. By products, not LAPACK."""
    size, padded = lower.shape[-1], FEW_ROWS
    while padded < size:
        padded *= 2
    widths = [(0, 0)] * (lower.ndim - 2) + [(0, padded - size)] * 2
    return _inverse_by_halves(jnp.pad(lower, widths))[..., :size, :size]


@inverse_unit_lower.defjvp
def _(primals, tangents):
    inverse = inverse_unit_lower(*primals)
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    return inverse, -product(inverse, product(tangents[0], inverse))


FEW_ROWS = 8  # so that L⁸ = 0


def _inverse_by_halves(lower: jax.Array) -> jax.Array:
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    size = lower.shape[-1]
    if size == FEW_ROWS:  # (I - L)(I + L²)(I + L⁴)
        square = product(lower, lower)
        inverse = align(jnp.eye(size, dtype=lower.dtype), lower) - lower
        inverse = inverse + product(square, inverse)
        return inverse + product(product(square, square), inverse)
    half = size // 2
    first, last = lower[..., :half, :half], lower[..., half:, half:]
    first, last = _inverse_by_halves(jnp.stack([first, last]))
    below = -product(product(last, lower[..., half:, :half]), first)
    first = jnp.concatenate([first, jnp.zeros_like(first)], -1)
    return jnp.concatenate([first, jnp.concatenate([below, last], -1)], -2)


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
