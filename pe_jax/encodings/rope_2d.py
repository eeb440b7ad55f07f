"""Axial 2-D RoPE: rows turn some channels, columns the others (Heo et al., arXiv 2403.13298).

    angle_i = row · θ_i for the first pairs, column · θ_i for the rest,    θ_i = base^(-2i/channels)

Two conventions of positions: the patch's index (Qwen2-VL, arXiv 2409.12191; Pixtral, arXiv
2410.07073), or its centre on an image from -1 to 1, times 2π (DINOv3, arXiv 2508.10104, base 100).
`positions.grid` gives both.

Two of the frequencies: "shared", a series from 1 down for each axis (Qwen2-VL, DINOv3); or
"alternating", one series over all channels dealt to rows and columns in turn (Pixtral).
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings import rope
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles
from pe_jax.validation import is_int, is_real, require, require_bool, set_tuple

SPECTRA = ("shared", "alternating")


def frequencies(
    channels: Sequence[int],
    base: float = 1e4,
    spectrum: str = "shared",
    normalized: bool = False,
) -> jax.Array:
    """Radians per unit of each axis, for `rope.rotate`: float32 [A, F], 2F = sum(channels).

    Args:
      channels: even numbers, how many channels of a head each axis turns.
      base: > 1.
      spectrum: "shared" or "alternating" (the same number of channels for each axis).
      normalized: positions lie in [-1, 1] and are multiplied by 2π.

    Raises:
      ValueError: an odd or non-positive number of channels; `base` ≤ 1; an unknown spectrum;
        "alternating" with different numbers of channels.
    """
    require(spectrum in SPECTRA, "spectrum", spectrum, f"choose one of {', '.join(SPECTRA)}")
    ok = isinstance(channels, Sequence) and len(channels) > 0
    ok = ok and all(is_int(n, 2) and n % 2 == 0 for n in channels)
    require(ok, "channels", channels, "pass an even number of channels for each axis")
    require_bool("normalized", normalized)
    if spectrum == "alternating":
        same = len(set(channels)) == 1
        require(same, "channels", channels, "alternating needs the same number for each axis")
        whole = angles.geometric(sum(channels), base)
        series = [whole[a :: len(channels)] for a in range(len(channels))]
    else:
        series = [angles.geometric(n, base) for n in channels]
    table = np.zeros((len(series), sum(map(len, series))))
    for axis, theta in enumerate(series):
        start = sum(map(len, series[:axis]))
        table[axis, start : start + len(theta)] = theta
    return jnp.asarray(table * (2 * np.pi if normalized else 1), jnp.float32)


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
        set_tuple(self, "channels")
        channels, layouts = self.channels, rope.LAYOUTS
        ok = channels is None or (
            isinstance(channels, tuple)
            and len(channels) == 2
            and all(is_int(n, 2) and n % 2 == 0 for n in channels)
        )
        fix = "pass two even numbers (rows, columns), or None for halves"
        require(ok, "channels", channels, fix)
        require(self.spectrum in SPECTRA, "spectrum", self.spectrum, f"choose one of {SPECTRA}")
        same = self.spectrum == "shared" or channels is None or channels[0] == channels[1]
        require(same, "channels", channels, "alternating needs the same number for each axis")
        require_bool("normalized", self.normalized)
        require(self.layout in layouts, "layout", self.layout, f"choose one of {layouts}")

    def check(self, dims):
        """The channels must fit the head; halves of it must be even."""
        self._channels(dims.head_dim)

    def _channels(self, head_dim: int) -> tuple[int, int]:
        if self.channels is None:
            fix = "two axes rotate pairs: use a multiple of 4, or set channels"
            require(head_dim % 4 == 0, "head_dim", head_dim, fix)
        rows, columns = self.channels or (head_dim // 2,) * 2
        fix = f"their sum exceeds the head's {head_dim}"
        require(rows + columns <= head_dim, "channels", (rows, columns), fix)
        return rows, columns

    def _frequencies(self, head_dim: int) -> jax.Array:
        channels = self._channels(head_dim)
        return frequencies(channels, self.base, self.spectrum, self.normalized)

    def terms(self, params, dims):
        return (Rotation(self.rotate, self.rotate),)

    def rotate(self, _, x, positions):
        """R_(row, column) x: [..., T, H, E]."""
        return rope.rotate(x, positions, self._frequencies(x.shape[-1]), self.layout)
