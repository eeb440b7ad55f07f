"""The tiled engine: attention with any encoding, forward and backward, in O(L) memory.

`engine` reads top-down: what a call is made of, and its gradients. `passes` visits the tiles,
`schedule` says which and in which order, `skipping` which of them are negligible, `sizes` how large
they are, `groups` which heads take turns, `shared_positions` what rows of the batch share.
"""

from pe_jax.engines.tiled.engine import NEEDS, Tiled, attend
from pe_jax.engines.tiled.sizes import TileSizes

__all__ = ["NEEDS", "TileSizes", "Tiled", "attend"]
