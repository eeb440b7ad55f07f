"""Transformer-XL: Dai et al., arXiv 1901.02860, §3.3.

    score = [(q_i + u)·k_j + (q_i + v)·(W_R R_{i-j})]/sqrt(E)

R is the sinusoid of the distance over the model width, all sines before all cosines; u, v and W_R
belong to each layer. The four terms (a)–(d) of the paper enter by three slots: u is added to the
query (a, c), q·W_R R is a relative key (b), v·W_R R a bias of the distance (d).
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import Encoding
from pe_jax.encodings.sinusoidal import sinusoid
from pe_jax.numerics.arrays import align
from pe_jax.validation import is_real, require


def relative_keys(w_r: jax.Array, distance, base: float = 1e4) -> jax.Array:
    """W_R R(distance): float32 [H, *n, E] for W_R [H, D, E] and integer distances [*n].

    Raises:
      ValueError: D is odd, `base` ≤ 1, |distance| ≥ 2**24.
    """
    r = sinusoid(distance, w_r.shape[1], base, "concatenated")
    # Full precision: sines of fast channels lose all meaning in bfloat16 or TF32.
    return jnp.einsum("...d,hde->h...e", r, w_r, precision=jax.lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True)
class TransformerXL(Encoding):
    """Content and distance, each with a bias of its own, through a projected sinusoid."""

    base: float = 1e4

    real_positions = True
    adds_to_q = True
    scaled_bias = True

    def __post_init__(self):
        require(is_real(self.base) and self.base > 1, "base", self.base, "pass a number above 1")

    def check(self, dims):
        """The model width must be even."""
        require(dims.width % 2 == 0, "width", dims.width, "transformer_xl needs an even width")

    def init_layer(self, key, dims):
        """u, v [H, E], zero at first; W_R [H, D, E]."""
        shape = (dims.heads, dims.width, dims.head_dim)
        zeros = jnp.zeros((dims.heads, dims.head_dim), jnp.float32)
        w_r = dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32)
        return {"u": zeros, "v": zeros, "w_r": w_r}

    def rotate_q(self, params, q, positions):
        """Q + u."""
        return q + align(params.layer["u"].astype(q.dtype), q)

    def relative_keys(self, params, distance):
        """W_R R(d)."""
        return relative_keys(params.layer["w_r"], distance, self.base)

    def distance_bias(self, params, distance, dims):
        """v·W_R R(d)/sqrt(E)."""
        v = self.scale(dims.head_dim) * params.layer["v"]
        keys = relative_keys(params.layer["w_r"], distance, self.base)
        return jnp.einsum("he,h...e->h...", v, keys, precision=jax.lax.Precision.HIGHEST)
