"""What is static about a call of attention: sizes, the mask as a rule, scale and cap.

T queries, S keys.
"""

import dataclasses

import jax

from pe_jax.encodings.base import Dims
from pe_jax.encodings.terms import Tokens, scale
from pe_jax.engines.mask import allowed


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """The sizes, the mask, the scale and the cap of a call, hashable."""

    dims: Dims  # global sizes
    causal: bool  # whether later tokens are hidden
    window: int | None = None  # how many tokens back are visible, oneself included; None: all
    sinks: int = 0  # the first tokens of each segment that stay visible beyond the window
    aligned: bool = False  # query i and key i are the same token, of index i
    contiguous: bool = False  # the distance of query i and key j is i - j (within a segment)
    restarts: bool = False  # the same, but that positions restart in each run of one segment
    lse: bool = False  # whether the logarithms of rows' sums are read; else an engine may give None
    scale: float | None = None  # what q·k is multiplied by; None: see `scale_of`
    logit_cap: float | None = None  # scores are cap·tanh(score / cap) before the mask

    @property
    def in_order(self) -> bool:
        """Whether the distance of a query and a key of one segment is that of their indices."""
        return self.contiguous or self.restarts

    def scale_of(self, terms: tuple) -> float:
        """What q·k and the scaled terms are multiplied by: the call's, a term's, or 1/sqrt(E)."""
        return scale(terms, self.dims.head_dim) if self.scale is None else self.scale

    def mask(self, q: Tokens, k: Tokens) -> jax.Array:
        """Which pairs are visible: bool [B or 1, 1, T, S]."""
        rule = {"causal": self.causal, "window": self.window, "sinks": self.sinks}
        visible = allowed(q.index, k.index, q.segments, k.segments, k_rank=k.rank, **rule)
        return visible[:, None]
