"""Sandwich: Chi et al., "Dissecting Transformer Length Extrapolation…", arXiv 2212.10356.

    b_h(d) = (H/8h) · Σ_i cos(d·w_i),    w_i = base^(-2i/d̄),  i = 0 … d̄/2 - 1,   h = 1 … H

The sum is the dot product of two sinusoidal encodings of width d̄ = 128, the only hyperparameter;
8h/H is the paper's compression ratio: the later a head, the weaker its bias. Added after the
1/sqrt(E) scaling, as ALiBi's bias is; nothing is learned. Overall it falls like a logarithm, but as
a sum of waves it also rises, so it does not claim `decays`.

NVIDIA's NeMo takes i = 1 … d̄/2, and subtracts d̄/2 from the sum (which cancels in the softmax).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, checked
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import DistanceBias
from pe_jax.numerics import angles
from pe_jax.validation import is_int, python_ints, require


def bias(distance, num_heads: int, width: int = 128, base: float = 1e4) -> jax.Array:
    """Σ_i cos(d·w_i)/(8h/H): float32 [H, *n] for distances [*n] (integer or float32).

    Args:
      distance: `q_pos - k_pos`, any shape.
      num_heads: H.
      width: d̄, an even number: twice the number of waves.
      base: > 1.

    Raises:
      ValueError: `num_heads` not positive; odd `width`; `base` ≤ 1; |distance| ≥ 2**24.
      TypeError: half-precision distances.
    """
    return weighted(strengths(num_heads), distance, width, base)


def weighted(strengths: jax.Array, distance, width: int, base: float) -> jax.Array:
    """The sum of waves times `strengths` [H]: float32 [H, *n] for distances [*n]."""
    waves = jnp.cos(angles.exact_angles(distance, angles.geometric(width, base))).sum(-1)
    return strengths.reshape(-1, *(1,) * waves.ndim) * waves[None]


@python_ints
def strengths(num_heads: int) -> jax.Array:
    """H/8h, by which the sum of waves is multiplied: float32 [H].

    Raises:
      ValueError: `num_heads` is not a positive integer.
    """
    require(is_int(num_heads, 1), "num_heads", num_heads, "pass an integer of at least 1")
    return jnp.asarray(num_heads / (8 * np.arange(1, num_heads + 1)), jnp.float32)


@dataclasses.dataclass(frozen=True)
class Sandwich(Encoding):
    """Adds the dot product of two sinusoidal encodings, at a strength fixed for each head."""

    width: int = checked(
        128, "pass an even integer of at least 2", lambda v: is_int(v, 2) and v % 2 == 0
    )
    base: float = above_field(1e4, 1)

    claims = Claims(real_positions=True)

    def terms(self, params, dims):
        return (DistanceBias(self.bias, strengths(dims.heads)),)

    def bias(self, strengths, distance):
        """Σ_i cos(d·w_i)/(8h/H): [H, *n]."""
        return weighted(strengths, distance, self.width, self.base)
