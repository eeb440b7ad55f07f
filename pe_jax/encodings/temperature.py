"""Attention temperature by position: Llama 4, on layers without RoPE (after arXiv 2501.19399).

    q ← q · (1 + a·ln(1 + floor((position + 1)/f)))

A softmax over many keys flattens; queries at large positions are sharpened. Llama 4 has three
layers with RoPE, which see chunks of the text, to one without that sees all of it:
`rope(layout='interleaved')@chunk=8192*3,temperature`. SmolLM3 leaves RoPE out of every fourth layer
too, without a temperature: `rope*3,nope`. Ministral 3 counts from `offset` 0 and has RoPE in the
same layer: `rope+temperature(floor_scale=16384, offset=0)`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import checked, int_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics.arrays import align
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.validation import is_int, is_real, python_ints, require

IN_TOKENS = "pass an integer of at least 1, in tokens"


@python_ints
def temperature(
    positions, attn_scale: float = 0.1, floor_scale: int = 8192, offset: int = 1
) -> jax.Array:
    """1 + a·ln(1 + floor((position + offset)/f)), 1 before 0: float32, the shape of `positions`.

    Args:
      positions: integers of any shape.
      attn_scale: a.
      floor_scale: f, in tokens: queries before it keep their size.
      offset: what is added to the position: 1 in Llama 4, 0 in Ministral 3.

    Raises:
      ValueError: `floor_scale` is not a positive integer.
      TypeError: positions that are not integers.
    """
    require(is_int(floor_scale, 1), "floor_scale", floor_scale, IN_TOKENS)
    positions = as_positions(positions)
    steps = positions // floor_scale + (positions % floor_scale + offset) // floor_scale
    return 1 + attn_scale * jnp.log1p(jnp.maximum(steps, 0).astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class Temperature(Encoding):
    """Sharpens late queries; keys are unchanged."""

    attn_scale: float = checked(0.1, "pass a finite number", is_real)
    floor_scale: int = checked(8192, IN_TOKENS, lambda v: is_int(v, 1))
    offset: int = int_field(1, 0)

    claims = Claims(absolute_rotation=True)

    def terms(self, params, dims):
        return (Rotation(self.sharpen, None),)

    def sharpen(self, _, q, positions):
        """q · temperature(position)."""
        factor = temperature(positions, self.attn_scale, self.floor_scale, self.offset)
        factor = align(factor[..., None, None], q)
        return (q.astype(jnp.float32) * factor).astype(q.dtype)
