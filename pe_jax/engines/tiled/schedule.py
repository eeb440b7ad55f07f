"""Which tiles of a row are visited, in which order and how: stages, one loop after the other.

A tile without a visible pair is not visited; a tile whose pairs are all visible needs no mask.
Tiles near the diagonal, within the horizon of terms of distances, are compiled for their distances
if they are few; in a tile beyond the horizon each such term is one value. Where a term sums along
rows, all tiles are visited from the right.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Tokens
from pe_jax.engines.tiled.plan import Plan


class Stage(NamedTuple):
    """What is known of the tiles that one loop visits."""

    # the distance of a tile's first query and first key; None: it follows from its indices
    gap: int | None
    uniform: bool  # whether each term of distances is one value in it
    masked: bool  # whether the mask may hide a part of it


class Visit(NamedTuple):
    """For each row of tiles the block columns that a stage visits: the first `counts` of these."""

    columns: jax.Array  # int32 [q_blocks, n]
    counts: jax.Array  # int32 [q_blocks]


def stages(plan: Plan) -> tuple[Stage, ...]:
    """The loops of a row of tiles."""
    if plan.sums:
        return (Stage(None, uniform=False, masked=True),)
    near = tuple(
        Stage(gap, uniform=False, masked=plan.partial or (plan.spec.causal and gap < side - 1))
        for gap, side in ((gap, plan.grid.columns) for gap in plan.gaps)
    )
    if len(near) > 0 and plan.grid.k_blocks == 1:
        return near
    whole, partial = (Stage(None, plan.uniform, masked) for masked in (False, True))
    if not plan.one_by_one:
        near = tuple(Stage(None, uniform=False, masked=masked) for masked in (False, True))
    if plan.hides:
        return tuple(stage for stage in (partial, *near) if stage.masked)
    return (whole, partial, *near) if plan.partial or not near else (whole, *near)


def visits(plan: Plan, q: Tokens, k: Tokens, skip: Any = None) -> tuple[Visit, ...]:
    """The tiles of each stage; those in `skip` (bool [q_blocks, k_blocks]) are left out."""
    any_visible, all_visible = visible(plan, q, k)
    any_visible = any_visible if skip is None else any_visible & ~skip
    i = jnp.arange(plan.grid.q_blocks, dtype=jnp.int32)
    j = jnp.arange(plan.grid.k_blocks, dtype=jnp.int32)
    ahead = i[:, None] - j[None]
    if plan.passes_hidden:  # up to the diagonal, from the first one that is seen
        any_visible = (jnp.cumsum(any_visible, 1) > 0) & (ahead >= 0)
    near = jnp.isin(ahead, jnp.asarray(plan.gaps, jnp.int32) // plan.grid.rows)
    orders, all_stages = [], stages(plan)
    for stage in all_stages:
        if stage.gap is not None:
            n = stage.gap // plan.grid.rows
            count = (any_visible & (ahead == n)).any(1).astype(jnp.int32)
            orders.append(Visit((i - n)[:, None], count))
            continue
        chosen = any_visible & (~near if stage.uniform == plan.uniform else near)
        if stage._replace(masked=not stage.masked) in all_stages:
            chosen &= ~all_visible if stage.masked else all_visible
        if plan.sums:  # from the right
            columns = plan.grid.k_blocks - 1 - jnp.argsort(~chosen[:, ::-1], axis=1, stable=True)
        else:
            columns = jnp.argsort(~chosen, axis=1, stable=True)
        orders.append(Visit(columns.astype(jnp.int32), chosen.sum(1, dtype=jnp.int32)))
    return tuple(orders)


class Range(NamedTuple):
    """The smallest and the largest value in each block."""

    low: jax.Array
    high: jax.Array


def _ranges(q: jax.Array, k: jax.Array, plan: Plan) -> tuple[Range, Range]:
    """Ranges of values [B or 1, T] in blocks of queries [q_blocks, 1] and of keys [1, k_blocks]."""

    def of_blocks(x, size, axis):
        x = x.reshape(len(x), -1, size)
        return Range(*(jnp.expand_dims(end, axis) for end in (x.min((0, 2)), x.max((0, 2)))))

    return of_blocks(q, plan.grid.rows, 1), of_blocks(k, plan.grid.columns, 0)


def visible(plan: Plan, q: Tokens, k: Tokens) -> tuple[jax.Array, jax.Array]:
    """Tiles with any visible pair, and with visible pairs only: bool [q_blocks, k_blocks] each."""
    spec = plan.spec
    any_visible = all_visible = jnp.ones((plan.grid.q_blocks, plan.grid.k_blocks), bool)
    rows, columns = _ranges(q.index, k.index, plan)
    if spec.causal:
        any_visible &= rows.high >= columns.low
        all_visible &= rows.low >= columns.high
    if spec.window is not None:
        width = spec.window
        near = (rows.low - columns.high < width) & (columns.low - rows.high < width)
        inside = (rows.high - columns.low < width) & (columns.high - rows.low < width)
        if spec.sinks:
            rank = k.index if k.rank is None else k.rank
            _, ranks = _ranges(q.index, rank, plan)
            near, inside = near | (ranks.low < spec.sinks), inside | (ranks.high < spec.sinks)
        any_visible, all_visible = any_visible & near, all_visible & inside
    if q.segments is not None and k.segments is not None:
        rows, columns = _ranges(q.segments, k.segments, plan)
        any_visible &= (rows.high >= columns.low) & (rows.low <= columns.high) & (rows.high >= 0)
        all_visible &= (rows.low == columns.high) & (rows.high == columns.low) & (rows.low >= 0)
    return any_visible, all_visible
