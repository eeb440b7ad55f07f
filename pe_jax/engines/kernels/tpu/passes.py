"""The passes of the TPU kernels: grids, how arrays are cut into blocks, and costs.

One kernel forward, two backward, each over a grid of the tiles that the mask leaves and each
computing its tiles anew. Gradients of what heads learn add up in the order of the grid, which a TPU
runs in sequence: no atomics, the same bits each time. Letters are those of `plan`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pe_jax.engines.kernels.tpu import kernels, operands
from pe_jax.engines.kernels.tpu.plan import BY_DISTANCE, OF_HEADS, VECTORS, Arrays, Plan, Schedule

OF_QUERIES = ("q", "q_numbers", "rows", "q_ids", "out", "lse", "d_out", "inner")
OF_KEYS = ("k", "v", "k_numbers", "columns", "k_ids")
WIDE = ("q", "k", "v", "rows", "columns", "out", "d_out")  # tokens along the axis before the last
PRODUCTS = {  # how many of each width a kernel computes, gradients of vectors included
    kernels.forward_kernel: dict(zip(("q", "v", *VECTORS), (1, 1, 1, 1, 1), strict=True)),
    kernels.queries_kernel: dict(zip(("q", "v", *VECTORS), (2, 1, 3, 2, 2), strict=True)),
    kernels.keys_kernel: dict(zip(("q", "v", *VECTORS), (2, 2, 1, 2, 1), strict=True)),
}
LARGE = (*VECTORS, "bias")  # a kernel that reads one of these has …
VMEM = 64 * 2**20  # … bytes of memory; others have 16 MiB


def forward(plan: Plan, x: Arrays, dtype: Any) -> Arrays:
    """`out` in a dtype, and `lse`; -LOWEST for a row that sees nothing."""
    schedule = operands.make_schedule(plan, x, by_keys=False)
    (batch, heads, tokens, _), value = x.q.shape, x.v.shape[3]
    outs = Arrays(
        out=jax.ShapeDtypeStruct((batch, heads, tokens, value), dtype),
        lse=jax.ShapeDtypeStruct((batch, heads, 1, tokens), jnp.float32),
    )
    return _launch(plan, kernels.forward_kernel, schedule, x, outs, Arrays(out=value))


def backward(plan: Plan, x: Arrays, results: tuple, cotangents: tuple, learned: Any) -> Arrays:
    """Gradients of q, k, v and what is `learned`.

    `results` are `out` and `lse`, `cotangents` theirs: of the output [B, H, T, F], of the
    logarithms of rows' sums [B, H, T, 1].
    """
    (out, lse), (d_out, d_lse) = results, cotangents
    d_out = d_out.astype(x.v.dtype)
    inner = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)[:, :, None]
    of_queries, of_keys = (operands.make_schedule(plan, x, by_keys) for by_keys in (False, True))
    x = x._replace(d_out=d_out, lse=lse, inner=inner - jnp.swapaxes(d_lse, 2, 3))
    wanted = (n for n in ("q_numbers", "rows", "bias", *OF_HEADS) if n in learned)
    d_q = _shapes(x, "q", *wanted)
    of_q = _launch(plan, kernels.queries_kernel, of_queries, x, d_q, _kept(plan, d_q))
    if x.bands is not None:  # for keys, distances run backwards
        x = x._replace(bands=jnp.roll(x.bands[..., ::-1], -1, axis=-1))
    d_k = _shapes(x, "k", "v", *(n for n in ("k_numbers", "columns") if n in learned))
    of_k = _launch(plan, kernels.keys_kernel, of_keys, x, d_k, _kept(plan, d_k))
    return Arrays(*(a if b is None else b for a, b in zip(of_q, of_k, strict=True)))


def _shapes(x: Arrays, *names: str) -> Arrays:
    """Shapes of gradients: float32 for heads' parameters; those of tokens for each batch row.

    That of a bias of pairs is for each batch row and head.
    """
    shapes = {}
    for name in names:
        array = getattr(x, name)
        shape = array.shape if name in OF_HEADS else (len(x.q), *array.shape[1:])
        if name == "bias":
            shape = (len(array), *x.q.shape[:2], *array.shape[3:])
        kind = jnp.float32 if name in OF_HEADS else array.dtype
        shapes[name] = jax.ShapeDtypeStruct(shape, kind)
    return Arrays(**shapes)


def _kept(plan: Plan, outs: Arrays) -> Arrays:
    """Widths of the float32 sums of tokens' gradients; numbers have one lane each."""
    named, elsewhere = zip(Arrays._fields, outs, strict=True), (*OF_HEADS, "bias")
    widths = {n: a.shape[-1] for n, a in named if a is not None and n not in elsewhere}
    return Arrays(**{n: width if n in WIDE else plan.lanes for n, width in widths.items()})


def _launch(
    plan: Plan, kernel: Callable, schedule: Schedule, x: Arrays, outs: Arrays, kept: Arrays
):
    """Runs `kernel(plan, schedule, x, outs, kept, …)`; `outs` are given as shapes.

    `kept` are widths of the arrays that last from tile to tile, [block, width] each.
    """
    x = x._replace(q_first=None, k_first=None)  # which are in the schedule
    grid, at, store = _grid(plan, kernel, x)
    of_x, of_outs = _specs(plan, x, x, at), _specs(plan, x, outs, store)

    def memory(width):
        return pltpu.VMEM((plan.block, width), jnp.float32)

    scratch: list[Any] = [jax.tree.map(memory, kept)]
    if kernel is kernels.forward_kernel:  # row maxima and sums
        scratch += [memory(plan.lanes)] * 2
    large = any(getattr(x, name) is not None for name in LARGE)
    (result,) = pl.pallas_call(
        functools.partial(kernel, plan),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[of_x],
            out_specs=[of_outs],
            scratch_shapes=scratch,
        ),
        out_shape=[outs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) + ("arbitrary",) * (len(grid) - 1),
            vmem_limit_bytes=VMEM if large else None,
        ),
        cost_estimate=_cost(plan, kernel, x, of_x, outs),
        interpret=plan.interpret,
    )(schedule, x)
    return result


