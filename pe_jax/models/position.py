"""What `pe_jax.nnx.Position` and `pe_jax.linen.Position` have in common.

B batch, T tokens, H query heads, K key heads, E head width, F value width, D width.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import Dims, Params
from pe_jax.encodings.windowed import Windowed
from pe_jax.engines.api import attention
from pe_jax.engines.decoding import cache as caches
from pe_jax.validation import require


class PositionMethods:
    """Attention with an encoding, and its cache.

    Attributes:
      encoding: the scheme, with its window and sinks.
      dims: sizes of the layer.
      params: the parameters as arrays.
    """

    encoding: Windowed
    dims: Dims
    params: Any  # Params: in NNX a property

    def cache(self, batch: int, capacity: int, dtype: Any = jnp.float32) -> caches.Cache:
        """An empty cache for this layer, as `pe_jax.cache.empty` makes it."""
        return caches.empty(self.encoding, batch, capacity, self.dims, dtype, self.params)

    def embed(self, x: jax.Array, positions: Any) -> jax.Array:
        """The input [B, T, D] of the first layer, with what the scheme adds at positions [T]."""
        return self.encoding.embed(self.params, x, positions)

    def logical_axes(self) -> Params:
        """The logical axes of each parameter, as `Encoding.logical_axes` names them."""
        return self.encoding.logical_axes(self.dims)

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        cache: Any = None,
        positions: Any = None,
        *,
        segments: Any = None,
        **options: Any,
    ) -> tuple[jax.Array, Any]:
        """Attention [B, T, H, F], and the cache with these tokens (None without one).

        Args:
          q: [B, T, H, E], not rotated.
          k: [B, T, K, E].
          v: [B, T, K, F].
          cache: of the tokens before.
          positions: [T] or [B, T]; None: contiguous, from the cache's length on.
          segments: integers [B, T]: tokens see their own; negative for padding.
          **options: `x`, `mask`, `causal`, `scale`, `logit_cap`, `embedded`, `implementation`, as
            for `pe_jax.attention` and `pe_jax.cache.extend`.

        Raises:
          ValueError: as those two raise.
        """
        own = {"encoding": self.encoding, "params": self.params, "dims": self.dims}
        if cache is None:
            out = attention(q, k, v, q_positions=positions, q_segments=segments, **own, **options)
            return out, None
        return caches.extend(cache, q, k, v, positions, segments=segments, **own, **options)

    def check(self, shared: Any) -> None:
        """Checks sizes, and the module whose shared parameters are used.

        Raises:
          ValueError: sizes that do not fit the scheme; another scheme than that of `shared`.
          TypeError: `shared` is not a Position.
        """
        self.encoding.check(self.dims)
        if shared is None:
            return
        if not isinstance(shared, type(self)):
            fix = "pass the Position of an earlier layer"
            raise TypeError(f"shared is a {type(shared).__name__}; {fix}")
        ours, theirs = self.encoding.encoding, shared.encoding.encoding
        same = ours == theirs and self.dims == shared.dims
        fix = f"layers that share parameters have one scheme, here {ours!r}, and its sizes"
        require(same, "shared", theirs, fix)
