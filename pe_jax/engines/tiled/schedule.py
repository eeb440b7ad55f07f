"""Which tiles of a row are visited, and in which order: plain ones first, then the others.

A tile is plain where the mask shows all of its pairs, one view scores them all, and every way is
beyond its horizon: it needs no mask and less of the terms, in a loop of its own. A tile of which
the mask shows nothing is not visited. Where a term sums along the row, tiles are visited from the
right instead, until the sums are beyond their limits or make all that is left negligible.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Tokens
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.tiled.grid import Grid, Range, ranges
from pe_jax.engines.tiled.setup import Setup


class Order(NamedTuple):
    """The tiles of a row: the first `plain` of `columns` are plain, `partial` follow."""

    columns: jax.Array
    plain: jax.Array
    partial: jax.Array


class Stage(NamedTuple):
    """What is known of the tiles that a loop visits."""

    plain: bool = False  # they are plain
    settled: bool = False  # the sums along their rows are beyond their limits


class Shown(NamedTuple):
    """Of a row of tiles, those of which the mask shows any pair, and all: [k_blocks] each."""

    some: jax.Array
    whole: jax.Array


def shown(spec: AttentionSpec, grid: Grid, q: Tokens, k: Tokens, i) -> Shown:
    """What the mask shows of block row i, from the ranges of indices and segments in each block."""
    some = whole = jnp.ones(grid.k_blocks, bool)
    rows, columns = _row_and_columns(grid, q.index, k.index, i)
    if spec.causal:
        some, whole = some & (rows.high >= columns.low), whole & (rows.low >= columns.high)
    if spec.window is not None:
        width = spec.window
        near = (rows.low - columns.high < width) & (columns.low - rows.high < width)
        inside = (rows.high - columns.low < width) & (columns.high - rows.low < width)
        if spec.sinks:
            rank = ranges(k.index if k.rank is None else k.rank, grid.k_blocks)
            near, inside = near | (rank.low < spec.sinks), inside | (rank.high < spec.sinks)
        some, whole = some & near, whole & inside
    if q.segments is not None:
        rows, columns = _row_and_columns(grid, q.segments, k.segments, i)
        some &= (rows.high >= columns.low) & (rows.low <= columns.high) & (rows.high >= 0)
        whole &= (rows.low == columns.high) & (rows.high == columns.low) & (rows.low >= 0)
    return Shown(some, whole)


def _row_and_columns(grid: Grid, q, k, i) -> tuple[Range, Range]:
    """The ranges of values [B or 1, T]: in block row i, and in each block column."""
    rows = ranges(q, grid.q_blocks)
    return Range(rows.low[i], rows.high[i]), ranges(k, grid.k_blocks)


def shows_any(setup: Setup, q: Tokens, k: Tokens) -> jax.Array:
    """Whether the mask shows any tile at all."""
    rows = jnp.arange(setup.grid.q_blocks, dtype=jnp.int32)
    return jax.vmap(lambda i: shown(setup.spec, setup.grid, q, k, i).some)(rows).any()


def order(setup: Setup, q: Tokens, k: Tokens, i, skip: Any = None) -> Order:
    """The tiles of block row i; those in `skip` (bool [q_blocks, k_blocks]) are left out."""
    grid = setup.grid
    some, whole = shown(setup.spec, grid, q, k, i)
    if skip is not None:
        some &= ~skip[i]
    if setup.spec.contiguous:
        distances = grid.distances(q, k, i)
        for way in setup.ways:
            past = way.past_horizon(distances)
            whole = whole if past is None else whole & past
    some, whole = setup.views.by_view(grid, q, k, i, some, whole)
    plain = whole & (setup.cheap and not setup.masks)
    kind = jnp.where(some, jnp.where(plain, 0, 1), 2)
    columns = jnp.argsort(kind, stable=True).astype(jnp.int32)
    return Order(columns, *((kind == n).sum(dtype=jnp.int32) for n in (0, 1)))


def visit(setup: Setup, order: Order, f, carry):
    """Carry = f(stage, n, carry) for each tile of a row, the plain ones first."""
    if setup.cheap and not setup.masks:
        carry = visit_range(Stage(plain=True), order, 0, order.plain, f, carry)
    return visit_range(Stage(), order, order.plain, order.plain + order.partial, f, carry)


def visit_from_right(order: Order, f, carry, more) -> tuple[Any, Any]:
    """Carry = f(n, carry) from the last tile of a row on, while more(carry).

    Also returns how many tiles, the first of `order.columns`, are not visited.
    """

    def turn(state):
        left, carry = state
        return left - 1, f(order.columns[left - 1], carry)

    def goes_on(state):
        left, carry = state
        return (left > 0) & more(carry)

    return jax.lax.while_loop(goes_on, turn, (order.partial, carry))


def visit_range(stage: Stage, order: Order, first, end, f, carry):
    """Carry = f(stage, n, carry) for the tiles `first` … `end` - 1 of a row, from the left."""

    def turn(t, carry):
        return f(stage, order.columns[t], carry)

    return jax.lax.fori_loop(first, end, turn, carry)