def _grid(plan: Plan, kernel: Callable, x: Arrays):
    """The grid; (schedule, batch, head, i, j) of a point in it, for reads and for stores.

    A tile outside the mask fetches no blocks.
    """
    batch, heads, tokens, _ = x.q.shape
    kv_heads, keys = x.k.shape[1:3]
    groups = heads // kv_heads

    def other(schedule: Schedule, b, h, own, step):
        first, last = schedule.bounds(b, h, own)
        return jnp.maximum(jnp.minimum(first + step, last), 0)

    def along_keys(h, b, i, step, schedule):
        return schedule, b, h, i, other(schedule, b, h, i, step)

    def along_queries(b, kv, j, group, step, schedule):
        h = kv * groups + group
        return schedule, b, h, other(schedule, b, h, j, step), j

    def along_all_keys(h, b, i, step, schedule):
        first, _ = schedule.bounds(b, h, i)
        return schedule, b, h, i, jax.lax.rem(first + step, plan.steps[0])

    if kernel is kernels.keys_kernel:
        grid = batch, kv_heads, keys // plan.block, groups, plan.steps[1]
        return grid, along_queries, along_queries
    grid = heads, batch, tokens // plan.block, plan.steps[0]
    return grid, along_keys, along_keys if x.bias is None else along_all_keys


def _specs(plan: Plan, x: Arrays, arrays: Arrays, at: Callable) -> Arrays:
    """The blocks of arrays: of those that a kernel reads, which are x, or writes."""
    read = arrays is x

    def of_pairs(array):
        _, rows, heads, _, chunk = array.shape
        blocks = chunk // plan.block

        def index(*grid):
            _, b, h, i, j = at(*grid)
            row = b if rows > 1 else 0, h if heads > 1 else 0, i
            return jax.lax.div(j, blocks), *row, jax.lax.rem(j, blocks)

        return pl.BlockSpec((None, None, None, plan.block, plan.block), index)

    def of_head(name, array):
        band = read and name in BY_DISTANCE
        lead = 2 if band else 1

        def index(*grid):
            schedule, _, h, i, j = at(*grid)
            lead_index = (h, plan.band(schedule.gap(i, j))) if band else (h,)
            return (*lead_index, *(0,) * (array.ndim - lead))

        return pl.BlockSpec((*(None,) * lead, *array.shape[lead:]), index)

    def of_tokens(name, array):
        of_keys, along_lanes = name in OF_KEYS, name not in WIDE
        lead, (*_, rows, columns) = (None,) * (array.ndim - 2), array.shape

        def index(*grid):
            _, b, h, i, j = at(*grid)
            block = j if of_keys else i
            row = 0 if len(array) == 1 else b  # the batch may share an array
            head = () if array.ndim == 3 else (jax.lax.div(h, x.q.shape[1] // array.shape[1]),)
            return (row, *head, 0, block) if along_lanes else (row, *head, block, 0)

        size = (rows, plan.block) if along_lanes else (plan.block, columns)
        return pl.BlockSpec((*lead, *size), index)

    def block_spec(name, array):
        if name == "bias":
            return of_pairs(array)
        of_array = of_tokens if name in (*OF_QUERIES, *OF_KEYS) else of_head
        return of_array(name, array)

    named = zip(Arrays._fields, arrays, strict=True)
    return Arrays(**{name: block_spec(name, a) for name, a in named if a is not None})


def _cost(plan: Plan, kernel: Callable, x: Arrays, specs: Arrays, outs: Arrays):
    """The cost of visited tiles: products, one exponential per pair (two with a cap), bytes moved.

    Negligible tiles, which may be left out, count as well.
    """
    tiles, near = math.prod(x.q.shape[:2]) * plan.tiles, plan.near / plan.tiles
    flops, powers = 0.0, 1 + (plan.cap is not None)
    for name, count in PRODUCTS[kernel].items():
        if (array := getattr(x, name)) is not None:
            # A near tile multiplies windows, a far one a register of columns.
            share = near + plan.lanes / plan.block if name in VECTORS else 1
            flops += 2 * count * share * array.shape[-1]
    visited = OF_QUERIES if kernel is kernels.keys_kernel else OF_KEYS
    in_each_tile = (*visited, "coefficients", "bias", *BY_DISTANCE)
    moved = sum(out.dtype.itemsize * out.size for out in outs if out is not None)
    for name, array, spec in zip(x._fields, x, specs, strict=True):
        if array is not None:
            per_tile = name in in_each_tile
            block = math.prod(n for n in spec.block_shape if n)
            count = tiles * block if per_tile else array.size
            moved += array.dtype.itemsize * count * (near if name in VECTORS else 1)
    pairs = tiles * plan.block**2
    flops, powers, moved = round(pairs * flops), round(pairs * powers), round(moved)
    return pl.CostEstimate(flops=flops, transcendentals=powers, bytes_accessed=moved)
