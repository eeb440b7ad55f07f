"""Sinusoidal encoding: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, §3.5.

    PE(pos, 2i)   = sin(pos · w_i)
    PE(pos, 2i+1) = cos(pos · w_i)        w_i = 10000^(-2i/d)

The paper interleaves sines and cosines. Many libraries concatenate them instead; tensor2tensor
(and fairseq after it) also divides 2i by d - 2, so that its slowest wavelength is 2π·base exactly.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import above_field, checked, one_of_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Input
from pe_jax.numerics import angles
from pe_jax.validation import is_real, python_ints, require

LAYOUTS = ("interleaved", "concatenated", "tensor2tensor")


@python_ints
def sinusoid(positions, dim: int, base: float = 1e4, layout: str = "interleaved") -> jax.Array:
    """Sinusoids of the positions: float32 [..., dim] for positions [...].

    Args:
      positions: integers, or float32 (the curve between them); any shape, any sign.
      dim: even number of channels.
      base: > 1.
      layout: "interleaved" (sin, cos, sin, cos, …: the paper's), "concatenated" (all sines, then
        all cosines) or "tensor2tensor" (concatenated, with w_i = base^(-i/(d/2 - 1))).

    Raises:
      ValueError: odd `dim`, `base` ≤ 1, unknown `layout`, |position| ≥ 2**24.
      TypeError: half-precision positions.
    """
    require(layout in LAYOUTS, "layout", layout, f"choose one of {', '.join(LAYOUTS)}")
    denominator = max(dim - 2, 1) if layout == "tensor2tensor" else None
    angle = angles.exact_angles(positions, angles.geometric(dim, base, denominator))
    if layout == "interleaved":
        return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(*angle.shape[:-1], dim)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Encoding):
    """Adds `sinusoid(positions)` to the embeddings, multiplied by `amplitude`.

    The paper multiplies the embeddings by sqrt(d) instead (§3.4); a model that does not may lower
    the amplitude to keep the same proportion.
    """

    base: float = above_field(1e4, 1)
    layout: str = one_of_field("interleaved", LAYOUTS)
    amplitude: float = checked(1.0, "pass a finite number", is_real)

    claims = Claims(real_positions=True)
    multiples = (("width", 2, "sinusoidal needs an even model width"),)

    def inputs(self, shared):
        return (Input(self.waves),)

    def waves(self, _, positions, width):
        """Amplitude · PE: [..., D]."""
        return self.amplitude * sinusoid(positions, width, self.base, self.layout)
