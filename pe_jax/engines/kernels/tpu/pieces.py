"""A bias in pieces, in one tile: the line that all pairs share, and the knots within the tile.

The number of a pair is its query's rate times what grows with the distance. That is the same along
diagonals, so that of 128 × 128 pairs each, a tile of 512 × 512 has seven parts to evaluate. Knots
below the numbers of a tile are in its line, those above them in none; easy tiles have none within.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pe_jax.engines.kernels.tpu import piecewise, shear
from pe_jax.engines.kernels.tpu.plan import Arrays, Plan, Tile
from pe_jax.engines.kernels.tpu.shear import as_column, lane_sums, repeat_columns

START, SLOPE, KNOT, BEND = range(4)  # rows of `Arrays.pieces`


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
        knots = (low + n for n in range(tile.bends))
        pairs = functools.reduce(lambda pairs, n: bent(n, pairs), knots, slope * number)
    return Bias(pairs, start, grown, number, pull)


class Gradients(NamedTuple):
    """Adds to the gradients of lines, of knots, of numbers, and of rates.

    A tile is gone through in a few rows at a time, whose registers last from one operation to the
    next: its `parts` are what grown numbers get, [rows, block] each.

    Attributes:
      plan: as of the kernel, as the rest.
      x: what it reads.
      tile: that is not transposed.
      grads: those of lines and knots, and of numbers.
      of_rates: to be summed over lanes and divided by the rates, [block, lanes].
      bias: that of the tile.
      d_s: the gradient of its scores, [block, block].
    """

    plan: Plan
    x: Arrays
    tile: Tile
    grads: Arrays
    of_rates: Any
    bias: Bias
    d_s: jax.Array

    def add(self) -> None:
        """All of the tile."""
        if self.tile.bends is None:
            d_grown = pl.run_scoped(self._loop, pltpu.VMEM(self.d_s.shape, jnp.float32))
        else:
            parts = self._line()
            for n in range(self.tile.bends):
                parts = self._bent(self.tile.knots[0] + n, parts)
            d_grown = jnp.concatenate(list(parts))
        for c, part in enumerate(self.bias.pull(d_grown)[0]):
            self.grads.growth[c] += part

    def _rows(self) -> list[slice]:
        size = min(shear.PART, self.plan.block)
        return [slice(first, first + size) for first in range(0, self.plan.block, size)]

    def _line(self) -> Iterator[jax.Array]:
        """Of the line of all pairs."""
        low, total, by_number = self.tile.knots[0], jnp.float32(0), jnp.float32(0)
        for rows in self._rows():
            part, *sums = self._weighted(rows, self.d_s[rows], self.x.pieces[SLOPE, low])
            total, by_number = total + sums[0], by_number + sums[1]
            yield part
        _add(self.grads, low, {START: total, SLOPE: by_number})

    def _bent(self, n: Any, parts: Iterable[jax.Array]) -> Iterator[jax.Array]:
        """Of what a knot adds, in addition to the parts so far."""
        knot, bend = self.x.pieces[KNOT, n], self.x.pieces[BEND, n]
        total, by_number = jnp.float32(0), jnp.float32(0)
        for rows, part in zip(self._rows(), parts, strict=True):
            on = jnp.where(self.bias.x[rows] > knot, self.d_s[rows], 0)
            more, *sums = self._weighted(rows, on, bend)
            total, by_number = total + sums[0], by_number + sums[1]
            yield part + more
        _add(self.grads, n, {KNOT: -bend * total, BEND: by_number - knot * total})

    def _weighted(self, rows: slice, d: jax.Array, weight: Any) -> tuple[jax.Array, ...]:
        """A part where the bias is weight·number; sums of d, and of d·number."""
        rate = _rate(self.plan, self.x, self.tile)[rows]
        sums = lane_sums(d * self.bias.grown[rows]) * rate
        self.of_rates[rows] += weight * sums
        part = _spread(self.plan, self.tile, weight * rate) * d
        return part, lane_sums(d).sum(0), sums.sum(0)

    def _loop(self, kept: Any) -> jax.Array:
        """The parts, in a tile that has many knots."""

        def store(parts):
            for rows, part in zip(self._rows(), parts, strict=True):
                kept[rows] = part

        def step(n, _):
            store(self._bent(n, (kept[rows] for rows in self._rows())))

        store(self._line())
        low, high = self.tile.knots
        jax.lax.fori_loop(low, high, step, None)
        return kept[...]


def growth_of(plan: Plan, x: Arrays, tile: Tile):
    """What grows with the distance: a function for all pairs of a tile, and its numbers."""

    def of_tile(numbers):
        at = functools.partial(piecewise.growth, numbers)
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
    row, column = (jax.lax.broadcasted_iota(jnp.int32, grads.pieces.shape, axis) for axis in (0, 1))
    for own, x in parts.items():
        grads.pieces[...] += jnp.where((row == own) & (column == n), x.sum(), 0)
