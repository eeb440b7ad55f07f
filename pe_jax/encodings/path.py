"""PaTH attention: Yang et al., "PaTH Attention", arXiv 2505.16381, §3.

    H_t = I - β_t w_t w_tᵀ                              a reflection-like map of each token
    score_ij = q_iᵀ H_i H_{i-1} … H_{j+1} k_j/sqrt(E)

w_t is a projection of the layer's input, of length 1, and β_t = 2 sigmoid(u_h·x_t + b_h): the score
depends on the tokens between query and key. The maps of one document do not act on another. The
paper's short convolution of w and its projection of low rank are left out; its forget gate is FoX:
`path+fox`. Tiles take it as the paper's blocks do (`pe_jax.encodings.terms.paths`).
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import stddev_field
from pe_jax.encodings.base import Claims, Encoding, normal
from pe_jax.encodings.fox import project
from pe_jax.encodings.terms import PathProduct, State
from pe_jax.numerics.products import einsum

EPSILON = 1e-6  # of the squared length of w


@dataclasses.dataclass(frozen=True)
class PaTH(Encoding):
    """Each token between a key and a query maps the query, by the layer's input."""

    stddev: float = stddev_field()

    claims = Claims(causal_only=True)

    def init_layer(self, key, dims):
        """Directions [D, H, E]; for β a weight [D, H] and a bias [H] of zeros, so that β ≈ 1."""
        shape, bias = (dims.width, dims.heads), jnp.zeros(dims.heads, jnp.float32)
        drawn = normal(key, self.stddev, directions=(*shape, dims.head_dim), weight=shape)
        return drawn | {"bias": bias}

    def terms(self, params, dims):
        return (PathProduct(State(maps, params.layer, width=2 * dims.head_dim)),)


def maps(arrays: dict, x: jax.Array, _) -> jax.Array:
    """β_t w_t ‖ w_t: float32 [*B, T, H, 2E] for x [*B, T, D]."""
    w = einsum("...td,dhe->...the", x.astype(jnp.float32), arrays["directions"])
    w = w * jax.lax.rsqrt((w**2).sum(-1, keepdims=True) + EPSILON)
    strength = 2 * jax.nn.sigmoid(project(x, arrays["weight"], arrays["bias"]))
    return jnp.concatenate([strength[..., None] * w, w], axis=-1)
