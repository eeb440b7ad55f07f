"""Biases of the distance alone, in tiles: those on one diagonal of the grid are the same.

Positions are contiguous, so a tile is told by the distance of its first row and its first column,
its gap. The bias at each gap is made once per group of heads, and tiles read it: to compute it, or
to read it obliquely from a table, takes longer. Gradients of the scores add up gap by gap.

h heads of the group, r, c rows and columns of a tile, n distances.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.terms import DistanceBias
from pe_jax.engines.tiled.distance_tables import diagonal_windows, spread
from pe_jax.engines.tiled.leaves import Cut, Leaves
from pe_jax.engines.tiled.ways import Way, add_up


@dataclasses.dataclass(frozen=True)
class Diagonals(Way):
    """Biases without a horizon, and formulas, at contiguous positions."""

    def tables(self, terms, run_gaps=None):
        """At the distances of each two runs, the largest first: [H, pairs, n]."""
        rows, columns = self.grid.rows, self.grid.columns
        least, most = self._gaps[0], self._gaps[-1]
        distance = np.arange(most + rows - 1, least - columns, -1, dtype=np.int32)
        distance = jnp.asarray(distance)[None]
        if run_gaps is not None:
            distance = run_gaps.reshape(-1, 1) + distance
        if self.one_sided:  # the mask hides all others, and a formula may have no value there
            distance = jnp.maximum(distance, 0)
        scaled = (self.scale if type(t) is DistanceBias and t.scaled else 1.0 for t in terms)
        return add_up(term.at(distance) * by for term, by in zip(terms, scaled, strict=True))

    @property
    def _gaps(self) -> range:
        """Those of the tiles of two runs that the mask shows, if it depends on the gap alone."""
        grid = self.grid
        step = math.gcd(grid.rows, grid.columns)
        blocks = grid.q_blocks // grid.runs, grid.k_blocks // grid.runs
        least, most = (1 - blocks[1]) * grid.columns, (blocks[0] - 1) * grid.rows
        if self.one_sided and grid.runs == 1:
            least = max(least, (1 - grid.rows) // step * step)
        return range(least, most + 1, step)

    def prepare(self, tables, q, k):
        """The tile at each gap, for each two runs: [pairs · gaps, h, r, c]."""
        rows, columns = self.grid.rows, self.grid.columns
        of_runs = functools.partial(diagonal_windows, gaps=self._gaps, rows=rows, columns=columns)
        windows = jax.vmap(of_runs, in_axes=1)(tables)
        return Leaves(always=spread(windows.reshape(-1, *windows.shape[2:]), rows))

    def cuts(self, tile):
        grid, gaps = self.grid, self._gaps
        rows, columns = grid.q_blocks // grid.runs, grid.k_blocks // grid.runs
        pair = tile.i // rows * grid.runs + tile.j // columns
        gap = tile.i % rows * grid.rows - tile.j % columns * grid.columns
        place = jnp.clip((gap - gaps.start) // gaps.step, 0, len(gaps) - 1)
        return Leaves(always=Cut(0, pair * len(gaps) + place, 1))

    def scores(self, near: Any, always: jax.Array, tile):
        return always
