"""Axial 2-D RoPE: rows turn some channels, columns the others (Heo et al., arXiv 2403.13298).

    angle_i = row · θ_i for the first pairs, column · θ_i for the rest,    θ_i = base^(-2i/channels)

Two conventions of positions: the patch's index (Qwen2-VL, arXiv 2409.12191; Pixtral, arXiv
2410.07073), or its centre on an image from -1 to 1, times 2π (DINOv3, arXiv 2508.10104, base 100).
`positions.grid` gives both; `positions.augmented` shifts, stretches and rescales them, as DINOv3
does in training.

Two conventions of frequencies: "shared", a series from 1 down for each axis (Qwen2-VL, DINOv3); or
"alternating", one series over all channels dealt to rows and columns in turn (Pixtral).
`rope_nd.frequencies` has both, for any number of axes.
"""

import dataclasses
from typing import ClassVar

from pe_jax.config_fields import above_field
from pe_jax.encodings import rope_nd
from pe_jax.validation import require

SPECTRA = rope_nd.SPECTRA
frequencies = rope_nd.frequencies


@dataclasses.dataclass(frozen=True)
class RoPE2D(rope_nd.RoPEND):
    """Rotates q and k by row and column; `channels` of a head for each, by default half.

    Channels beyond `channels` pass unchanged. `normalized` is for positions in [-1, 1]. `scaling`
    (one of `rope_scaling`) is one for both axes, or one or None for each.
    """

    axes: ClassVar[int] = 2  # pyright: ignore[reportIncompatibleVariableOverride]
    base: float = above_field(1e4, 1)

    def check(self, dims):
        """The channels must fit the head; halves of it must be even."""
        fix = "two axes rotate pairs: use a multiple of 4, or set channels"
        ok = self.channels is not None or dims.head_dim % 4 == 0
        require(ok, "head_dim", dims.head_dim, fix)
        super().check(dims)
