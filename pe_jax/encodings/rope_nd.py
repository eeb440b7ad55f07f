"""Axial RoPE on any number of axes: each turns its own channels (Wan, arXiv 2503.20314).

    angle_i = position[axis] · θ_i for the channels of that axis,    θ_i = base^(-2i/channels)

Video has (frame, row, column); `positions.multimodal([(frames, height, width)])` counts them. Heads
of released models, all in the layout "interleaved" unless noted:

    Wan 2.1             channels=(44, 42, 42)
    CogVideoX           channels=(16, 24, 24)
    HunyuanVideo        channels=(16, 56, 56), base=256.0
    MiniMax-M3 vision   channels=None, layout="half": the rest of a head is unchanged

"shared" spectra are a series from 1 down for each axis, as in these; "alternating" is one series
over all channels dealt to the axes in turn. `rope_2d` has two axes; M-RoPE (`mrope`) divides one
series into a section for each axis.

Longer videos and larger images are a matter of single axes. RIFLEx (arXiv 2502.15894) slows one
frequency of time; on rows and columns it would do harm. HunyuanVideo, and Wan 2.1 as others extend
it, three times as long:

    scaling=(riflex(factor=3, original_length=33, intrinsic=4), None, None)
    scaling=(riflex(factor=3, original_length=21, intrinsic=6), None, None)

DyPE (arXiv 2510.20766, as released, with NTK) has another scaling in each step of denoising, at
time t from 1 (noise) to 0, for s times as many rows and columns as trained on:

    scaling=(None, NTK(s ** (2 * t**2)), NTK(s ** (2 * t**2)))

Pass each step's `frequencies` to a compiled function: a field of an encoding would compile it anew.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import checked, flag_field, one_of_field
from pe_jax.encodings import rope
from pe_jax.encodings.base import OnAxes
from pe_jax.encodings.scaling.base import Scaling, by_axis, require_within
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles
from pe_jax.validation import ConfigError, is_int, is_real, python_ints, require, require_bool

SPECTRA = ("shared", "alternating")
Scalings = Scaling | Sequence[Scaling | None] | None


@python_ints
def frequencies(
    channels: Sequence[int],
    base: float | Sequence[float] = 1e4,
    spectrum: str = "shared",
    normalized: bool = False,
    scaling: Scalings = None,
) -> jax.Array:
    """Radians per unit of each axis, for `rope.rotate`: float32 [A, F], 2F = sum(channels).

    Args:
      channels: even numbers, how many channels of a head each axis turns.
      base: > 1, or one for each axis.
      spectrum: "shared", or "alternating" (the same number of channels for each axis, one base).
      normalized: positions lie in [-1, 1] and are multiplied by 2π.
      scaling: one of `rope_scaling` for all axes, or one or None for each: of the frequencies of
        that axis' channels ("alternating": of the one series). `attention_factor` has the factors.

    Raises:
      ValueError: an odd or non-positive number of channels; a base ≤ 1, or not as many as axes; an
        unknown spectrum; "alternating" with different numbers of channels, several bases or
        scalings; scalings for other axes or channels, without a length that they depend on, or of
        normalized positions.
    """
    table = _table(channels, base, spectrum, normalized, scaling)
    return jnp.asarray(table, jnp.float32)


def _table(channels: Sequence[int], base, spectrum, normalized, scaling) -> np.ndarray:
    """`frequencies` in float64, on the host."""
    bases, scalings = _each(channels, base, spectrum, normalized, scaling)
    if spectrum == "alternating":
        whole = _series(sum(channels), bases[0], scalings[0])
        series = [whole[a :: len(channels)] for a in range(len(channels))]
    else:
        series = list(map(_series, channels, bases, scalings))
    table = np.zeros((len(series), sum(map(len, series))))
    for axis, theta in enumerate(series):
        start = sum(map(len, series[:axis]))
        table[axis, start : start + len(theta)] = theta
    return table * (2 * np.pi if normalized else 1)


def attention_factor(channels: Sequence[int], scaling: Scalings) -> float | jax.Array:
    """What `rope.rotate` takes with these `frequencies`: float32 [F], or one number for all.

    Raises:
      ValueError: scalings for other axes, or without a length that they depend on.
    """
    factors = [1.0 if x is None else x.attention_factor for x in by_axis(scaling, len(channels))]
    if len(set(factors)) == 1:
        return factors[0]
    return jnp.asarray(np.repeat(factors, [n // 2 for n in channels]), jnp.float32)


def _each(channels: Sequence[int], base, spectrum: str, normalized: bool, scaling: Scalings):
    """The base and the scaling of each axis, with all checks that need no head."""
    require(spectrum in SPECTRA, "spectrum", spectrum, f"choose one of {', '.join(SPECTRA)}")
    require_bool("normalized", normalized)
    ok = isinstance(channels, Sequence) and len(channels) > 0
    ok = ok and all(is_int(n, 2) and n % 2 == 0 for n in channels)
    require(ok, "channels", channels, "pass an even number of channels for each axis")
    bases = tuple(base) if isinstance(base, Sequence) else (base,) * len(channels)
    ok = len(bases) == len(channels)
    require(ok, "base", base, f"pass one number, or one for each of {len(channels)} axes")
    scalings = by_axis(scaling, len(channels))
    fix = "normalized positions do not grow with the image; pass None"
    require(not normalized or {*scalings} == {None}, "scaling", scaling, fix)
    if spectrum == "alternating":
        same = len(set(channels)) == 1
        require(same, "channels", channels, "alternating needs the same number for each axis")
        require(len(set(bases)) == 1, "base", base, "alternating needs one base for all axes")
        same = len(set(scalings)) == 1
        require(same, "scaling", scaling, "alternating needs one scaling for all axes")
    return bases, scalings


def _series(channels: int, base: float, scaling: Scaling | None) -> np.ndarray:
    """The frequencies of these channels; errors of a scaling say how many they are."""
    theta = angles.geometric(channels, base)
    try:
        return rope.scaled(theta, base, scaling)
    except ConfigError as error:
        raise ConfigError(f"scaling of {channels} channels: {error}") from error


@dataclasses.dataclass(frozen=True)
class RoPEND(OnAxes):
    """Rotates q and k by `axes` numbers of a position, each with its own `channels` of a head.

    `channels` None gives each axis the same even number, as many as fit; channels beyond are
    unchanged. `base` may be one for each axis. `normalized` is for positions in [-1, 1]. `scaling`
    (one of `rope_scaling`) is one for all axes, or one or None for each.
    """

    axes: int = checked(3, "pass an integer of at least 2, or rope", lambda v: is_int(v, 2))
    base: float | tuple[float, ...] = 1e4
    channels: tuple[int, ...] | None = None
    spectrum: str = "shared"
    normalized: bool = flag_field(False)
    layout: str = one_of_field("half", rope.LAYOUTS)
    scaling: Scaling | tuple[Scaling | None, ...] | None = None

    def __post_init__(self):
        bases = self.base if isinstance(self.base, tuple) else (self.base,) * self.axes
        ok = len(bases) == self.axes and all(is_real(b) and b > 1 for b in bases)
        require(ok, "base", self.base, f"pass a number above 1, or {self.axes} of them")
        channels = self.channels
        ok = channels is None or (
            isinstance(channels, tuple)
            and len(channels) == self.axes
            and all(is_int(n, 2) and n % 2 == 0 for n in channels)
        )
        fix = f"pass an even number for each of {self.axes} axes, or None for equal parts"
        require(ok, "channels", channels, fix)
        _each(channels or (2,) * self.axes, *self._settings)  # checks what is left

    def check(self, dims):
        """The channels must fit the head, with a pair for each axis, and the scalings them."""
        _table(self._channels(dims.head_dim), *self._settings)

    def _channels(self, head_dim: int) -> tuple[int, ...]:
        fix = f"{self.axes} axes rotate pairs: use at least {2 * self.axes} channels"
        require(head_dim >= 2 * self.axes, "head_dim", head_dim, fix)
        channels = self.channels or (head_dim // (2 * self.axes) * 2,) * self.axes
        fix = f"their sum exceeds the head's {head_dim}"
        require(sum(channels) <= head_dim, "channels", channels, fix)
        return channels

    @property
    def _settings(self):
        return self.base, self.spectrum, self.normalized, self.scaling

    def terms(self, params, dims):
        return (Rotation(self.rotate, self.rotate),)

    def rotate(self, _, x, positions):
        """R_position x: [..., T, H, E]."""
        channels = self._channels(x.shape[-1])
        require_within(by_axis(self.scaling, self.axes), positions)
        theta = frequencies(channels, *self._settings)
        factor = attention_factor(channels, self.scaling)
        return rope.rotate(x, positions, theta, self.layout, factor)
