"""Vectors of distances without a horizon, in tiles: a window of the tables over all distances.

Positions are contiguous, so a tile of r × c scores has r + c - 1 distances, which lie side by side
in a table. What meets queries is multiplied by `row_products`, once per row of tiles; for others a
tile multiplies by its window and shears the products into place.

b, h batch and heads of the group, r, c rows and columns of a tile, n distances, E head width.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import RelativeKeys, RelativeState, repeat_heads
from pe_jax.engines.tiled.distance_tables import (
    DistanceTables,
    evaluate,
    features,
    query_biases,
    shear,
    side_by_side,
)
from pe_jax.engines.tiled.leaves import Cut, Leaves
from pe_jax.engines.tiled.ways import Way
from pe_jax.numerics.arrays import fit, varying_like


class WindowTables(NamedTuple):
    """The tables over all distances, the largest first, and the biases of queries."""

    distances: DistanceTables
    biases: tuple[jax.Array, ...]


class WindowLeaves(NamedTuple):
    """What tiles read; None where there is no such term."""

    columns: Any  # keys before rotations, scaled: [b, h, S, E]
    queries: Any  # vectors that meet these, over all distances: [h or 1, n, E]


class RowLeaves(NamedTuple):
    """What `row_products` multiplies, row of tiles by row of tiles."""

    rows: Any  # what queries bring: [b, h, T, C]
    turned: Any  # vectors of all distances: [h or 1, C, n]


class OverDistances(Way):
    """Has tables over all distances of contiguous positions, the largest first."""

    def distances(self, run_gaps=None) -> jax.Array:
        """All T + S - 1, or those that the mask does not always hide; `run_gaps` as in `tables`.

        Of several runs: those of each two runs, one after the other.
        """
        queries, keys = self.grid.lengths
        last = 0 if self.one_sided and run_gaps is None else 1 - keys
        distance = jnp.arange(queries - 1, last - 1, -1, dtype=jnp.int32)
        if run_gaps is None:
            return distance
        distance = fit(distance, 0, self._length)
        distance = (run_gaps[..., None] + distance).reshape(-1)
        # Anything will do where the mask hides all.
        return jnp.maximum(distance, 0) if self.one_sided else distance

    def filled(self, table: jax.Array) -> jax.Array:
        """A table [H or 1, n, …] of `distances`, zeros for those that are always hidden."""
        return fit(table, 1, self.grid.runs**2 * self._length)

    @property
    def overhang(self) -> int:
        """Blocks of distances that a row of tiles has more than it has tiles."""
        return -(-self.grid.rows // self.grid.columns)

    @property
    def row_blocks(self) -> int:
        """Blocks of distances that a row of tiles has in a run of keys."""
        return self.grid.k_blocks // self.grid.runs + self.overhang

    @property
    def _length(self) -> int:
        """Entries of a table, for each two runs: to the end of the first row's last block."""
        return self.grid.lengths[0] - self.grid.rows + self.row_blocks * self.grid.columns

    def window(self, tile) -> Cut:
        """Of tables, the r + c - 1 distances of a tile, which begin at its top right corner."""
        j, blocks = tile.j, self.grid.k_blocks // self.grid.runs
        return self.cut(tile.i, j // blocks, j % blocks, self.grid.rows + self.grid.columns - 1)

    def cut(self, i, run, n, size: int) -> Cut:
        """Of tables, `size` distances of block row i from the n-th block of a run of keys on."""
        rows, blocks = self.grid.rows, self.grid.q_blocks // self.grid.runs
        pair = i // blocks * self.grid.runs + run
        start = (blocks - 1 - i % blocks) * rows + n * self.grid.columns
        return Cut(1, pair * self._length + start, size)


@dataclasses.dataclass(frozen=True)
class Windows(OverDistances):
    """Vectors of distances without a horizon."""

    once_per_row: bool = False  # whether `row_products` makes all of it, so that tiles only add it

    @classmethod
    def of(cls, terms, places, *how):
        per_query = all(type(term) in (RelativeKeys, RelativeState) for term in terms)
        return cls(places, *how, once_per_row=per_query)

    @property
    def cheap(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.once_per_row

    def tables(self, terms, run_gaps=None):
        tables = evaluate(terms, self.distances(run_gaps), self.scale)
        return WindowTables(jax.tree.map(self.filled, tables), query_biases(terms))

    def prepare(self, tables, q, k):
        distances, heads = tables.distances, q.x.shape[1]
        columns = row = None
        vectors = side_by_side(distances.per_query, heads)
        if vectors is not None:
            rows = features(distances, tables.biases, q, self.scale)
            rows = jnp.broadcast_to(rows, (*q.x.shape[:3], rows.shape[-1]))
            row = RowLeaves(rows, jnp.swapaxes(vectors, 1, 2))
        if distances.queries is not None:
            columns = self.scale * repeat_heads(k.raw, heads).astype(jnp.float32)
        leaves = WindowLeaves(columns, distances.queries)
        return Leaves(near=leaves, values=distances.values, row=row)

    def cuts(self, tile):
        window = self.window(tile)
        return Leaves(near=WindowLeaves(self.column_cut(tile), window), values=window)

    def vector_cut(self, i, n) -> Cut:
        """Of turned vectors, the n-th block of the distances of block row i."""
        cut = self.cut(i, n // self.row_blocks, n % self.row_blocks, self.grid.columns)
        return cut._replace(axis=2)

    def scores(self, near, always, tile):
        """Products with the window, sheared; seen from the keys, distances run backwards."""
        if near.columns is None:
            return None
        return jnp.swapaxes(self._sheared(near.columns, near.queries[:, ::-1]), -1, -2)

    def plain_scores(self, always, tile):
        """Nothing: only where `row_products` has it all are tiles plain."""
        return None

    def values(self, values, weights, tile):
        """The weights, sheared back, times the window."""
        if values is None:
            return None
        zeros = jnp.zeros((*weights.shape[:3], values.shape[-1]), jnp.float32)
        zeros = varying_like(zeros, (weights, values))
        return jax.vjp(lambda x: self._sheared(x, values), zeros)[1](weights)[0]

    def _sheared(self, x: jax.Array, table: jax.Array) -> jax.Array:
        """y[…, r, c] = x_r · table[rows - 1 - r + c]: [b, h, r, E] and [h or 1, r + c - 1, E] → y.

        Few rows share a window: each needs few products that the shear leaves out.
        """
        rows, columns = x.shape[2], table.shape[1] + 1 - x.shape[2]
        most = self.sizes.window_rows
        m = most if rows % most == 0 else rows
        starts = range(rows - m, -1, -m)
        windows = jnp.stack([table[:, a : a + m + columns - 1] for a in starts], axis=1)
        x = x.reshape(*x.shape[:2], rows // m, m, -1)
        y = shear(jnp.matmul(x, jnp.swapaxes(windows, -1, -2)))
        return y.reshape(*y.shape[:2], rows, columns)
