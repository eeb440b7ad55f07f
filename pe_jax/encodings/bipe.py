"""BiPE: He et al., "Bilevel Positional Encoding", arXiv 2401.16421.

    x_t ← x_t + PE(place of t inside its segment)                       absolute, within
    scores as RoPE or ALiBi have them, of the segments' indices         relative, between

A segment is a piece of meaning (a sentence, a line), not a packed document. A position is the pair
(index of the segment, place inside it), as `pe_jax.positions.bilevel` counts them. The paper's
absolute half is a learned table; sinusoids of the place need no table.
"""

import dataclasses

from pe_jax.encodings.alibi import ALiBi
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.learned import Learned
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.sinusoidal import Sinusoidal
from pe_jax.validation import is_int, require

BETWEEN, INSIDE = 0, 1  # the axes of a position


@dataclasses.dataclass(frozen=True)
class BiPE(Encoding):
    """An absolute encoding inside each segment, a relative one between the segments.

    `length` is that of the learned table: the longest segment.
    """

    relative: str = "rope"
    absolute: str = "learned"
    length: int = 512
    base: float = 1e4

    axes = 2

    def __post_init__(self):
        for field, known in (
            ("relative", ("rope", "alibi")),
            ("absolute", ("learned", "sinusoidal")),
        ):
            value = getattr(self, field)
            require(value in known, field, value, f"choose {' or '.join(known)}")
        require(is_int(self.length, 1), "length", self.length, "pass an integer of at least 1")
        RoPE(self.base)  # raises where the base is none

    @property
    def _inside(self) -> Encoding:
        return Learned(self.length) if self.absolute == "learned" else Sinusoidal()

    @property
    def _between(self) -> Encoding:
        return RoPE(self.base) if self.relative == "rope" else ALiBi()

    def overrides(self, slot):
        """Whether one of the two uses the slot."""
        return self._inside.overrides(slot) or self._between.overrides(slot)

    def check(self, dims):
        """Checks both."""
        self._inside.check(dims)
        self._between.check(dims)

    def init_shared(self, key, dims):
        """The table [length, D] of the places, if learned."""
        return self._inside.init_shared(key, dims)

    def embed(self, params, x, positions):
        """X + PE(place)."""
        return self._inside.embed(params, x, positions[..., INSIDE])

    def rotate_q(self, params, q, positions):
        """RoPE by the segment's index."""
        return self._between.rotate_q(params, q, positions[..., BETWEEN])

    def rotate_k(self, params, k, positions):
        """RoPE by the segment's index."""
        return self._between.rotate_k(params, k, positions[..., BETWEEN])

    def distance_bias(self, params, distance, dims):
        """ALiBi of the segments between."""
        return self._between.distance_bias(params, distance[..., BETWEEN], dims)

    def limit(self):
        """The table's length, for the places."""
        return self._inside.limit()
