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

from pe_jax.encodings import rope_nd
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.validation import is_real, require

SPECTRA = rope_nd.SPECTRA
frequencies = rope_nd.frequencies


@dataclasses.dataclass(frozen=True)
class RoPE2D(Encoding):
    """Rotates q and k by row and column; `channels` of a head for each, by default half.

    Channels beyond `channels` pass unchanged. `normalized` is for positions in [-1, 1].
    """

    base: float = 1e4
    channels: tuple[int, int] | None = None
    spectrum: str = "shared"
    normalized: bool = False
    layout: str = "half"

    claims = Claims(axes=2, real_positions=True)

    def __post_init__(self):
        require(is_real(self.base) and self.base > 1, "base", self.base, "pass a number above 1")
        self._axial()  # checks the others

    def _axial(self) -> rope_nd.RoPEND:
        """The same scheme as a `RoPEND`."""
        return rope_nd.RoPEND(2, *dataclasses.astuple(self))

    def check(self, dims):
        """The channels must fit the head; halves of it must be even."""
        fix = "two axes rotate pairs: use a multiple of 4, or set channels"
        ok = self.channels is not None or dims.head_dim % 4 == 0
        require(ok, "head_dim", dims.head_dim, fix)
        self._axial().check(dims)

    def terms(self, params, dims):
        return self._axial().terms(params, dims)
