"""What is static about a call of attention: the sizes, and the mask as a rule.

T queries, S keys.
"""

import dataclasses

import jax

from pe_jax.encodings.base import Dims
from pe_jax.encodings.terms import Tokens
from pe_jax.engines.mask import allowed


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """The sizes and the mask of a call, hashable.

    Attributes:
      dims: global sizes.
      causal: whether later tokens are hidden.
      window: how many tokens back are seen, oneself included; None: all.
      sinks: the first tokens of each segment that stay in sight beyond the window.
      aligned: query i and key i are the same token, of index i.
      contiguous: the distance of query i and key j is i - j (within a segment).
    """

    dims: Dims
    causal: bool
    window: int | None = None
    sinks: int = 0
    aligned: bool = False
    contiguous: bool = False

    def mask(self, q: Tokens, k: Tokens) -> jax.Array:
        """Which pairs are seen: bool [B or 1, 1, T, S]."""
        seen = allowed(
            q.index,
            k.index,
            q.segments,
            k.segments,
            causal=self.causal,
            window=self.window,
            sinks=self.sinks,
            k_rank=k.rank,
        )
        return seen[:, None]
