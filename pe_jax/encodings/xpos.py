"""xPos: Sun et al., "A Length-Extrapolatable Transformer", arXiv 2212.10554, algorithm 1.

    (ζ^(m/512) R_m q)·(ζ^(-n/512) R_n k) = Σ_i ζ_i^((m-n)/512) · (pair i of RoPE's product)
    ζ_i = (i/(d/2) + γ)/(1 + γ),    γ = 0.4

Each pair of channels decays, faster pairs faster, by factors on q and k, without a bias. The paper
attends in blocks beyond its training length; `window` is similar.

The origin is fixed at position 0 (the authors' code takes the middle of the sequence), so that keys
in a cache stay valid. Keys grow as 3.5^(n/512) and queries shrink: float32 and bfloat16 hold that
for 0 ≤ position < 55·512 = 28,160, float16 for about 3,500. Outside, positions are an error where
they are known and NaN under a trace. A key ahead of its query grows without bound: causal only, and
positions may not run backwards.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, checked
from pe_jax.encodings import rope
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics.arrays import align
from pe_jax.numerics.position_arrays import as_positions, concrete
from pe_jax.validation import is_int, python_ints

GAMMA, REACH = 0.4, 55  # 3.5^55 is 10^30, which leaves 10^8 for the values in float32


def zeta(dim: int) -> np.ndarray:
    """ζ_i: float64 [dim/2] in (0, 1)."""
    return (np.arange(0, dim, 2) / dim + GAMMA) / (1 + GAMMA)


@python_ints
def growth(positions, dim: int, scale_base: int = 512) -> jax.Array:
    """ζ_i^(position/scale_base): float32 [..., dim/2] for integer positions [...].

    Errs by at most one part in 10⁵. Queries are multiplied by it, keys divided.

    Raises:
      ValueError: a known position outside [0, 55·scale_base). Under a trace such rows are NaN.
      TypeError: positions that are not integers.
    """
    positions, limit = as_positions(positions), REACH * scale_base
    values = concrete(positions)
    if values is not None and values.size and not 0 <= values.min() <= values.max() < limit:
        worst = values.min() if values.min() < 0 else values.max()
        raise ValueError(
            f"positions: {worst} is outside [0, {limit}), where xPos fits float32;"
            " raise scale_base or keep positions inside"
        )
    inside = (positions >= 0) & (positions < limit)
    defined = jnp.where(inside, positions.astype(jnp.float32), jnp.nan)[..., None]
    rate = jnp.asarray(np.log(zeta(dim)) / scale_base, jnp.float32)
    return jnp.exp(defined * align(rate, defined))


@dataclasses.dataclass(frozen=True)
class XPos(Encoding):
    """RoPE with a decay: each pair's product shrinks with the distance at its own rate."""

    base: float = above_field(1e4, 1)
    scale_base: int = checked(
        512, "pass an integer of at least 1, in tokens", lambda v: is_int(v, 1)
    )
    layout: str = checked("interleaved", f"one of {rope.LAYOUTS}", rope.LAYOUTS.__contains__)

    claims = Claims(causal_only=True)
    multiples = (("head_dim", 2, "xPos rotates pairs: use an even head width"),)

    def terms(self, params, dims):
        return (Rotation(self.rotate_q, self.rotate_k),)

    def rotate_q(self, _, q, positions):
        """ζ^(m/512) R_m q."""
        return self._rotate(q, positions, 1)

    def rotate_k(self, _, k, positions):
        """ζ^(-n/512) R_n k."""
        return self._rotate(k, positions, -1)

    def _rotate(self, x, positions, sign: int):
        dim = x.shape[-1]
        theta = rope.frequencies(dim, self.base)
        size = growth(positions, dim, self.scale_base)[..., None, :] ** sign
        rotated = rope.rotate(x.astype(jnp.float32), positions, theta, self.layout)
        factor = jnp.tile(size, 2) if self.layout == "half" else jnp.repeat(size, 2, axis=-1)
        return (rotated * align(factor, x)).astype(x.dtype)

    def limit(self):
        """The position from which on float32 overflows."""
        return REACH * self.scale_base
