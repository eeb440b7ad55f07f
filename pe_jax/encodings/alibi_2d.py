"""ALiBi on two axes: Fuller et al., "CROMA", arXiv 2311.00566 (2D-ALiBi).

    softmax(q·k/sqrt(E) - m_h·sqrt(dr² + dc²)),      m_h as in ALiBi

The Euclidean distance of two patches replaces the number of tokens between them. It is the same in
all directions: patches to the left and to the right get the same bias.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.encodings.alibi import slopes
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import DistanceBias
from pe_jax.numerics.position_arrays import as_positions


def bias(distance, num_heads: int) -> jax.Array:
    """-m_h·‖distance‖: float32 [H, *n] for distances [*n, A], integer or float32.

    Raises:
      ValueError: `num_heads` is not a positive integer.
      TypeError: half-precision distances.
    """
    distance = as_positions(distance, real=True, name="distance")
    return penalty(slopes(num_heads), distance)


def penalty(slopes: jax.Array, distance: jax.Array) -> jax.Array:
    """-m_h·‖distance‖: float32 [H, *n] for slopes [H] and distances [*n, A]."""
    squares = jnp.square(distance.astype(jnp.float32)).sum(-1)
    apart = squares > 0  # the root has no derivative at 0, where each token is from itself
    length = jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, 1)), 0)
    return -slopes.reshape(-1, *(1,) * length.ndim) * length[None]


@dataclasses.dataclass(frozen=True)
class ALiBi2D(Encoding):
    """Subtracts a penalty that grows with the distance between two patches, fixed for each head."""

    claims = Claims(axes=2, real_positions=True)

    def terms(self, params, dims):
        return (DistanceBias(penalty, slopes(dims.heads)),)
