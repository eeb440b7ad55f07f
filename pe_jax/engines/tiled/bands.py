"""Terms of distances with a horizon, in tiles: a band around the diagonal, constants beside it.

b, h batch and heads of the group, r, c rows and columns of a tile, m rows and columns of a
sub-block, n distances in the band, W the width of the products of a token, E head width.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import repeat_heads
from pe_jax.engines.tiled.distance_tables import (
    DistanceTables,
    distances,
    evaluate,
    features,
    products,
    query_biases,
    side_by_side,
    spread,
)
from pe_jax.engines.tiled.leaves import Cut, Leaves
from pe_jax.engines.tiled.ways import Way, add_up
from pe_jax.numerics.arrays import varying_like


class BandTables(NamedTuple):
    """The terms at the distances where they differ, and at both ends."""

    near: DistanceTables  # at high - 1 … low + 1, measured from the value at `high`
    far: DistanceTables  # at `high`: [H or 1, …]
    step: DistanceTables  # what is more at `low` than at `high`: [H or 1, …]
    biases: tuple[jax.Array, ...]  # of queries, for relative keys


class Band(NamedTuple):
    """What tiles that meet the band read; None where there is no such term.

    Attributes:
      bias: of all distances in tiles that meet the band, zeros off the band: [h, n].
      rows: the products of queries and vectors, flat: [b, h, (1 + T + 3)·W].
      columns: the products of keys and vectors, likewise.
    """

    bias: Any = None
    rows: Any = None
    columns: Any = None


class Ends(NamedTuple):
    """The constants beside the band; None where there is no such term."""

    bias: Any = None  # what the bias is more below the band than above: [1, h, 1, 1]
    rows: Any = None  # the same of the products of queries: [b, h, T, 1]
    columns: Any = None  # the same of the products of keys: [b, h, S, 1]
    columns_above: Any = None  # the products of keys above the band, that is far back: [b, h, S, 1]


class ValueTables(NamedTuple):
    """The vectors that the weights average: `BandTables` of values."""

    near: jax.Array
    far: jax.Array
    step: jax.Array


@dataclasses.dataclass(frozen=True)
class Bands(Way):
    """A band of n distances around the diagonal, and a constant on either side of it.

    Terms are measured from their value at the far end, which drops out of the softmax (values and
    relative queries, whose constant differs from key to key, keep it as a term of its own). Where
    the band is narrow, a tile that meets it is put together of sub-blocks of m × m, most of them
    zeros; where in the tile they lie is static, one branch for each `gap` between the tile's corner
    and the diagonal. Where it is wide, the tile is its own sub-block.

    The products of token t with distance d are at flat index t·W + high - 1 - d (for keys:
    d - low - 1). A diagonal step of the tile is then W - 1 apart, so that a slice and a reshape are
    a shear; what a row reads beyond its n products is masked.
    """

    horizon: tuple[int, int] = (0, 0)  # the widest of the terms'

    @classmethod
    def of(cls, terms, places, *how):
        lows, highs = zip(*(term.horizon for term in terms), strict=True)
        return cls(places, *how, horizon=(min(lows), max(highs)))

    @functools.cached_property
    def low(self) -> int:
        """The last distance below the band."""
        return -1 if self.one_sided else max(self.horizon[0], -self.grid.longest)

    @functools.cached_property
    def high(self) -> int:
        """The first distance above the band."""
        high = min(self.horizon[1], self.grid.longest)
        return max(high, 1) if self.one_sided else high

    @property
    def n(self) -> int:
        """Distances in the band."""
        return self.high - self.low - 1

    @functools.cached_property
    def m(self) -> int:
        """Sides of a sub-block."""
        step, reach = self._step, max(self.high, -self.low)
        fits = [m for m in self.sizes.sub_blocks if reach <= m < step and step % m == 0]
        return fits[0] if fits else step

    @property
    def width(self) -> int:
        """Numbers that a token has in a band of products: W."""
        return max(self.n, self.m + 1)

    @property
    def wide(self) -> bool:
        """Whether a tile is its own sub-block."""
        return self.m == self.grid.rows == self.grid.columns

    @property
    def _step(self) -> int:
        """Gaps between tiles and the diagonal are multiples of this."""
        return math.gcd(self.grid.rows, self.grid.columns)

    @functools.cached_property
    def offsets(self) -> range:
        """The gaps at which a sub-block meets the band."""
        return self._meeting(self.m, self.m, self.m)

    @functools.cached_property
    def gaps(self) -> range:
        """The gaps at which a tile meets the band."""
        return self._meeting(self.grid.rows, self.grid.columns, self._step)

    def _meeting(self, rows: int, columns: int, step: int) -> range:
        low, high = self.low + 1 - (rows - 1), self.high - 1 + columns - 1
        return range(-(-low // step) * step, high // step * step + 1, step)

    # What is made once per call and once per group of heads.

    def tables(self, terms, run_gaps=None):
        away = jnp.arange(self.high - 1, self.low, -1, dtype=jnp.int32)
        near = evaluate(terms, away, self.scale)
        ends = evaluate(terms, jnp.asarray([self.high, self.low], jnp.int32), self.scale)
        return BandTables(
            jax.tree.map(lambda x, end: x - end[:, :1], near, ends),
            jax.tree.map(lambda end: end[:, 0], ends),
            jax.tree.map(lambda end: end[:, 1] - end[:, 0], ends),
            query_biases(terms),
        )

    def left_out(self, terms, q):
        """The value at the far end, but for relative queries."""
        far = evaluate(terms, jnp.asarray([self.high], jnp.int32), self.scale)
        bias = rows = None
        if far.bias is not None:
            bias = far.bias[None, ..., None]
        if (vectors := side_by_side(far.per_query, q.x.shape[1])) is not None:
            rows = products(features(far, query_biases(terms), q, self.scale), vectors)
        return add_up([bias, rows])

    def prepare(self, tables, q, k):
        near, far, step, biases = tables
        heads = q.x.shape[1]
        band, ends, values = Band(), Ends(), None
        if near.bias is not None:
            band = band._replace(bias=self._padded(near.bias))
            ends = ends._replace(bias=step.bias[None, :, None, None])
        if (vectors := side_by_side(near.per_query, heads)) is not None:
            rows = features(near, biases, q, self.scale)
            band = band._replace(rows=self._products(rows, vectors))
            below = side_by_side(step.per_query, heads)
            ends = ends._replace(rows=products(rows, below[:, None]))
        if near.queries is not None:
            columns = self.scale * repeat_heads(k.raw, heads).astype(jnp.float32)
            band = band._replace(columns=self._products(columns, near.queries[:, ::-1]))
            above, more = (products(columns, x.queries[:, None]) for x in (far, step))
            ends = ends._replace(columns=more, columns_above=above)
        if near.values is not None:
            values = ValueTables(near.values, far.values, step.values)
        if self.one_sided:
            ends = Ends(columns_above=ends.columns_above)
        return Leaves(band, ends, values)

    def _products(self, x, vectors):
        """The products, flat: [b, h, (1 + T + 3)·W]; a row of zeros before, three after."""
        x = jnp.pad(x, [(0, 0), (0, 0), (1, 3), (0, 0)])
        vectors = jnp.pad(vectors, [(0, 0), (0, self.width - self.n), (0, 0)])
        return products(x, vectors).reshape(*x.shape[:2], -1)

    @property
    def _clipped(self) -> tuple[int, int]:
        """The gaps next to those that meet the band: all beyond are as they are."""
        return self.gaps[0] - self.gaps.step, self.gaps[-1] + self.gaps.step

    def _padded(self, bias):
        """The bias of all distances of tiles whose gap is clipped, the largest first: [h, n]."""
        least, most = self._clipped
        before = most + self.grid.rows - self.high
        return jnp.pad(bias, [(0, 0), (before, self.low + self.grid.columns - least)])

    def _assemble(self, gap: int, block) -> jax.Array:
        """The tile of block(offset, a, b): [b, h, m, m] at sub-block (a, b), zeros off the band."""
        m, count = self.m, (self.grid.rows // self.m, self.grid.columns // self.m)
        shape = block(self.offsets[0], 0, 0)
        rows = []
        for a in range(count[0]):
            offset = [gap + (a - b) * m for b in range(count[1])]
            inside = [b for b in range(count[1]) if offset[b] in self.offsets]
            middle = [block(offset[b], a, b) for b in inside]
            before = inside[0] * m if inside else self.grid.columns
            after = self.grid.columns - before - len(inside) * m
            sides = [jnp.zeros((*shape.shape[:3], n), shape.dtype) for n in (before, after)]
            rows.append(jnp.concatenate([sides[0], *middle, sides[1]], axis=-1))
        return jnp.concatenate(rows, axis=-2)

    # What each tile does.

    def cuts(self, tile):
        """Bands with their halo; the distances of the bias."""
        columns = self.column_cut(tile)
        ends = Ends(rows=self.row_cut(tile), columns=columns, columns_above=columns)
        least, most = self._clipped
        window = self.grid.rows + self.grid.columns - 1
        bias = Cut(1, most - jnp.clip(tile.gap, least, most), window)
        return Leaves(Band(bias, self._row_band(tile.i, tile), self._column_band(tile)), ends)

    def _row_band(self, i, tile) -> Cut:
        """What block row i reads of a band of queries, for a gap as in `tile`."""
        start, rows = i * self.grid.rows * self.width, self.grid.rows
        if self.wide:  # what the tile reads, and no more
            start += self.width + self.high - 1 - tile.gap
            return Cut(2, start, self.m * (self.width - 1))
        return Cut(2, start, (rows + 4) * self.width)

    def _column_band(self, tile) -> Cut:
        """What a tile reads of a band of keys."""
        start, columns = tile.j * self.grid.columns * self.width, self.grid.columns
        if self.wide:
            start += self.width + tile.gap - self.low - 1
            return Cut(2, start, self.m * (self.width - 1))
        return Cut(2, start, (columns + 4) * self.width)

    def _which(self, tile):
        """The place of the tile's gap among `gaps`; that after the last if it is none of them."""
        at = (tile.gap - self.gaps.start) // self.gaps.step
        return jnp.where((at >= 0) & (at < len(self.gaps)), at, len(self.gaps))

    def past_horizon(self, distances):
        above = distances.low >= self.high
        return above if self.one_sided else above | (distances.high <= self.low)

    def scores(self, near, always, tile):
        """The bands, and the ends where they reach into the tile."""
        ends = self._ends(always, self._below(tile))
        bias = None if near.bias is None else spread(near.bias, self.grid.rows)[None]
        return add_up([self._meet(near.rows, near.columns, tile), ends, bias])

    def plain_scores(self, always, tile):
        """The ends."""
        return self._ends(always, tile.gap < 0)

    def values(self, values, weights, tile):
        """The weights, gathered by distance, times what differs from the far end's value."""
        if values is None:
            return None
        size = (self.grid.rows + 4) * self.width
        band = varying_like(jnp.zeros((*weights.shape[:2], size), weights.dtype), weights)

        def place(x):  # the rows of one tile
            cut = self._row_band(0, tile)
            rows = jax.lax.dynamic_slice_in_dim(x, cut.start, cut.size, cut.axis)
            return self._meet(rows, None, tile)

        (band,) = jax.vjp(place, band)[1](weights)
        band = band.reshape(*band.shape[:2], -1, self.width)[:, :, 1 : self.grid.rows + 1, : self.n]
        out = jnp.matmul(band, values.near)
        out = out + weights.sum(-1, keepdims=True) * values.far[None, :, None]
        if self.one_sided:
            return out
        below = jnp.where(self._below(tile), weights, 0).sum(-1, keepdims=True)
        return out + below * values.step[None, :, None]

    def plain_values(self, values, weights, tile):
        """The sum of the weights times the value of one end."""
        if values is None:
            return None
        vector = values.far
        if not self.one_sided:
            vector = vector + jnp.where(tile.gap < 0, values.step, 0)
        return weights.sum(-1, keepdims=True) * vector[None, :, None]

    def _below(self, tile):
        """Which pairs of a tile are below the band: [r, c]."""
        return distances(self.grid.rows, self.grid.columns, tile.gap) <= self.low

    def _ends(self, ends: Ends, below):
        """The constants of columns, and what is more where `below`: broadcasts to a tile; None."""
        lower = add_up([ends.bias, ends.rows, _transposed(ends.columns)])
        if lower is not None:
            lower = jnp.where(below, lower, 0)
        return add_up([lower, _transposed(ends.columns_above)])

    def _meet(self, rows, columns, tile):
        """What bands have for a tile: [b, h, r, c], or None without any."""
        bands = [band for band in (rows, columns) if band is not None]
        if not bands:
            return None
        if self.wide:
            return add_up(self._diagonals(rows, columns, 0, tile.gap))[:, :, 0]
        zeros = jnp.zeros((*bands[0].shape[:2], self.grid.rows, self.grid.columns), jnp.float32)
        branches = [functools.partial(self._meet_at, gap) for gap in self.gaps]
        return linear_switch(
            self._which(tile), branches, (rows, columns), varying_like(zeros, bands)
        )

    def _meet_at(self, gap: int, bands):
        """The same for one gap, out of sub-blocks."""
        diagonals = {
            offset: self._diagonals(bands[0], bands[1], offset, offset) for offset in self.offsets
        }

        def block(offset, a, b):
            from_rows, from_columns = diagonals[offset]
            return add_up(
                [
                    None if from_rows is None else from_rows[:, :, a],
                    None if from_columns is None else from_columns[:, :, b],
                ]
            )

        return self._assemble(gap, block)

    def _diagonals(self, rows, columns, offset: int, gap):
        """What either band has for sub-blocks `gap` from the diagonal: [b, h, blocks, m, m]."""
        distance = distances(self.m, self.m, gap)
        inside = (distance > self.low) & (distance < self.high)
        if rows is not None:
            x = self._read(rows, self.high - 1 - offset, self.grid.rows // self.m)
            rows = jnp.where(inside, x, 0)
        if columns is not None:
            x = self._read(columns, offset - self.low - 1, self.grid.columns // self.m)
            columns = jnp.where(inside, jnp.swapaxes(x, -1, -2), 0)
        return rows, columns

    def _read(self, flat, first: int, blocks: int):
        """One diagonal of sub-blocks in a band: [b, h, blocks, m, m]; `first` is its flat start."""
        m, w = self.m, self.width
        if not self.wide:
            flat = jax.lax.slice_in_dim(flat, w + first, w + first + blocks * m * w, axis=2)
        flat = flat.reshape(*flat.shape[:2], blocks, -1)[..., : m * (w - 1)]
        return flat.reshape(*flat.shape[:3], m, w - 1)[..., :m]


def _transposed(x):
    return None if x is None else jnp.swapaxes(x, -1, -2)


def linear_switch(which, branches, operand, default):
    """branches[which](operand), `default` (zeros) beyond them; each branch is linear.

    Its gradient is a switch of the transposed branches. The gradient of `jax.lax.switch` would
    trace each of them several times over and keep residuals that no linear function has.
    """
    zeros = jax.tree.map(jnp.zeros_like, operand)

    @jax.custom_vjp
    def run(which, operand):
        return jax.lax.switch(which, [*branches, lambda _: default], operand)

    def backward(which, g):
        transposed = [functools.partial(_transpose, branch, operand) for branch in branches]
        return None, linear_switch(which, transposed, g, zeros)

    run.defvjp(lambda which, operand: (run(which, operand), which), backward)
    return run(which, operand)


def _transpose(branch, operand, g):
    """The transpose of a linear function of things like `operand`, at g."""
    return jax.linear_transpose(branch, operand)(g)[0]
