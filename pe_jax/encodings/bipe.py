"""BiPE: He et al., "Bilevel Positional Encoding", arXiv 2401.16421.

    x_t ← x_t + PE(position of t inside its segment)                       absolute, within
    scores of RoPE or ALiBi at the segments' indices                    relative, between

A segment is a piece of meaning (a sentence, a line), not a packed document. A position is the pair
(index of the segment, position inside it), as `pe_jax.positions.bilevel` counts them. The paper's
absolute half is a learned table; `absolute="sinusoidal"` needs none.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp

from pe_jax.config_fields import above_field, checked, int_field
from pe_jax.encodings.alibi import slopes
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.learned import Learned
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.sinusoidal import Sinusoidal
from pe_jax.encodings.terms import DistanceBias, Rotation

BETWEEN, INSIDE = 0, 1  # the axes of a position


@dataclasses.dataclass(frozen=True)
class BiPE(Encoding):
    """An absolute encoding inside each segment, a relative one between the segments.

    `length` is that of the learned table: the longest segment.
    """

    relative: str = checked("rope", "choose rope or alibi", ("rope", "alibi").__contains__)
    absolute: str = checked(
        "learned", "choose learned or sinusoidal", ("learned", "sinusoidal").__contains__
    )
    length: int = int_field(512, 1)
    base: float = above_field(1e4, 1)

    claims = Claims(axes=2)

    @property
    def _inside(self) -> Encoding:
        return Learned(self.length) if self.absolute == "learned" else Sinusoidal()

    def check(self, dims):
        self._inside.check(dims)
        if self.relative == "rope":
            RoPE(self.base).check(dims)

    def init_shared(self, key, dims):
        """The table [length, D] of positions inside a segment, if learned."""
        return self._inside.init_shared(key, dims)

    def inputs(self, shared):
        return tuple(
            dataclasses.replace(term, fn=Inside(term.fn)) for term in self._inside.inputs(shared)
        )

    def terms(self, params, dims):
        if self.relative == "alibi":
            return (DistanceBias(penalty, slopes(dims.heads)),)
        rotate = Between(RoPE(self.base).rotate)
        return (Rotation(rotate, rotate),)

    def limit(self):
        return self._inside.limit()


@dataclasses.dataclass(frozen=True)
class Inside:
    """The function of an `Input`, at the position inside the segment."""

    fn: Callable

    def __call__(self, arrays, positions, width):
        """[..., D] for positions [..., 2]."""
        return self.fn(arrays, positions[..., INSIDE], width)


@dataclasses.dataclass(frozen=True)
class Between:
    """The function of a `Rotation`, at the index of the segment."""

    fn: Callable

    def __call__(self, arrays, x, positions):
        """x [..., T, H, E], rotated at positions [..., T, 2]."""
        return self.fn(arrays, x, positions[..., BETWEEN])


def penalty(slopes, distance):
    """-m_h·|d| for the distance d in segments: [H, *n] for distances [*n, 2]."""
    size = jnp.abs(distance[..., BETWEEN])[None].astype(jnp.float32)
    return -slopes.reshape(-1, *(1,) * (size.ndim - 1)) * size
