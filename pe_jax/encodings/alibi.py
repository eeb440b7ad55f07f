"""ALiBi: Press et al., "Train Short, Test Long", arXiv 2108.12409, §3.

    softmax(q·k/sqrt(E) - m_h·|distance|),    m_h = 2^(-8h/H),  h = 1 … H

Where H is not a power of two: the slopes of the next lower power, then every other one of the power
above it (the authors' code). Under a causal mask |distance| = distance; without one, the bias is
symmetric, as the authors advise for encoders.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, flag_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import DistanceFormula, Term
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.validation import is_int, is_real, python_ints, require


@python_ints
def slopes(num_heads: int, bias_max: float = 8.0) -> jax.Array:
    """The slope of each head: float32 [H].

    Args:
      num_heads: H.
      bias_max: the last of 2^h heads has the slope 2^-bias_max (MPT's `alibi_bias_max`).

    Raises:
      ValueError: `num_heads` is not a positive integer, `bias_max` not a number above 0.
    """
    require(is_int(num_heads, 1), "num_heads", num_heads, "pass an integer of at least 1")
    require(is_real(bias_max) and bias_max > 0, "bias_max", bias_max, "pass a number above 0")
    lower = 2 ** (num_heads.bit_length() - 1)
    first = 2.0 ** (-bias_max * np.arange(1, lower + 1) / lower)
    more = 2.0 ** (-bias_max * np.arange(1, 2 * (num_heads - lower), 2) / (2 * lower))
    return jnp.asarray(np.concatenate([first, more]), jnp.float32)


def bias(distance, num_heads: int) -> jax.Array:
    """-m_h·|distance|: float32 [H, *n] for distances [*n] (`q_pos - k_pos`, integer or float32).

    Raises:
      ValueError: `num_heads` is not a positive integer.
      TypeError: half-precision distances.
    """
    distance = as_positions(distance, real=True, name="distance")
    slope = slopes(num_heads).reshape(-1, *(1,) * distance.ndim)
    return -slope * jnp.abs(distance)[None].astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class ALiBi(Encoding):
    """Subtracts a penalty that grows with the distance, at a rate fixed for each head.

    `bias_max` is MPT's `alibi_bias_max`; `scaled` divides the penalty by sqrt(E) too (Falcon).
    """

    bias_max: float = above_field(8.0, 0)
    scaled: bool = flag_field(False)

    claims = Claims(real_positions=True)

    def terms(self, params, dims) -> tuple[Term, ...]:
        slope = slopes(dims.heads, self.bias_max)[:, None]
        slope = slope * dims.head_dim**-0.5 if self.scaled else slope
        return (DistanceFormula(penalty, slope, decays=True, linear=True),)


def penalty(numbers, distance):
    """-m·|d| for slopes m = numbers[0], of any shapes that broadcast."""
    return -numbers[0] * jnp.abs(distance).astype(jnp.float32)
