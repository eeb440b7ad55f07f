"""Sinusoids on two axes: He et al., "Masked Autoencoders…", arXiv 2111.06377, App. A.1.

    x ← x + [sinusoid(row) ‖ sinusoid(column)]

Each axis has half of the channels: all sines, then all cosines, at the frequencies of "Attention Is
All You Need" over that half. MAE's released weights have the columns first: swap the halves of its
table.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, one_of_field
from pe_jax.encodings import sinusoidal
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Input
from pe_jax.numerics.position_arrays import on_axes
from pe_jax.validation import require


def sinusoid_2d(positions, dim: int, base: float = 1e4, layout: str = "concatenated") -> jax.Array:
    """`sinusoidal.sinusoid` of each axis, side by side: float32 [..., dim] for [..., A].

    Args:
      positions: integers or float32 [..., A].
      dim: channels, a multiple of 2A.
      base: > 1.
      layout: within each axis; "concatenated" is MAE's.

    Raises:
      ValueError: `dim` that leaves an axis an odd number of channels, and what `sinusoid` raises.
      TypeError: half-precision positions.
    """
    axes = on_axes(positions, np.shape(positions)[-1])
    fix = f"pass a multiple of {2 * len(axes)}"
    require(dim % (2 * len(axes)) == 0, "dim", dim, fix)
    channels = dim // len(axes)
    tables = [sinusoidal.sinusoid(axis, channels, base, layout) for axis in axes]
    return jnp.concatenate(tables, axis=-1)


@dataclasses.dataclass(frozen=True)
class Sinusoidal2D(Encoding):
    """Adds sinusoids of the row and of the column, half of the channels each."""

    base: float = above_field(1e4, 1)
    layout: str = one_of_field("concatenated", sinusoidal.LAYOUTS)

    claims = Claims(axes=2, real_positions=True)
    multiples = (("width", 4, "two axes of sine and cosine need a multiple of 4"),)

    def inputs(self, shared):
        return (Input(self.waves),)

    def waves(self, _, positions, width):
        """[sinusoid(row) ‖ sinusoid(column)]: [..., D]."""
        on_axes(positions, 2)
        return sinusoid_2d(positions, width, self.base, self.layout)
