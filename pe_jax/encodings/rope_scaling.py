"""RoPE for longer contexts: functions from RoPE's frequencies θ_i = base^(-2i/d) to others.

    Linear        θ_i / s                        position interpolation, arXiv 2306.15595, eq. 4
    NTK           base → base·s^(d/(d-2))        "NTK-aware": arXiv 2309.00071, §3.1
    DynamicNTK    NTK with s·L/L₀ - (s - 1)      arXiv 2309.00071, §3.3, as in code of that time
    YaRN          fast θ kept, slow θ_i/s        `yarn`
    Llama3        as YaRN, with other bounds     the released code of Llama 3.1
    LongRoPE      θ_i / factor_i, searched       `longrope`
    Proportional  slow θ = 0                     p-RoPE, arXiv 2410.06205
    ClippedRoPE   slow θ tapered to 0            `clipped`
    RIFLEx        one θ_k at most 0.9·2π/(L₀·s)  `riflex`

L₀ is `original_length`, the context trained on, and L the current one. All is float64 on the host.
What the papers leave open (bounds, lengths that decide) is as in Hugging Face transformers.
`RoPE(scaling=YaRN(4.0, 2048))`, in a config `rope(scaling=yarn(factor=4, original_length=2048))`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import REQUIRED, above_field, checked, int_field
from pe_jax.encodings.base import Dims
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.scaling import hugging_face
from pe_jax.encodings.scaling.base import Scaling, length_field, with_length
from pe_jax.encodings.scaling.clipped import ClippedRoPE
from pe_jax.encodings.scaling.longrope import LongRoPE
from pe_jax.encodings.scaling.riflex import RIFLEx
from pe_jax.encodings.scaling.yarn import YaRN
from pe_jax.numerics.arrays import align
from pe_jax.validation import is_int, is_real, python_ints, require, shown


@dataclasses.dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: all frequencies divided by `factor`."""

    factor: float = above_field(REQUIRED, 0)

    def __call__(self, theta, base=None):
        """θ_i / s."""
        return np.asarray(theta, np.float64) / self.factor


def _rebased(theta: np.ndarray, growth: Any) -> Any:
    """θ of the base·growth^(d/(d-2)): the fastest stays, the slowest is divided by `growth`."""
    theta = np.asarray(theta, np.float64)
    dim = 2 * theta.size
    require(dim > 2, "dim", dim, "NTK needs at least 4 rotated channels")
    powers = -np.arange(0, dim, 2) / (dim - 2)
    if not isinstance(growth, jax.Array):
        return theta * growth**powers
    first, power = (align(jnp.asarray(x, jnp.float32), growth) for x in (theta, powers))
    return first * growth**power


@dataclasses.dataclass(frozen=True)
class NTK(Scaling):
    """NTK-aware: a larger base, which divides the slowest frequency by `factor`."""

    factor: float = above_field(REQUIRED, 0)

    def __call__(self, theta, base=None):
        """θ_i · s^(-2i/(d-2))."""
        return _rebased(theta, self.factor)


@dataclasses.dataclass(frozen=True)
class DynamicNTK(Scaling):
    """NTK-aware, by a factor that grows with `length`; unscaled up to `original_length`."""

    factor: float = above_field(REQUIRED, 0)
    original_length: int = int_field(REQUIRED, 1)
    length: int | None = length_field()

    def __call__(self, theta, base=None):
        """NTK by s·L/L₀ - (s - 1), for L of at least L₀."""
        length = max(self.length or 0, self.original_length)
        return _rebased(theta, self._growth(length))

    def _growth(self, length: Any) -> Any:
        return self.factor * length / self.original_length - (self.factor - 1)

    def of_lengths(self, theta, lengths):
        """The same, in float32: within 3e-7 of it."""
        growth = self._growth(jnp.maximum(lengths, self.original_length).astype(jnp.float32))
        return _rebased(theta, growth[..., None])

    at_length = with_length

    def valid_length(self):
        """`length`, at least L₀, up to which nothing is scaled; 0 without a length."""
        return 0 if self.length is None else max(self.length, self.original_length)


@dataclasses.dataclass(frozen=True)
class Llama3(Scaling):
    """Waves that turn `high_freq_factor` times within `original_length` stay; a blend below that.

    Those that turn fewer than `low_freq_factor` times are divided by `factor`. The defaults are
    those of Llama 3.1 (factor 8), which Llama 3.2 shares (factor 32).
    """

    factor: float = above_field(REQUIRED, 0)
    low_freq_factor: float = above_field(1.0, 0)
    high_freq_factor: float = above_field(4.0, 0)
    original_length: int = int_field(8192, 1)

    def __post_init__(self):
        low, high = self.low_freq_factor, self.high_freq_factor
        fix = f"must be at least low_freq_factor={low!r}"
        require(high >= low, "high_freq_factor", high, fix)

    def __call__(self, theta, base=None):
        """keep·θ + (1 - keep)·θ/s."""
        theta = np.asarray(theta, np.float64)
        low, high = self.low_freq_factor, self.high_freq_factor
        turns = self.original_length * theta / (2 * math.pi)
        keep = np.clip((turns - low) / (high - low), 0, 1) if high > low else turns >= low
        return keep * theta + (1 - keep) * theta / self.factor


