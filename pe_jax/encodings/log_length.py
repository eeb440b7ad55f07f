"""Learned temperature by the logarithm of the length: Nakanishi, "SSMax", arXiv 2501.19399.

    q ← q · (s_h·ln(n + 1) + b_h)

A softmax over n + 1 keys flattens as n grows, unless scores grow with ln(n + 1), as s_h lets them;
SSMax itself is b_h = 0. Mistral Large 4 (released in transformers) learns both for each head of
each layer, with learned RoPE in three layers of four: `(lerope+log_length)*3,log_length`. SWAN-GPT
(arXiv 2504.08719) scales scores by a logarithm too. It begins as in Mistral Large 4: s = 0 and
b = 1, which has no effect. `temperature` has forms that are not learned.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics.arrays import align
from pe_jax.numerics.position_arrays import as_positions


def temperature(scale: jax.Array, bias: jax.Array, positions) -> jax.Array:
    """s_h·ln(position + 1) + b_h, b_h before position 0: float32 [..., T, H].

    Args:
      scale: s, float32 [H].
      bias: b, float32 [H].
      positions: integers [T] or [..., T].

    Raises:
      TypeError: positions that are not integers.
    """
    positions = as_positions(positions)
    length = jnp.log1p(jnp.maximum(positions, 0).astype(jnp.float32))[..., None]
    return align(scale, length) * length + align(bias, length)


@dataclasses.dataclass(frozen=True)
class LogLength(Encoding):
    """Sharpens queries by the logarithm of their position, with learned numbers per head."""

    claims = Claims(absolute_rotation=True)

    def init_layer(self, key, dims):
        """s [H] zeros, b [H] ones."""
        return {
            "scale": jnp.zeros(dims.heads, jnp.float32),
            "bias": jnp.ones(dims.heads, jnp.float32),
        }

    def terms(self, params, dims):
        return (Rotation(sharpen, None, params.layer, heads=0),)


def sharpen(arrays, q, positions):
    """q · (s_h·ln(position + 1) + b_h): [..., T, H, E]."""
    factor = align(temperature(**arrays, positions=positions)[..., None], q)
    return (q.astype(jnp.float32) * factor).astype(q.dtype)
