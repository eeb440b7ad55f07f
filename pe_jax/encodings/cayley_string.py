"""Cayley-STRING: Schenck et al., "Learning the RoPEs", arXiv 2502.02562, eq. 9 and 10.

    R(p) x = RoPE(p)·P x,     P = (I - S)(I + S)^-1,     S skew-symmetric, learned

RoPE in a learned basis: pair i of P x turns by Σ_a p_a·θ_ai. Every rotation of q and k whose
product depends on the displacement alone is one of these (theorem 3.4). All heads of a layer share
P, for q and for k, so that it cancels for two tokens at the same position.

Where q and k are projections of an input, P can be merged into both: the scheme is then RoPE-Mixed
with weights that are parametrized differently. With a norm between the two it is more than that.

The paper takes θ from RoPE; LSP-DETR, a released model that has the scheme, learns θ [A, E/2] and
begins with base^(-2i/E), the same on all axes, with base 100, as here.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import above_field, int_field, one_of_field
from pe_jax.encodings import rope, rope_mixed
from pe_jax.encodings.base import OnAxes
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles
from pe_jax.numerics.arrays import require_array
from pe_jax.numerics.products import einsum
from pe_jax.validation import require


def basis(skew: jax.Array) -> jax.Array:
    """P = (I - S)(I + S)^-1, orthogonal: float32 [E, E].

    Args:
      skew: [E, E]; only the part above the diagonal is read: S is that part minus its transpose.

    Raises:
      ValueError: not a square matrix.
      TypeError: not an array of floats.
    """
    require_array("skew", skew, 2)
    square = skew.ndim == 2 and skew.shape[0] == skew.shape[1]
    require(square, "skew.shape", skew.shape, "pass a square matrix")
    upper = jnp.triu(skew.astype(jnp.float32), 1)
    s, identity = upper - upper.T, jnp.eye(len(upper), dtype=jnp.float32)
    return jnp.linalg.solve(identity + s, identity - s)  # the two commute


def rotate(
    x: jax.Array, positions, skew: jax.Array, frequencies: jax.Array, layout: str = "interleaved"
) -> jax.Array:
    """RoPE(p)·P x.

    Args:
      x: [..., T, H, E].
      positions: integers or float32 [T, A] or [..., T, A], any sign.
      skew: [E, E], as in `basis`.
      frequencies: float32 [A, F], 2F ≤ E.
      layout: of pairs, "half" or "interleaved".

    Returns:
      The shape and dtype of x (the product and the rotation are float32).

    Raises:
      ValueError: a matrix that does not fit x, and what `rope_mixed.rotate` raises.
      TypeError: the same.
    """
    require_array("x", x, 3)
    require_array("frequencies", frequencies, 2)
    require(frequencies.ndim == 2, "frequencies.shape", frequencies.shape, "pass [A, F]")
    matrix = basis(skew)
    fits = len(matrix) == x.shape[-1]
    require(fits, "skew.shape", skew.shape, f"x has {x.shape[-1]} channels per head")
    mapped = einsum("ij,...j->...i", matrix, x.astype(jnp.float32))
    return rope_mixed.rotate(mapped, positions, frequencies[:, None], layout).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class CayleyString(OnAxes):
    """Rotates q and k in a learned basis; S begins at 0, where P is the identity.

    `base` only sets initial frequencies: use 100 for indices of patches, 1e4 for those of tokens.
    """

    axes: int = int_field(2, 1)
    base: float = above_field(100.0, 1)
    layout: str = one_of_field("interleaved", rope.LAYOUTS)

    multiples = (("head_dim", 2, "rotations turn pairs: use an even head width"),)

    def init_layer(self, key, dims):
        """`skew` [E, E], zeros, and `frequencies` [A, E/2]: keep them float32."""
        series = jnp.asarray(angles.geometric(dims.head_dim, self.base), jnp.float32)
        return {
            "skew": jnp.zeros((dims.head_dim, dims.head_dim), jnp.float32),
            "frequencies": jnp.tile(series[None], (self.axes, 1)),
        }

    def terms(self, params, dims):
        return (Rotation(self.rotate, self.rotate, params.layer),)

    def rotate(self, arrays, x, positions):
        """R_position x: [..., T, H, E]."""
        positions = self.with_axis(positions)
        return rotate(x, positions, arrays["skew"], arrays["frequencies"], self.layout)
