"""A bias in pieces, in one tile: the line that all pairs share, and the knots within the tile.

The number of a pair is its query's rate times what grows with the distance. That is the same along
diagonals, so that of 128 × 128 pairs each, a tile of 512 × 512 has seven parts to evaluate. Knots
below the numbers of a tile are in its line, those above them in none; easy tiles have none within.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pe_jax.engines.tpu import shear
from pe_jax.engines.tpu.plan import Arrays, Plan, Tile
from pe_jax.engines.tpu.shear import as_column, lane_sums, repeat_columns

START, SLOPE, KNOT, BEND = range(4)  # rows of `Arrays.pieces`
CHUNK = 32


class Bias(NamedTuple):
    """That of a tile.

    Attributes:
      pairs: [block, block], but for …
      start: … a number that all pairs lack.
      grown: what grows with the distance, [block, block]; easy tiles need no other.
      x: the number of each pair, [block, block], or None.
      pull: the gradient of what grows → those of the numbers that it is computed from.
    """

    pairs: jax.Array
    start: jax.Array
    grown: jax.Array
    x: Any
    pull: Callable


def bias(plan: Plan, x: Arrays, tile: Tile) -> Bias:
    """The bias of a tile.

    bend·relu(number - knot) is bend·max(number, knot) less a constant, and with the constants of
    all knots that a tile has, its line would start where the line after the last of them does.
    """
    grown, pull = jax.vjp(*growth_of(plan, x, tile))
    rate, (low, high) = _rate(plan, x, tile), tile.knots
    slope, start = x.pieces[SLOPE, low], x.pieces[START, high]
    if tile.bends == 0:
        return Bias(_spread(plan, tile, slope * rate) * grown, start, grown, None, pull)
    number = _spread(plan, tile, rate) * grown

    def bent(n, pairs):
        return pairs + x.pieces[BEND, n] * jnp.maximum(number, x.pieces[KNOT, n])

    def loop(pairs):
        def step(n, _):
            pairs[...] = bent(n, pairs[...])

        pairs[...] = slope * number
        jax.lax.fori_loop(low, high, step, None)
        return pairs[...]

    if tile.bends is None:
        pairs = pl.run_scoped(loop, pltpu.VMEM(number.shape, number.dtype))
    else:
        places = (low + n for n in range(tile.bends))
        pairs = functools.reduce(lambda pairs, n: bent(n, pairs), places, slope * number)
    return Bias(pairs, start, grown, number, pull)


def add_gradients(
    plan: Plan, x: Arrays, tile: Tile, grads: Arrays, kept, own: Bias, d_s: jax.Array
) -> None:
    """Adds to the gradients of lines, of knots, of numbers, and of rates.

    That of rates is `kept`, to be summed and divided by them.
    """
    rate, (low, high) = _rate(plan, x, tile), tile.knots
    slope = x.pieces[SLOPE, low]
    sums = lane_sums(d_s * own.grown) * rate
    kept[...] += slope * sums
    _add(grads, low, {START: lane_sums(d_s), SLOPE: sums})

    def loop(d_number):
        def step(n, _):
            knot, bend = x.pieces[KNOT, n], x.pieces[BEND, n]
            moved, turned = 0.0, 0.0
            for rows in _chunks(plan.block):
                number = own.x[rows]
                d = jnp.where(number > knot, d_s[rows], 0)
                sums, total = lane_sums(d * number), lane_sums(d)
                kept[rows] += bend * sums
                d_number[rows] += bend * d
                moved, turned = moved + total.sum(0), turned + sums.sum(0)
            _add(grads, n, {KNOT: -bend * moved, BEND: turned - knot * moved})

        d_number[...] = slope * d_s
        if tile.bends is None:
            jax.lax.fori_loop(low, high, step, None)
        else:
            for n in range(tile.bends):
                step(low + n, None)
        return d_number[...] * _spread(plan, tile, rate)

    if tile.bends == 0:
        d_grown = _spread(plan, tile, slope * rate) * d_s
    else:
        d_grown = pl.run_scoped(loop, pltpu.VMEM(d_s.shape, d_s.dtype))
    for c, part in enumerate(own.pull(d_grown)[0]):
        grads.growth[c] += part


def _chunks(rows: int) -> list[slice]:
    """Rows of a tile whose registers last from one operation to the next."""
    size = min(CHUNK, rows)
    return [slice(first, first + size) for first in range(0, rows, size)]


def growth_of(plan: Plan, x: Arrays, tile: Tile):
    """What grows with the distance: a function for all pairs of a tile, and its numbers."""
    growth: Any = plan.growth

    def of_tile(numbers):
        at = functools.partial(growth, numbers)
        return shear.by_diagonal(at, tile.gap, plan.block, tile.transposed)

    return of_tile, [x.growth[c] for c in range(x.growth.shape[0])]


def columns(plan: Plan, x: Arrays) -> jax.Array:
    """The rates of queries as equal columns: [block, lanes]."""
    return jnp.broadcast_to(as_column(x.q_rates[...]), (plan.block, plan.lanes))


def _rate(plan: Plan, x: Arrays, tile: Tile) -> jax.Array:
    """That of queries: equal columns [block, lanes], or [1, block] if transposed."""
    if tile.transposed:
        return x.q_rates[...]
    return columns(plan, x) if x.rate_columns is None else x.rate_columns[...]


def _spread(plan: Plan, tile: Tile, x: jax.Array) -> jax.Array:
    """Numbers of queries, as `_rate`, along the columns of a tile."""
    return x if tile.transposed else repeat_columns(x, plan.block)


def _add(grads: Arrays, n: Any, parts: dict[int, jax.Array]) -> None:
    """Adds sums of matrices to the gradients of numbers of the pieces, by their rows."""
    row, place = (jax.lax.broadcasted_iota(jnp.int32, grads.pieces.shape, axis) for axis in (0, 1))
    for own, x in parts.items():
        grads.pieces[...] += jnp.where((row == own) & (place == n), x.sum(), 0)
