"""Frequencies and angles, shared by every scheme that is made of sines.

Frequencies are computed on the host in float64 and enter programs as float32 constants, so eager,
jitted and sharded runs see the same numbers. Angles are float32 whatever the activations are, and
never a matmul (TF32 is wrong from position 2,049). An angle errs by at most 2⁻²³·|position|
radians (frequencies ≤ 1): 1e-4 at position 1,000 and 0.12 at 10⁶, in every float32 library.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import positions as pos
from pe_jax.encodings.base import is_int, is_real, require


def geometric(dim: int, base: float = 1e4, denominator: float | None = None) -> np.ndarray:
    """`base^(-2i/dim)` for i < dim/2: float64 [dim/2], in radians per position.

    Args:
      dim: an even number of channels.
      base: > 1; the slowest wavelength is near 2π·base.
      denominator: what 2i is divided by instead of `dim`.

    Raises:
      ValueError: odd or non-positive `dim`; `base` ≤ 1 or not finite.
    """
    require(is_int(dim, 1) and dim % 2 == 0, "dim", dim, "pass an even number of channels")
    require(is_real(base) and base > 1, "base", base, "pass a finite number above 1, such as 1e4")
    return float(base) ** (-np.arange(0, dim, 2, dtype=np.float64) / (denominator or dim))


def angles(positions, frequencies) -> jax.Array:
    """Position × frequency: float32 [..., dim/2] for positions [...].

    Raises:
      TypeError: half-precision positions.
      ValueError: a known position that is not finite, or not exact in float32 (≥ 2**24).
    """
    positions = pos.as_positions(positions, real=True)
    pos.check_exact(positions)
    return positions.astype(jnp.float32)[..., None] * jnp.asarray(frequencies, jnp.float32)
