"""An attention call as engines take it, and its static options.

T queries, S keys.
"""

import dataclasses
from typing import Any, NamedTuple

import jax

from pe_jax.encodings.base import Dims
from pe_jax.encodings.terms import Side, Tokens, logit_cap, scale
from pe_jax.engines.dropout import Dropout
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
    restarts: bool = False  # the same, but positions begin anew with each segment
    lse: bool = False  # whether the log-sum-exp of rows is read; else an engine may return None
    # None: see `scale_of` and `cap_of`
    scale: float | None = None  # factor on q·k
    logit_cap: float | None = None  # scores are cap·tanh(score / cap) before the mask

    @property
    def in_order(self) -> bool:
        """Whether distances within a segment are differences of indices."""
        return self.contiguous or self.restarts

    def scale_of(self, terms: tuple) -> Any:
        """The factor on q·k and on scaled terms: the call's, a term's, or 1/sqrt(E)."""
        return scale(terms, self.dims.head_dim) if self.scale is None else self.scale

    def cap_of(self, terms: tuple) -> Any:
        """The cap of the scores; None: there is none."""
        return logit_cap(terms) if self.logit_cap is None else self.logit_cap

    def mask(self, q: Tokens, k: Tokens) -> jax.Array:
        """Which pairs are visible: bool [B or 1, 1, T, S]."""
        rule = {"causal": self.causal, "window": self.window, "sinks": self.sinks}
        visible = allowed(q.index, k.index, q.segments, k.segments, k_rank=k.rank, **rule)
        return visible[:, None]


class Call(NamedTuple):
    """What an engine runs; see `reference` for the shapes.

    Every engine takes the first five. The others are in use in few calls: an engine is given those
    that are (`options`), by name.
    """

    spec: AttentionSpec
    terms: tuple
    q: Side
    k: Side
    v: Any
    mask: Any = None  # of all pairs, as booleans
    bias: Any = None  # of all pairs
    dropout: Dropout | None = None

    @property
    def operands(self) -> tuple[AttentionSpec, tuple, Side, Side, Any]:
        """What every engine takes."""
        return self[:5]

    @property
    def options(self) -> dict[str, Any]:
        """What is in use of the others."""
        named = {"mask": self.mask, "bias": self.bias, "dropout": self.dropout}
        return {name: x for name, x in named.items() if x is not None}
