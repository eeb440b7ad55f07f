"""The passes of the GPU kernels over their tiles: forward, and backward; how they are launched.

Letters are those of `engine`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from pe_jax.encodings import terms as kinds
from pe_jax.engines.kernels import common
from pe_jax.engines.kernels.gpu import kernels, operands, pieces, tiles
from pe_jax.engines.kernels.gpu.operands import LOG2E, Arrays, Plan
from pe_jax.engines.reference import LOWEST

KERNELS = {  # by their names in `Launches`; each is called with plan, x, blanks and *outs
    "forward": kernels.forward_kernel,
    "queries": functools.partial(kernels.backward_kernel, by_keys=False),
    "keys": functools.partial(kernels.backward_kernel, by_keys=True),
    "diagonal": kernels.diagonal_kernel,
}


def _forward(plan: Plan, x: Arrays):
    """Output [B, H, T, F], logarithms of rows' sums [B, H, T], weights by distance [B, H, T, n].

    The weights are None unless the plan wants them. Also returns what the backward pass reads.
    """
    length, width = x.q.shape[2], x.v.shape[3]
    entries = _by_distance(plan, x, length, -jnp.inf) if plan.values else None
    outs = entries, _by_block(plan, x), _shape(x, length, width), _shape(x, length)
    entries, carried, out, lse = _launch(plan, "forward", x, outs)
    out, lse, entries = (checkpoint_name(array, common.SAVED) for array in (out, lse, entries))
    weights = jnp.exp2(entries - lse[..., None]) if plan.values else None
    # From the kernel's base 2, in which a row that sees nothing has -LOWEST.
    natural = jnp.where(lse >= -LOWEST, LOWEST, lse / LOG2E)
    return (out, natural, weights), (x._replace(carried=carried), out, lse, weights)


def _backward(plan: Plan, saved: tuple, learned: dict, cotangents: tuple) -> Arrays:
    """Gradients: a pass over tiles for queries, one for keys, one for tables without a horizon."""
    (x, out, lse, weights), (d_out, d_lse, d_weights) = saved, cotangents
    delta = (d_out * out).sum(-1)
    if plan.values:
        delta = delta + (d_weights * weights).sum(-1)
    of_query = x.of_query._replace(lse=lse, delta=delta - d_lse)
    x = x._replace(of_query=of_query, d_out=d_out.astype(x.v.dtype), d_weights=d_weights)
    (queries, keys), entries = (side.shape[2] for side in (x.q, x.k)), None
    coefficients = bias = columns = None
    if "rows" in learned or ("table" in learned and plan.far):
        entries = _by_distance(plan, x, queries, 0.0)
    if "coefficients" in learned:
        coefficients = _shape(x, x.coefficients.shape[2], queries)
    if "bias" in learned:
        bias = jnp.zeros((*x.q.shape[:2], queries, keys), jnp.float32)
    if "columns" in learned:
        columns = _by_distance(plan, x, keys, 0.0)
    q_numbers, k_numbers = (
        _shape(x, *getattr(x, name).shape[2:]) if name in learned else None
        for name in ("q_numbers", "k_numbers")
    )
    left, right, sum_numbers = (
        _shape(x, *getattr(x, name).shape[2:]) if name in learned else None
        for name in ("left", "right", "sum_numbers")
    )
    of_q = _shape(x, *x.q.shape[2:], dtype=x.q.dtype)
    of_pieces = of_scale = None
    if {*kinds.Pieces._fields} & {*learned}:
        blocks = queries // plan.launches.queries.own
        of_pieces = _shape(x, blocks, pieces.SUMS, x.knots.shape[2])
        of_scale = _shape(x, 2, queries)
    outs = entries, _by_block(plan, x), of_q, None, coefficients, q_numbers, bias, left, sum_numbers
    results = _launch(plan, "queries", x, (*outs, of_pieces, of_scale))
    d_rows, pending, d_q, _, d_coefficients, q_numbers, d_bias, left, sum_numbers, *bent = results
    x = x._replace(pending=pending)
    shared = x.k.shape[1] < x.q.shape[1]
    dtype = jnp.float32 if shared else x.k.dtype  # to be added up over heads
    of_k, of_v = (_shape(x, *side.shape[2:], dtype=dtype) for side in (x.k, x.v))
    outs = columns, None, of_k, of_v, None, k_numbers, None, right, None, None, None
    d_columns, _, d_k, d_v, _, k_numbers, _, right, *_ = _launch(plan, "keys", x, outs)
    grads = Arrays(q=d_q, k=d_k, v=d_v, columns=d_columns, bias=d_bias)
    grads = grads._replace(q_numbers=q_numbers, k_numbers=k_numbers)
    grads = grads._replace(left=left, right=right, sum_numbers=sum_numbers)
    if of_pieces is not None:
        grads = grads._replace(**pieces.gradients(x, *bent))
    if "coefficients" in learned:
        grads = grads._replace(coefficients=d_coefficients.sum(3))
    if "rows" in learned:
        grads = grads._replace(rows=d_rows)
    if "table" in learned:
        grads = grads._replace(table=d_rows.sum(2) if plan.far else _of_diagonals(plan, x))
    return Arrays(*map(common.sum_shared, grads, x))


def _of_diagonals(plan: Plan, x: Arrays) -> jax.Array:
    """The gradient of a table from the sums of the block diagonals: [1, H, n]."""
    size, (low, high) = plan.launches.diagonal.own, plan.span
    queries, keys = x.q.shape[2], x.k.shape[2]
    count = (queries + keys) // size - 1
    (sums,) = _launch(plan, "diagonal", x, (_shape(x, count, size, size),), count)
    sums = sums.sum(0)
    # With its columns flipped and each row begun one later than the last, a tile has one column per
    # distance, the least first; neighbouring diagonals then overlap by half.
    wide = jnp.pad(sums[..., ::-1], [(0, 0)] * 3 + [(0, size)])
    wide = wide.reshape(*sums.shape[:2], -1)[..., :-size].reshape(*sums.shape[:2], size, -1)
    lower, upper = jnp.split(jnp.pad(wide.sum(2), [(0, 0), (0, 0), (0, 1)]), 2, axis=-1)
    line = jnp.pad(lower, [(0, 0), (0, 1), (0, 0)]) + jnp.pad(upper, [(0, 0), (1, 0), (0, 0)])
    line = line.reshape(len(line), -1)  # from distance 1 - S on
    begin, end = low + keys - 1, high + keys
    inside = line[:, begin:end].at[:, 0].add(line[:, :begin].sum(1))
    return inside.at[:, -1].add(line[:, end:].sum(1))[None]


def _shape(x: Arrays, *rest: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*x.q.shape[:2], *rest), dtype)  # [B, H, …]


def _by_distance(plan: Plan, x: Arrays, tokens: int, fill: float) -> jax.Array:
    return jnp.full((*x.q.shape[:2], tokens, plan.distances), fill, jnp.float32)


def _by_block(plan: Plan, x: Arrays) -> jax.Array | None:
    """Zeros for each query and block of keys; None: no term sums along rows."""
    if plan.sums is None:
        return None
    blocks = x.k.shape[2] // plan.sums.block
    return jnp.zeros((*x.q.shape[:3], blocks), jnp.float32)


attention = common.differentiable(_forward, _backward)


def _launch(plan: Plan, name: str, x: Arrays, outs: tuple, blocks: int = 0) -> tuple:
    """The `outs` that a kernel writes, by its name in `KERNELS`; entries by distance come first.

    One program per block, head and batch row; by default the blocks are those of the side that
    programs own. An out is given by its shape, as an array that keeps the entries that are not
    stored, or as None if it is not wanted.
    """
    batch, heads = x.q.shape[:2]
    plan = dataclasses.replace(plan, launch=getattr(plan.launches, name))
    if not blocks:
        by_keys = name == "keys"
        blocks = (x.k if by_keys else x.q).shape[2] // plan.sizes[0]
        x = operands.find_bounds(plan, x, by_keys)

    def block_spec(array):
        b, h, *rest = array.shape

        def index(i, j, k):
            return jax.lax.div(k, batch // b), jax.lax.div(j, heads // h), *[0] * len(rest)

        return pl.BlockSpec((None, None, *rest), index)

    wanted = [out for out in outs if out is not None]
    aliased = [n for n, out in enumerate(wanted) if isinstance(out, jax.Array)]
    blanks, inputs = [wanted[n] for n in aliased], len(jax.tree.leaves(x))
    outs = jax.tree.map(lambda out: jax.ShapeDtypeStruct(out.shape, out.dtype), outs)
    warps, stages = plan.launch[2:]
    backend = tiles.triton and tiles.triton.CompilerParams(num_warps=warps, num_stages=stages)
    call = pl.pallas_call(
        functools.partial(KERNELS[name], plan),
        grid=(blocks, heads, batch),
        in_specs=jax.tree.map(block_spec, (x, blanks)),
        out_specs=jax.tree.map(block_spec, outs),
        out_shape=outs,
        input_output_aliases={inputs + i: n for i, n in enumerate(aliased)},
        compiler_params=backend,
        interpret=plan.interpret,
    )
    return run(plan, name, call, (x, blanks))


def run(plan: Plan, name: str, call: Callable, args: tuple) -> Any:
    """The call's result, by Triton itself where it is installed, else by JAX's copy of it."""
    if plan.interpret or (triton := triton_route()) is None:
        return call(*args)
    return triton.run(call, args, name, plan.launch, plan.arch)


def triton_route() -> Any:
    """The module that compiles by Triton itself; None where it is not installed."""
    from pe_jax.engines.kernels.gpu import triton_call

    return triton_call if triton_call.available() else None
