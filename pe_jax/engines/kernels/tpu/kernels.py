"""The TPU kernels: one forward, two backward (queries; keys and values).

A kernel takes references: where blocks are, what it reads, what it writes, and `kept`, float32
memory that lasts from tile to tile. The last grid axis runs over the tiles that add up to one block
of the results. A tile itself is in `tiles`; grids and operands come from `passes`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.engines.kernels.tpu import tiles
from pe_jax.engines.kernels.tpu.plan import OF_HEADS, Arrays, Plan, Schedule, Tile
from pe_jax.engines.kernels.tpu.shear import dot, repeat_columns
from pe_jax.engines.kernels.tpu.tiles import scores
from pe_jax.engines.reference import LOWEST

FLOOR = -1e29  # where row maxima begin, above masked scores: exp(LOWEST - FLOOR) is 0


def forward_kernel(
    plan: Plan, schedule: Schedule, x: Arrays, result: Arrays, kept: Arrays, top, total
) -> None:
    """`out` and `lse`: online softmax over key blocks. `top` and `total` have equal columns."""
    h, b, i, step = (pl.program_id(axis) for axis in range(4))
    first, last = schedule.bounds(b, h, i)
    fill(step == 0, 0, kept.out, total)
    fill(step == 0, FLOOR, top)

    def visit(tile: Tile):
        s, rest, _ = scores(plan, x, tile)
        new_top = jnp.maximum(top[...], s.max(1, keepdims=True) + rest)
        p = jnp.exp(s - repeat_columns(new_top - rest, plan.block))
        fade, v = jnp.exp(top[...] - new_top), x.v[...]
        more = dot(p.astype(v.dtype), v, 0)
        if x.value_vectors is not None:
            more += tiles.own_gradient(plan, x.value_vectors, p, tile.easy)
        kept.out[...] = kept.out[...] * repeat_columns(fade, v.shape[1]) + more
        total[...] = total[...] * fade + p.sum(1, keepdims=True)
        top[...] = new_top

    of_each_kind(plan, schedule, i, first + step, first + step <= last, visit)

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        empty = total[...] == 0  # a row that sees nothing: zeros, and its weights vanish again
        safe = jnp.where(empty, 1, total[...])
        rows = kept.out[...] * repeat_columns(1 / safe, kept.out.shape[1])
        result.out[...] = rows.astype(result.out.dtype)
        result.lse[...] = jnp.where(empty, -LOWEST, top[...] + jnp.log(safe)).T[:1]


def queries_kernel(plan: Plan, schedule: Schedule, x: Arrays, grads: Arrays, kept: Arrays) -> None:
    """Gradients of a block of queries, and of heads' parameters, which stay for all their tiles.

    The gradient of a tile's bias is stored at once; tiles that are not visited get zeros.
    """
    h, b, i, step = (pl.program_id(axis) for axis in range(4))
    first, last = schedule.bounds(b, h, i)
    fill(step == 0, 0, kept.q, kept.rows, kept.q_numbers)
    of_head = [getattr(grads, name) for name in OF_HEADS]
    fill((b == 0) & (i == 0) & (step == 0), 0, *of_head)
    fill(first + step > last, 0, grads.bias)

    def visit(tile: Tile):
        of_scores, k = tiles.gradient(plan, x, tile), x.k[...]
        d_s = of_scores.d_s
        kept.q[...] += dot(d_s.astype(k.dtype), k, 0)
        if kept.rows is not None:
            kept.rows[...] += tiles.own_gradient(plan, x.row_vectors, d_s, tile.easy)
        if kept.q_numbers is not None:
            tiles.add_number_gradients(plan, x, tile, kept.q_numbers, d_s)
        if grads.coefficients is not None:
            for c, part in enumerate(jax.vjp(*tiles.formula_of(plan, x, tile))[1](d_s)[0]):
                grads.coefficients[c] += part
        if grads.bias is not None:
            grads.bias[...] = d_s
        if plan.by_distance:
            tiles.add_by_distance(plan, x, grads, tile, of_scores)

    of_each_kind(plan, schedule, i, first + step, first + step <= last, visit)

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        grads.q[...] = (kept.q[...] * plan.scale).astype(grads.q.dtype)
        if kept.rows is not None:
            grads.rows[...] = kept.rows[...].astype(grads.rows.dtype)
        store_numbers(grads.q_numbers, kept.q_numbers)


def keys_kernel(plan: Plan, schedule: Schedule, x: Arrays, grads: Arrays, kept: Arrays) -> None:
    """Gradients of a block of keys and values, from all query heads that read it."""
    b, kv, j, group, step = (pl.program_id(axis) for axis in range(5))
    groups, steps = pl.num_programs(3), pl.num_programs(4)
    first, last = schedule.bounds(b, kv * groups + group, j)
    fill((group == 0) & (step == 0), 0, kept.k, kept.v, kept.columns)
    fill(step == 0, 0, kept.k_numbers)

    def visit(tile: Tile):
        s, rest, slope = scores(plan, x, tile)
        p = jnp.exp(s - (x.lse[...] - rest))
        d_out, q = x.d_out[...], x.q[...]
        kept.v[...] += dot(p.astype(d_out.dtype), d_out, 0)
        d_p = dot(x.v[...], d_out, 1) - x.inner[...]
        d_s = p * tiles.with_value_vectors(plan, x, tile, d_p)
        d_s = d_s if slope is None else d_s * slope
        kept.k[...] += dot(d_s.astype(q.dtype), q, 0)
        if kept.columns is not None:
            kept.columns[...] += tiles.own_gradient(plan, x.column_vectors, d_s, tile.easy)
        if kept.k_numbers is not None:
            tiles.add_number_gradients(plan, x, tile, kept.k_numbers, d_s)

    of_each_kind(plan, schedule, first + step, j, first + step <= last, visit, transposed=True)

    @pl.when(step == steps - 1)
    def _():
        store_numbers(grads.k_numbers, kept.k_numbers)

    @pl.when((group == groups - 1) & (step == steps - 1))
    def _():
        grads.k[...] = (kept.k[...] * plan.scale).astype(grads.k.dtype)
        grads.v[...] = kept.v[...].astype(grads.v.dtype)
        if kept.columns is not None:
            grads.columns[...] = kept.columns[...].astype(grads.columns.dtype)


def of_each_kind(
    plan: Plan, schedule: Schedule, i, j, inside, visit: Callable[[Tile], None], transposed=False
) -> None:
    """Runs `visit(tile)` on tile (i, j) if it is `inside`; easy ones by separate programs."""
    last_i, last_j = (n.shape[0] - 1 for n in (schedule.q_first, schedule.k_first))
    i, j = jnp.minimum(i, last_i), jnp.minimum(j, last_j)  # tiles outside are read too
    gap, k_first = schedule.gap(i, j), schedule.k_first[j]

    def program(when, easy):
        pl.when(when)(lambda: visit(Tile(gap, k_first, easy, transposed)))

    easy = plan.easy(gap, k_first)
    if isinstance(easy, bool):
        program(inside, easy)
    else:
        program(inside & easy, True)
        program(inside & jnp.logical_not(easy), False)


def fill(when, value: float, *refs) -> None:
    """Sets all entries to a value."""

    @pl.when(when)
    def _():
        for ref in refs:
            if ref is not None:
                ref[...] = jnp.full_like(ref, value)


def store_numbers(ref: Any, kept: Any) -> None:
    """Stores the gradients of numbers [C, block], kept one per lane, if they are wanted."""
    if ref is not None:
        ref[...] = kept[...].T[: ref.shape[0]]
