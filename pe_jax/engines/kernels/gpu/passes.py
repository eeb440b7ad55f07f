"""The passes of the GPU kernels over their tiles: forward, and backward; how they are launched.

Letters are those of `engine`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from pe_jax.encodings import terms as kinds
from pe_jax.engines.kernels import common
from pe_jax.engines.kernels.gpu import kernels, operands, pieces, tiles
from pe_jax.engines.kernels.gpu.operands import LOG2E, Arrays, Outs, Plan
from pe_jax.engines.reference import LOWEST

KERNELS = {  # by their names in `Launches`; each is called with plan, x, blanks and `Outs`
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
    wanted = Outs(
        entries=_by_distance(plan, x, length, -jnp.inf) if plan.values else None,
        carried=_by_block(plan, x),
        out=_shape(x, length, width),
        lse=_shape(x, length),
    )
    found = _launch(plan, "forward", x, wanted)
    out, lse, entries = (
        checkpoint_name(array, common.SAVED) for array in (found.out, found.lse, found.entries)
    )
    weights = jnp.exp2(entries - lse[..., None]) if plan.values else None
    # From the kernel's base 2, in which a row that sees nothing has -LOWEST.
    natural = jnp.where(lse >= -LOWEST, LOWEST, lse / LOG2E)
    return (out, natural, weights), (x._replace(carried=found.carried), out, lse, weights)


def _backward(plan: Plan, saved: tuple, learned: dict, cotangents: tuple) -> Arrays:
    """Gradients: a pass over tiles for queries, one for keys, one for tables without a horizon."""
    (x, out, lse, weights), (d_out, d_lse, d_weights) = saved, cotangents
    delta = (d_out * out).sum(-1)
    if plan.values:
        delta = delta + (d_weights * weights).sum(-1)
    of_query = x.of_query._replace(lse=lse, delta=delta - d_lse)
    x = x._replace(of_query=of_query, d_out=d_out.astype(x.v.dtype), d_weights=d_weights)
    queries, keys = (side.shape[2] for side in (x.q, x.k))

    def like(name):  # [B, H, …] of an array that is learned
        return _shape(x, *getattr(x, name).shape[2:]) if name in learned else None

    wanted = Outs(
        pending=_by_block(plan, x),
        q=_shape(x, *x.q.shape[2:], dtype=x.q.dtype),
        q_numbers=like("q_numbers"),
        left=like("left"),
        sum_numbers=like("sum_numbers"),
    )
    if "rows" in learned or ("table" in learned and plan.far):
        wanted = wanted._replace(entries=_by_distance(plan, x, queries, 0.0))
    if "coefficients" in learned:
        wanted = wanted._replace(coefficients=_shape(x, x.coefficients.shape[2], queries))
    if "bias" in learned:
        bias = jnp.zeros((*x.q.shape[:2], queries, keys), jnp.float32)
        wanted = wanted._replace(bias=bias)
    if "near" in learned:
        wanted = wanted._replace(near=jnp.zeros_like(x.near))
    if "left" in learned and x.left.ndim == 5:
        wanted = wanted._replace(left=jnp.zeros_like(x.left))
    if {*kinds.Pieces._fields} & {*learned}:
        shape = queries // plan.launches.queries.own, pieces.SUMS, x.knots.shape[2]
        wanted = wanted._replace(pieces=_shape(x, *shape), scale=_shape(x, 2, queries))
    of_queries = _launch(plan, "queries", x, wanted)
    dtype = jnp.float32 if x.k.shape[1] < x.q.shape[1] else x.k.dtype  # to add up over heads
    of_k, of_v = (_shape(x, *side.shape[2:], dtype=dtype) for side in (x.k, x.v))
    columns = _by_distance(plan, x, keys, 0.0) if "columns" in learned else None
    numbers, right = like("k_numbers"), like("right")
    wanted = Outs(entries=columns, k=of_k, v=of_v, k_numbers=numbers, right=right)
    of_keys = _launch(plan, "keys", x._replace(pending=of_queries.pending), wanted)
    d_rows = of_queries.entries
    grads = Arrays(
        q=of_queries.q,
        k=of_keys.k,
        v=of_keys.v,
        columns=of_keys.entries,
        bias=of_queries.bias,
        q_numbers=of_queries.q_numbers,
        k_numbers=of_keys.k_numbers,
        near=of_queries.near,
        left=of_queries.left,
        right=of_keys.right,
        sum_numbers=of_queries.sum_numbers,
    )
    if of_queries.pieces is not None:
        grads = grads._replace(**pieces.gradients(x, of_queries.pieces, of_queries.scale))
    if "coefficients" in learned:
        grads = grads._replace(coefficients=of_queries.coefficients.sum(3))
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
    wanted = Outs(tiles=_shape(x, count, size, size))
    sums = _launch(plan, "diagonal", x, wanted, count).tiles.sum(0)
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


def _launch(plan: Plan, name: str, x: Arrays, outs: Outs, blocks: int = 0) -> Outs:
    """The `outs` that a kernel writes, by its name in `KERNELS`.

    One program per block, head and batch row; by default the blocks are those of the side that
    programs own. An out is given by its shape, as an array that keeps the entries that are not
    stored, or as None if it is not wanted.
    """
    batch, heads = x.q.shape[:2]
    plan = dataclasses.replace(plan, launch=getattr(plan.launches, name))
    if plan.chunk:  # float32 until here, for their gradients
        x = x._replace(left=x.left.astype(x.q.dtype), right=x.right.astype(x.k.dtype))
    if not blocks:
        by_keys = name == "keys"
        blocks = (x.k if by_keys else x.q).shape[2] // plan.sizes[0]
        x = operands.find_bounds(plan, x, by_keys)

    def block_spec(array):
        b, h, *rest = array.shape

        def index(i, j, k):
            shared = np.int32(batch // b), np.int32(heads // h)
            return jax.lax.div(k, shared[0]), jax.lax.div(j, shared[1]), *[0] * len(rest)

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
        out_specs=(jax.tree.map(block_spec, outs),),
        out_shape=(outs,),
        input_output_aliases={inputs + i: n for i, n in enumerate(aliased)},
        compiler_params=backend,
        interpret=plan.interpret,
    )
    return run(plan, name, call, (x, blanks))[0]


def run(plan: Plan, name: str, call: Callable, args: tuple) -> Any:
    """The call's result, by Triton itself where it is installed, else by JAX's copy of it."""
    if plan.interpret or (triton := triton_route()) is None:
        return call(*args)
    return triton.run(call, args, name, plan.launch, plan.arch)


def triton_route() -> Any:
    """The module that compiles by Triton itself; None where it is not installed."""
    from pe_jax.engines.kernels.gpu import triton_call

    return triton_call if triton_call.available() else None
