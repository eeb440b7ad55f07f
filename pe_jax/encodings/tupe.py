"""TUPE: Ke et al., "Rethinking Positional Encoding in Language Pre-training", arXiv 2006.15595.

    score_ij = (q_i·k_j + (p_i U_Q)·(p_j U_K))/sqrt(2E)        (§3.1; its second half is b_ij)
    reset(b, i, j) = θ₁ if i = 0,   θ₂ if j = 0 < i,   b_ij otherwise           (§3.2)

Position–position and content–content terms only: p, U_Q, U_K and θ are shared by all layers, and
no position is added to the words. (p_i U_Q)·(p_j U_K) is a dot product of vectors of each token,
computed in tiles as q·k is. Position 0 is [CLS], which is no word of the text: θ₁ is its bias to
all others, θ₂ theirs to it (one of each per head). A model without [CLS] may set `reset=False`.

This follows the equations; the released code applies a layer norm to p and has biases in U. Here p
begins as such a norm leaves it, N(0, 1), so that both halves of the score begin at the same size.
TUPE-R adds T5's bidirectional bias. T5 sets another scale (1), so write its buckets as edges:
`tupe+buckets(edges=…, directional=True)`, not `tupe+t5`, with the edges
`t5.thresholds(16, 128) - 1`. The sum adds that bias to θ, too.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import flag_field, int_field, stddev_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.learned import lookup
from pe_jax.encodings.terms import Scale, State, TokenProduct
from pe_jax.numerics.products import einsum


def correlation(q_p, k_p, u_q: jax.Array, u_k: jax.Array) -> jax.Array:
    """(p_i U_Q)·(p_j U_K)/sqrt(2E): float32 [*B, H, T, S].

    Args:
      q_p: position vectors p_i of the queries, [*B, T, D].
      k_p: those of the keys, [*B, S, D].
      u_q: U_Q [D, H, E].
      u_k: U_K [D, H, E].
    """
    # One product of four: for one query the vectors of the keys need not be projected.
    form = "...td,dhe,fhe,...sf->...hts"
    products = einsum(form, q_p, u_q, u_k, k_p, optimize="optimal")
    return (2 * u_q.shape[-1]) ** -0.5 * products


def reset(bias: jax.Array, q_pos, k_pos, first: jax.Array, to_first: jax.Array) -> jax.Array:
    """θ₁ in the rows of position 0, θ₂ in its columns: [*B, H, T, S] as `bias`; NaN stays.

    Args:
      bias: [*B, H, T, S].
      q_pos: [*B, T].
      k_pos: [*B, S].
      first: θ₁ [H].
      to_first: θ₂ [H].
    """
    first, to_first = first[:, None, None], to_first[:, None, None]
    rows, columns = (q_pos == 0)[..., None, :, None], (k_pos == 0)[..., None, None, :]
    theta = jnp.where(rows, first, jnp.where(columns, to_first, bias))
    return jnp.where(jnp.isnan(bias), bias, theta)


@dataclasses.dataclass(frozen=True)
class TUPE(Encoding):
    """Correlates learned positions with each other, separately from the words, for all layers."""

    length: int = int_field(512, 1)
    reset: bool = flag_field(True)
    stddev: float = stddev_field(1.0)

    def init_shared(self, key, dims):
        """P [length, D]; U_Q, U_K [D, H, E]; θ₁, θ₂ [H], zero at first."""
        keys, shape = jax.random.split(key, 3), (dims.width, dims.heads, dims.head_dim)
        draw = lambda key, *shape: jax.random.normal(key, shape, jnp.float32)  # noqa: E731
        arrays = {
            "table": self.stddev * draw(keys[0], self.length, dims.width),
            "u_q": dims.width**-0.5 * draw(keys[1], *shape),
            "u_k": dims.width**-0.5 * draw(keys[2], *shape),
        }
        # an array each: a step may donate them
        resets = ("first", "to_first") if self.reset else ()
        return arrays | {name: jnp.zeros(dims.heads, jnp.float32) for name in resets}

    def terms(self, params, dims):
        width = 2 * (dims.head_dim + 2 * self.reset)
        state = State(self.factors, params.shared, width=width, of="positions")
        return Scale((2 * dims.head_dim) ** -0.5), TokenProduct(state)

    def factors(self, arrays, positions):
        """[p U_Q/sqrt(2E) ‖ p U_K], zeros at position 0, with θ in two additional channels.

        [*B, T, H, C]: half of the numbers are for queries, the other half for keys.
        """
        p = lookup(arrays["table"], positions).astype(jnp.float32)
        left, right = (einsum("...td,dhe->...the", p, arrays[u]) for u in ("u_q", "u_k"))
        left = (2 * left.shape[-1]) ** -0.5 * left
        if not self.reset:
            return jnp.concatenate([left, right], axis=-1)
        first = jnp.asarray(positions == 0)[..., None, None]
        rows = jnp.broadcast_to(first, (*left.shape[:-1], 1))
        left = [
            jnp.where(first, 0, left),
            jnp.where(rows, arrays["first"][:, None], 0),
            jnp.where(rows, 0, arrays["to_first"][:, None]),
        ]
        ones = jnp.ones_like(rows, jnp.float32)
        right = [jnp.where(first, 0, right), ones, jnp.where(rows, ones, 0)]
        return jnp.concatenate([*left, *right], axis=-1)

    def limit(self):
        return self.length
