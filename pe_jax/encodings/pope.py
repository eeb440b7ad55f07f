"""PoPE, polar coordinate position embedding: Gopalakrishnan et al., arXiv 2509.10534.

    μ(x)_c = softplus(x_c),     φ_m,c = m·θ_c,     θ_c = base^(-c/E) for c < E
    score_mn = Σ_c μ(q_m)_c · μ(k_n)_c · cos((m - n)·θ_c - δ_c) / sqrt(E)

RoPE reads two channels as one complex number, whose own angle shifts what the position says. Here
each channel is a magnitude alone, with its own frequency (E of them, where RoPE has E/2):
content says how much and position says where. As [μ cos φ, μ sin φ], queries and keys are twice as
wide while they are scored, and keys in a cache are too.

δ, learned for each head and frequency and kept within [-2π, 0], is the phase at which a key fits
best. The paper adds it to the key's angle; here it is taken from the query's, which is the same
score and serves heads that share keys. It begins at 0, as in x-transformers and PoPE-pytorch, which
clamp it in each call: at either end the gradient is that of the interior, beyond it 0.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles
from pe_jax.numerics.arrays import align, require_array
from pe_jax.validation import python_ints


@python_ints
def frequencies(dim: int, base: float = 1e4) -> np.ndarray:
    """θ_c = base^(-c/dim): float64 [dim], radians per position.

    Raises:
      ValueError: `dim` is not a positive integer; `base` ≤ 1.
    """
    return angles.geometric(2 * dim, base)


def polar(x: jax.Array, positions, base: float = 1e4, phase: jax.Array | None = None) -> jax.Array:
    """[μ cos φ, μ sin φ] for μ = softplus(x) and φ = position·θ + phase: [..., T, H, 2E].

    Args:
      x: [..., T, H, E], of any float dtype; the result keeps it, the computation is float32.
      positions: integers or float32, [T] or [..., T], any sign.
      base: that of the frequencies.
      phase: float32 [H, E], added to all angles; None: 0.

    Raises:
      ValueError: `base` ≤ 1, |position| ≥ 2**24.
      TypeError: half-precision positions; x that is not an array of floats.
    """
    require_array("x", x, 3)
    angle = angles.angles(positions, frequencies(x.shape[-1], base))[..., None, :]
    angle = align(angle, x)
    if phase is not None:
        angle = angle + align(phase, x)
    size = jax.nn.softplus(x.astype(jnp.float32))
    # the barrier keeps XLA from computing every sine again for each head
    cos, sin = jax.lax.optimization_barrier((jnp.cos(angle), jnp.sin(angle)))
    return jnp.concatenate([size * cos, size * sin], axis=-1).astype(x.dtype)


def bounded(phase: jax.Array) -> jax.Array:
    """The phase within [-2π, 0], with the whole gradient at the ends (`jnp.clip` has half)."""
    low = jnp.float32(-2 * math.pi)
    return jnp.where(phase < low, low, jnp.where(phase > 0, 0, phase))


@dataclasses.dataclass(frozen=True)
class PoPE(Encoding):
    """Each channel of q and k is a magnitude, its position an angle; a phase is learned."""

    base: float = above_field(1e4, 1)

    claims = Claims(real_positions=True)

    def init_layer(self, key, dims):
        """δ [H, E], zeros."""
        return {"phase": jnp.zeros((dims.heads, dims.head_dim), jnp.float32)}

    def terms(self, params, dims):
        return (Rotation(self.queries, self.keys, params.layer["phase"], heads=0),)

    def queries(self, phase, q, positions):
        """Angles m·θ - δ: [..., T, H, 2E]."""
        return polar(q, positions, self.base, -bounded(phase))

    def keys(self, _, k, positions):
        """Angles n·θ: [..., T, K, 2E]."""
        return polar(k, positions, self.base)
