"""Biases of the distance alone, in tiles: each spreads its window of a table over all distances.

Positions are contiguous. To spread a window takes less time than to compute a logarithm for each
pair, so formulas with such operations go this way too, and run once per call.
"""

import jax

from pe_jax.engines.tiled.distance_tables import bias_at, spread
from pe_jax.engines.tiled.leaves import Leaves
from pe_jax.engines.tiled.windows import OverDistances


class DistanceBiases(OverDistances):
    """Biases without a horizon, and formulas that take long, at contiguous positions."""

    def tables(self, terms, run_gaps=None):
        return self.filled(bias_at(terms, self.distances(run_gaps), self.scale))

    def prepare(self, tables, q, k):
        return Leaves(always=tables)

    def cuts(self, tile):
        return Leaves(always=self.window(tile))

    def scores(self, near, always: jax.Array, tile):
        return spread(always, self.grid.rows)[None]
