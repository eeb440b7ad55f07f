"""Partial key offset: modded-nanogpt, https://github.com/KellerJordan/modded-nanogpt/pull/169.

    k'_t = (k_t in the channels that turn, k_{t-1} in the others)

Where a query looks for the token after one that it knows, the key before says which that is: one
layer then finds what came next last time (an induction head), for which attention needs two. In the
record long windows alone have it, with RoPE that turns half of the pairs:

    rope(fraction=0.5)*3,rope(fraction=0.5)+key_offset        every fourth layer (marin, #4802)

The key before is that of the token before it in the same document; the first token of a document
keeps its own, as in marin since #5801: shifting whole rows shows each document the last key of the
one before. Keys are shifted before they are rotated, which is the same in channels that do not turn
and leaves a full rotation at the key's own position. A key of a window or chunk has channels of the
token before, be that one visible or not.
"""

import dataclasses

from pe_jax.config_fields import flag_field
from pe_jax.encodings import rope
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import KeyOffset
from pe_jax.validation import require


@dataclasses.dataclass(frozen=True)
class PartialKeyOffset(Encoding):
    """The last `fraction` of a key's channels are those of the key before it.

    With `halves` they are the last of each half of a head: the pairs that do not turn in
    half-truncated RoPE, `rope(scaling=proportional(fraction=0.5))`, as modded-nanogpt has them.
    """

    fraction: float = rope.fraction_field(0.5)
    halves: bool = flag_field(False)

    def check(self, dims):
        """The channels must be whole, and with `halves` the same number in each."""
        self.channels(dims.head_dim)

    def channels(self, head_dim: int) -> tuple[int, ...]:
        """Which channels are offset."""
        parts = 1 + self.halves
        size, width = round(self.fraction * head_dim / parts, 6), head_dim // parts
        fix = f"it leaves {size:g} of {head_dim / parts:g} channels; choose one that leaves whole"
        require(size == int(size) > 0 and head_dim % parts == 0, "fraction", self.fraction, fix)
        ends = (width * (part + 1) for part in range(parts))
        return tuple(channel for end in ends for channel in range(end - int(size), end))

    def terms(self, params, dims):
        return (KeyOffset(self.channels(dims.head_dim)),)
