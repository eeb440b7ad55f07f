"""The tiled engine: attention with any encoding, forward and backward, in O(L) memory.

`engine` holds the algorithm and reads top-down. `tiles` says how large tiles are, `schedule` which
of them are visited, `ways` how the terms of an encoding enter a tile.
"""

from pe_jax.engines.tiled.engine import Tiled, attend
from pe_jax.engines.tiled.tiles import TileSizes

__all__ = ["TileSizes", "Tiled", "attend"]
