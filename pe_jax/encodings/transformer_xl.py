"""Transformer-XL: Dai et al., arXiv 1901.02860, §3.3.

    score = [(q_i + u)·k_j + (q_i + v)·(W_R R_{i-j})]/sqrt(E)

R is the sinusoid of the distance over the model width, all sines before all cosines; u, v and W_R
belong to each layer. Of the four terms (a)–(d) of the paper, u in the query gives (a) and (c), and
W_R R as a relative key of q + v gives (b) and (d).
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import above_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.sinusoidal import sinusoid
from pe_jax.encodings.terms import QueryBias, RelativeKeys
from pe_jax.numerics.products import einsum


def relative_keys(w_r: jax.Array, distance, base: float = 1e4) -> jax.Array:
    """W_R R(distance): float32 [H, *n, E] for W_R [H, D, E] and integer distances [*n].

    Raises:
      ValueError: D is odd, `base` ≤ 1, |distance| ≥ 2**24.
    """
    r = sinusoid(distance, w_r.shape[1], base, "concatenated")
    # Full precision: sines of fast channels lose all meaning in bfloat16 or TF32.
    return einsum("...d,hde->h...e", r, w_r)


@dataclasses.dataclass(frozen=True)
class TransformerXL(Encoding):
    """Content and distance, each with its own query bias; distances as projected sinusoids."""

    base: float = above_field(1e4, 1)

    claims = Claims(real_positions=True)
    multiples = (("width", 2, "transformer_xl needs an even width"),)

    def init_layer(self, key, dims):
        """u, v [H, E], zero at first; W_R [H, D, E]."""
        shape = (dims.heads, dims.width, dims.head_dim)
        u, v = (jnp.zeros((dims.heads, dims.head_dim), jnp.float32) for _ in range(2))
        w_r = dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32)
        return {"u": u, "v": v, "w_r": w_r}

    def terms(self, params, dims):
        layer = params.layer
        return QueryBias(layer["u"]), RelativeKeys(self.project, layer["w_r"], u=layer["v"])

    def project(self, w_r, distance):
        """W_R R(d): [H, *n, E]."""
        return relative_keys(w_r, distance, self.base)
