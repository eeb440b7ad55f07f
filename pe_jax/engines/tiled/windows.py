"""Terms of distances without a horizon, in tiles: a window of the tables over all distances.

Positions are contiguous, so a tile of r × c scores has r + c - 1 distances, which lie side by side
in a table: it multiplies by that window and shears the products into place.

b, h batch and heads of the group, r, c rows and columns of a tile, n distances, E head width.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import repeat_heads
from pe_jax.engines.tiled.distance_tables import (
    DistanceTables,
    evaluate,
    features,
    query_biases,
    shear,
    side_by_side,
)
from pe_jax.engines.tiled.leaves import Cut, Leaves
from pe_jax.engines.tiled.ways import Way, add_up
from pe_jax.numerics.arrays import fit, varying_like


class WindowTables(NamedTuple):
    """The tables over all distances, the largest first, and the biases of queries."""

    distances: DistanceTables
    biases: tuple[jax.Array, ...]


class WindowLeaves(NamedTuple):
    """What tiles read; None where there is no such term."""

    rows: Any  # what meets `keys`: [b, h, T, C]
    columns: Any  # keys before rotations, scaled: [b, h, S, E]
    keys: Any  # vectors that meet queries, over all distances: [h or 1, n, C]
    queries: Any  # vectors that meet keys: [h or 1, n, E]


class Windows(Way):
    """Tables over all distances of contiguous positions."""

    cheap = False

    def tables(self, terms, run_gaps=None):
        """Over all T + S - 1 distances; zeros for those that the mask always hides.

        Of several runs: over the distances of each two runs, one after the other.
        """
        queries, keys = self.grid.lengths
        last = 0 if self.one_sided and run_gaps is None else 1 - keys
        distance = jnp.arange(queries - 1, last - 1, -1, dtype=jnp.int32)
        if run_gaps is not None:
            distance = (run_gaps[..., None] + distance).reshape(-1)
            # Anything will do where the mask hides all.
            distance = jnp.maximum(distance, 0) if self.one_sided else distance
        length = self.grid.runs**2 * (queries + keys - 1)
        tables = evaluate(terms, distance, self.scale)
        return WindowTables(jax.tree.map(lambda x: fit(x, 1, length), tables), query_biases(terms))

    def prepare(self, tables, q, k):
        """A bias becomes one more channel of the vectors of queries, which have a 1 there."""
        distances, heads = tables.distances, q.x.shape[1]
        rows, columns, bias = None, None, distances.bias
        keys = side_by_side(distances.per_query, heads)
        if keys is not None:
            rows = features(distances, tables.biases, q, self.scale)
        if bias is not None:
            ones = jnp.ones((1, 1, q.x.shape[2], 1), jnp.float32)
            bias = bias[..., None]
            if rows is not None and keys is not None:
                ones = jnp.broadcast_to(ones, (*rows.shape[:3], 1))
                ones = jnp.concatenate([rows, ones], axis=-1)
                keys = jnp.broadcast_to(keys, (heads, *keys.shape[1:]))
                bias = jnp.concatenate([keys, bias], axis=-1)
            rows, keys = ones, bias
        if distances.queries is not None:
            columns = self.scale * repeat_heads(k.raw, heads).astype(jnp.float32)
        leaves = WindowLeaves(rows, columns, keys, distances.queries)
        return Leaves(near=leaves, values=distances.values)

    def cuts(self, tile):
        """The window of r + c - 1 distances begins where the tile's top right corner is."""
        rows, columns, runs = self.grid.rows, self.grid.columns, self.grid.runs
        i, j, blocks, first = tile.i, tile.j, self.grid.q_blocks // runs, 0
        if runs > 1:  # the tiles are square
            first = (i // blocks * runs + j // blocks) * (2 * blocks * rows - 1)
            i, j = i % blocks, j % blocks
        window = Cut(1, first + (blocks - 1 - i) * rows + j * columns, rows + columns - 1)
        near = WindowLeaves(self.row_cut(tile), self.column_cut(tile), window, window)
        return Leaves(near=near, values=window)

    def scores(self, near, always, tile):
        """Products with the window, sheared; seen from the keys, distances run backwards."""
        from_rows = from_columns = None
        if near.rows is not None:
            from_rows = self._sheared(near.rows, near.keys)
        if near.columns is not None:
            turned = self._sheared(near.columns, near.queries[:, ::-1])
            from_columns = jnp.swapaxes(turned, -1, -2)
        return add_up([from_rows, from_columns])

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
