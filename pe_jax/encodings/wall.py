"""Wall attention: Pai et al. (Tilde Research, 2026), https://blog.tilderesearch.com/blog/wall-attn.

    g_t = log sigmoid(W_h·x_t + b_h)               one number for each channel of each head
    score_ij = Σ_n q_i,n k_j,n exp(Σ_{l = j+1 … i} g_l,n) / sqrt(E)

FoX (arXiv 2503.02130) fades a key's weight as tokens forget it; here each channel of the product
fades at its own rate, so that a head can keep some channels of a key and forget others. It replaces
RoPE. b begins at 8: almost nothing fades.

With P the running sum of g, the factor is exp(P_i - P_j). It is not a rotation of q and k: exp(P_i)
vanishes and exp(-P_j) overflows within a few hundred tokens. P is therefore held in two numbers,
and only differences are taken, which are at most 0. Where all keys of a tile come before its
queries, P_i - P_j is split at the first query, both parts at most 0: one product of matrices, as in
the authors' kernels (flash-linear-attention). A tile on the diagonal is halved again and again, and
each halving is such a product; elsewhere a pair takes E exponentials. A cache holds
P for each query head, 2E float32 numbers per token. Without a causal mask the fade is that of the
tokens between, exp(-|P_i - P_j|); the authors' is causal only.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import stddev_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import ChannelDecay, State
from pe_jax.numerics import running_sums
from pe_jax.numerics.arrays import align
from pe_jax.numerics.products import einsum

OPEN = 8.0  # the initial bias: log sigmoid(8) = -0.0003


def log_gates(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """log sigmoid(W_h·x_t + b_h) ≤ 0: float32 [*B, T, H, E]; weight [D, H, E], bias [H, E]."""
    gates = einsum("...td,dhe->...the", x.astype(jnp.float32), weight)
    return jax.nn.log_sigmoid(gates + align(bias, gates))


@dataclasses.dataclass(frozen=True)
class Wall(Encoding):
    """Each channel of q·k fades by gates that every token computes from the layer's input."""

    stddev: float = stddev_field()

    def init_layer(self, key, dims):
        """Weight [D, H, E], bias [H, E] of 8: gates begin near 1."""
        shape = (dims.width, dims.heads, dims.head_dim)
        weight = self.stddev * jax.random.normal(key, shape, jnp.float32)
        return {"weight": weight, "bias": jnp.full(shape[1:], OPEN, jnp.float32)}

    def terms(self, params, dims):
        after, width = running_sums.after_totals, 2 * dims.head_dim
        return (ChannelDecay(State(sums, params.layer, width=width, after=after)),)


def sums(arrays, x, before):
    """P_t of each channel: [*B, T, H, 2E]."""
    return running_sums.totals(log_gates(x, **arrays), before)