@dataclasses.dataclass(frozen=True)
class Proportional(Scaling):
    """p-RoPE: the fastest `fraction` of all frequencies stay (divided by `factor`), others are 0.

    Unlike `RoPE.fraction`, which spreads all frequencies over the channels that it rotates.
    """

    fraction: float = checked(
        REQUIRED, "pass a number in [0, 1]", lambda v: is_real(v) and 0 <= v <= 1
    )
    factor: float = above_field(1.0, 0)

    def __call__(self, theta, base=None):
        """θ_i / s for i < fraction·d/2, else 0."""
        theta = np.asarray(theta, np.float64)
        count = int(self.fraction * 2 * theta.size // 2)
        return np.where(np.arange(theta.size) < count, theta / self.factor, 0.0)


SCALINGS: dict[str, type[Scaling]] = {
    "linear": Linear,
    "ntk": NTK,
    "dynamic_ntk": DynamicNTK,
    "yarn": YaRN,
    "llama3": Llama3,
    "longrope": LongRoPE,
    "proportional": Proportional,
    "clipped_rope": ClippedRoPE,
    "riflex": RIFLEx,
}
NOT_IN_CONFIGS = (ClippedRoPE, RIFLEx)  # Hugging Face's rope_types have nothing like these


@python_ints
def from_hf(
    rope_parameters: Mapping[str, Any] | None,
    *,
    head_dim: int,
    max_position_embeddings: int | None = None,
    rope_theta: float | None = None,
    partial_rotary_factor: float | None = None,
    original_max_position_embeddings: int | None = None,
) -> RoPE:
    """RoPE as a Hugging Face config describes it.

    What the dict leaves out is taken from the arguments, which are named as the config's own
    fields: older configs keep the base and the partial factor there. The result is an encoding;
    `.frequencies(head_dim)` and `.attention_factor` are what the function `rope.rotate` needs. For
    "dynamic" and "longrope" they depend on the length of the sequence: call
    `.at_length(total_length)` first, or `.frequencies` raises.

    Args:
      rope_parameters: `config.rope_parameters`, or `config.rope_scaling` of an older one (None:
        plain RoPE). Where layer types have their own (Gemma 3), pass one of them.
      head_dim: E.
      max_position_embeddings: the length that "dynamic" scales from, and that others fall back to.
      rope_theta: the base, unless the dict has one. Neither: 1e4.
      partial_rotary_factor: unless the dict has one. int(E · factor) channels are rotated.
      original_max_position_embeddings: of the config; overrides the dict's, as in transformers.

    Returns:
      A `RoPE` in layout "half"; the dict does not say where a model interleaves (GPT-J, GLM,
      DeepSeek): `dataclasses.replace(encoding, layout="interleaved")`.

    Raises:
      ValueError: an unknown type or key (naming the nearest), a key that is missing, a value out of
        range, an odd number of rotated channels, M-RoPE, a dict of dicts.
    """
    lengths = max_position_embeddings, original_max_position_embeddings
    base, fraction, name, fields = hugging_face.read(
        rope_parameters, head_dim, rope_theta, partial_rotary_factor, *lengths
    )
    scaling = None if name is None else SCALINGS[name](**fields)
    encoding = RoPE(base, fraction, scaling=scaling)
    encoding.check(Dims(head_dim, 1, 1, head_dim))
    return encoding


@python_ints
def to_hf(rope: RoPE, *, head_dim: int) -> dict[str, Any]:
    """The `rope_parameters` that `from_hf` reads as this RoPE.

    The dict has no place for the layout, nor, for a dynamic NTK, for the length that it scales
    from: that is the config's `max_position_embeddings`.

    Args:
      rope: the encoding to write.
      head_dim: E.

    Raises:
      ValueError: a scaling that is none of `SCALINGS`, or that configs have no name for.
    """
    if type(rope) is not RoPE:  # those that derive from it have more than a config says
        raise TypeError(f"rope={shown(rope)}: pass a RoPE, what pe_jax.make('rope') gives")
    require(is_int(head_dim, 1), "head_dim", head_dim, "pass the width of a head")
    names = {kind: name for name, kind in SCALINGS.items() if kind not in NOT_IN_CONFIGS}
    ok = rope.scaling is None or type(rope.scaling) in names
    require(ok, "scaling", rope.scaling, f"configs have {', '.join(names.values())}")
    name = None if rope.scaling is None else names[type(rope.scaling)]
    return hugging_face.write(rope, name, head_dim)
