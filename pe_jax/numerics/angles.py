"""Frequencies and angles, shared by every scheme that is made of sines.

Frequencies are computed on the host in float64 and enter programs as float32 constants, so eager,
jitted and sharded runs see the same numbers. Angles are float32 whatever the activations are, and
never a matmul (TF32 is wrong from position 2,049).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.numerics.arrays import align
from pe_jax.numerics.position_arrays import as_positions, check_exact
from pe_jax.validation import is_int, is_real, python_ints, require


@python_ints
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


def require_exact(name: str, x: Any) -> None:
    """Raises TypeError where x, which positions are multiplied by, has fewer bits than float32.

    A frequency that is off by 2⁻⁹, as bfloat16 rounds it, is off by 8 radians at position 4,095.
    """
    dtype = getattr(x, "dtype", np.float64)  # of lists
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        fix = "keep it float32: positions multiply what half precision rounds"
        raise TypeError(f"{name} has dtype {dtype}; {fix}")


def checked(positions) -> jax.Array:
    """Positions as int32 or float32, each exact in float32 as far as it is known."""
    positions = as_positions(positions, real=True)
    check_exact(positions)
    return positions


def angles(positions, frequencies) -> jax.Array:
    """Position × frequency in float32: [..., dim/2] for positions [...], any frequencies.

    Positions [..., A] of several axes take frequencies [A, dim/2]: the angles of the axes add.
    Separate frequencies for each position are [..., 1, dim/2].
    Errs by at most 2⁻²³·|position| radians (frequencies ≤ 1): 1e-4 at 1,000, 0.12 at 10⁶; the
    libraries that rotate by float32 frequencies do the same sum and get the same bits.

    Raises:
      TypeError: half-precision positions or frequencies.
      ValueError: a known position that is not finite, or not exact in float32 (≥ 2**24);
        positions and frequencies of different axes.
    """
    require_exact("frequencies", frequencies)
    positions, axes = checked(positions)[..., None], np.ndim(frequencies) == 2
    if axes and positions.shape[-2:-1] != np.shape(frequencies)[:1]:
        shape, count = list(positions.shape[:-1]), len(frequencies)
        raise ValueError(f"positions has shape {shape}; pass {count} axes last")
    positions, frequencies = positions.astype(jnp.float32), jnp.asarray(frequencies, jnp.float32)
    if frequencies.ndim > 2:
        frequencies = frequencies[..., 0, :]
        positions = align(positions, frequencies)
    angle = positions * align(frequencies, positions)
    return angle.sum(-2) if axes else angle


def exact_angles(positions, frequencies: np.ndarray) -> jax.Array:
    """Position × frequency modulo 2π, within 5e-7 radians everywhere: float32 [..., dim/2].

    The frequency in turns is held as a whole number of 2⁻³² turns and a remainder; whole turns
    then drop out of the integer product by themselves.

    Args:
      positions: [...], as for `angles`.
      frequencies: NumPy float64 [dim/2], known at trace time.

    Raises:
      TypeError: half-precision positions.
      ValueError: a known position that is not finite, or not exact in float32 (≥ 2**24).
    """
    positions = checked(positions)[..., None]
    turns = frequencies * (2**32 / (2 * np.pi))
    whole, unit = np.rint(turns), 2 * np.pi / 2**32
    steps = (whole.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    index = jnp.floor(positions).astype(jnp.int32)
    between = (positions - index.astype(positions.dtype)).astype(jnp.float32)  # 0 for integers
    steps, rest, slow = (
        align(jnp.asarray(x, dtype), index)
        for x, dtype in (
            (steps, jnp.int32),
            ((turns - whole) * unit, jnp.float32),
            (frequencies, jnp.float32),
        )
    )
    coarse = (index * steps).astype(jnp.float32) * np.float32(unit)
    return coarse + index.astype(jnp.float32) * rest + between * slow
