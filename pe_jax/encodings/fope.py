"""FoPE: Hua et al., "Fourier Position Embedding", arXiv 2412.17739: a series for each pair of RoPE.

    z'_j = (c_j(n) + i·s_j(n))·z_j      for pair j, z_j = a + i·b, of a query or key at position n
    c_j(n) = Σ_i A_ij·cos(n·θ_i),       s_j(n) = Σ_i B_ij·sin(n·θ_i),      θ_i = base^(-2i/E)

over the F frequencies that turn at least once in the training context, θ_i ≥ 2π/L, which the first
F pairs have; pairs of lower frequencies do not turn. A and B begin as the identity plus noise and
are not trained, as in the authors' code. Their gradient is 0 then, but weight decay would shrink
them: leave them out of it.

This is not a rotation: norms change, and a product depends on both positions, not on their distance
alone. With A = B = 1 it is RoPE whose slow frequencies are 0 (`rope_scaling.ClippedRoPE`, `hard`).

Where releases differ, this follows the paper. The authors' code has a series for at most E/4 pairs,
and gives pairs that do not turn a sine of 1 instead of 0, so that they count twice; vLLM's (for
Intern-S1-Pro) has 0. With fewer key heads, the queries of a key head share its series (vLLM).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, checked, flag_field, int_field
from pe_jax.encodings import rope
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles
from pe_jax.numerics.arrays import require_array
from pe_jax.numerics.products import einsum
from pe_jax.validation import is_int, is_real, python_ints, require


@python_ints
def frequencies(dim: int, length: int, base: float = 1e4) -> jax.Array:
    """RoPE's frequencies θ_i ≥ 2π/length: float32 [F], radians per position.

    Raises:
      ValueError: an odd `dim`; a `length` below 7 (2π, the period of the fastest); `base` ≤ 1.
    """
    fix = "pass the length of training, at least 7: one period of the fastest frequency"
    require(is_int(length, 7), "length", length, fix)
    theta = angles.geometric(dim, base)
    return jnp.asarray(theta[theta >= 2 * np.pi / length], jnp.float32)


def rotate(
    x: jax.Array, positions, frequencies: jax.Array, cosines: jax.Array, sines: jax.Array
) -> jax.Array:
    """Multiplies pair j < F of head h by its series; pair j is of channels j and j + E/2.

    Args:
      x: [..., T, H, E].
      positions: integers or float32 [T] or [..., T], any sign.
      frequencies: float32 [F], 2F ≤ E.
      cosines: A, float32 [K, F, F] from frequencies to pairs, K a divisor of H.
      sines: B, the same.

    Returns:
      The shape and dtype of x (the waves are float32).

    Raises:
      ValueError: heads that K does not divide, an odd E, more frequencies than pairs, coefficients
        of other shapes, |position| ≥ 2**24.
      TypeError: half-precision positions or frequencies; arrays that are not of floats.
    """
    require_array("x", x, 3)
    require_array("frequencies", frequencies, 1)
    heads, dim, count = *x.shape[-2:], frequencies.shape[-1]
    ok = dim % 2 == 0 and 2 * count <= dim
    require(ok, "frequencies", count, f"x has {dim} channels per head, of which two are a pair")
    for name, array in {"cosines": cosines, "sines": sines}.items():
        require_array(name, array, 3)
        ok = heads % array.shape[0] == 0 and array.shape[1:] == (count, count)
        fix = f"pass [K, F, F] for {heads} heads and {count} frequencies"
        require(ok, f"{name}.shape", array.shape, fix)
    angle = angles.angles(positions, frequencies)
    waves = []
    for wave, series, still in ((jnp.cos, cosines, 1), (jnp.sin, sines, 0)):
        mixed = einsum("...tf,kfj->...tkj", wave(angle), series)
        pad = [(0, 0)] * (mixed.ndim - 1) + [(0, dim // 2 - count)]
        mixed = jnp.pad(mixed, pad, constant_values=still)
        waves.append(jnp.repeat(mixed, heads // mixed.shape[-2], axis=-2))
    return rope.turn(x, *waves)


@dataclasses.dataclass(frozen=True)
class FoPE(Encoding):
    """Multiplies q and k by Fourier series of their positions; `length` is that of training.

    Coefficients begin as the identity plus noise with standard deviation gain·sqrt(2/(F·(F + K)))
    for K key heads, as in the authors' code. `learned` trains them.
    """

    length: int = int_field(512, 7)
    base: float = above_field(1e4, 1)
    gain: float = checked(0.3, "pass a number of at least 0", lambda v: is_real(v) and v >= 0)
    learned: bool = flag_field(False)

    claims = Claims(real_positions=True, absolute_rotation=True)
    multiples = (("head_dim", 2, "FoPE multiplies pairs: use an even head width"),)

    def init_layer(self, key, dims):
        """Coefficients `cosines` and `sines` [K, F, F], of frequencies and of pairs."""
        count = frequencies(dims.head_dim, self.length, self.base).size
        stddev = self.gain * (2 / (count * (count + dims.kv_heads))) ** 0.5
        noise = jax.random.normal(key, (2, dims.kv_heads, count, count), jnp.float32)
        cosines, sines = jnp.eye(count, dtype=jnp.float32)[None, None] + stddev * noise
        return {"cosines": cosines, "sines": sines}

    def terms(self, params, dims):
        series = params.layer if self.learned else jax.lax.stop_gradient(params.layer)
        return (Rotation(self.rotate, self.rotate, series, heads=0),)

    def rotate(self, series, x, positions):
        """x times its series: [..., T, H, E]."""
        theta = frequencies(x.shape[-1], self.length, self.base)
        return rotate(x, positions, theta, **series)
