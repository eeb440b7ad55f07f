"""WavLM's gated relative bias: Chen et al., arXiv 2110.13900 (from Chi et al., 2106.16138).

    score_ij = q_i·k_j/sqrt(E) + g_i·table[h, bucket(i - j)]
    a, b = sigmoid(u·x_i), sigmoid(w·x_i);    g_i = a·(s_h·b - 1) + 2

x_i is the head's slice of the layer's input: D = H·E. This follows the released code, which differs
from the paper: the gates read x, not q (Chi et al. have q), and a replaces the 1 - a of the paper's
formula. Each of u and w is the sum of four rows of a projection, as released weights have them.
The table, T5's with 320 buckets up to a distance of 800, is shared by all layers.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.encodings.t5 import T5
from pe_jax.encodings.terms import RelativeState, State
from pe_jax.numerics.arrays import align
from pe_jax.numerics.products import einsum
from pe_jax.validation import require

ROWS = 8  # of the projection: four for each gate


def gate(x: jax.Array, weight: jax.Array, bias: jax.Array, scale: jax.Array) -> jax.Array:
    """g, the factor on the bias of each token and head: float32 [*B, T, H].

    Args:
      x: [*B, T, D], the layer's input, a slice of D/H channels per head.
      weight: [8, D/H], shared by the heads.
      bias: [8].
      scale: s, [H].
    """
    heads = x.reshape(*x.shape[:-1], *scale.shape, weight.shape[1]).astype(jnp.float32)
    rows = einsum("...e,re->...r", heads, weight)
    rows += align(bias, rows)
    sums = rows.reshape(*rows.shape[:-1], 2, ROWS // 2).sum(-1)
    a, b = jnp.moveaxis(jax.nn.sigmoid(sums), -1, 0)
    return a * (align(scale, b) * b - 1) + 2


@dataclasses.dataclass(frozen=True)
class WavLM(T5):
    """T5's table, times a gate that each token and head computes from the layer's input."""

    num_buckets: int = 320
    max_distance: int = 800
    bidirectional: bool = True

    def check(self, dims):
        """Each head gates by its slice of the model's width."""
        fix = f"WavLM gives each of {dims.heads} heads {dims.head_dim} channels of it: make it H·E"
        require(dims.width == dims.heads * dims.head_dim, "width", dims.width, fix)

    def init_layer(self, key, dims):
        """The gates' projection [8, E] and bias [8], s [H] of ones; the table, if not shared."""
        key, table = jax.random.split(key) if not self.shared else (key, key)
        weight = dims.head_dim**-0.5 * jax.random.normal(key, (ROWS, dims.head_dim), jnp.float32)
        bias, ones = jnp.zeros(ROWS, jnp.float32), jnp.ones(dims.heads, jnp.float32)
        return {"weight": weight, "bias": bias, "scale": ones} | super().init_layer(table, dims)

    def terms(self, params, dims):
        gates = {name: params.layer[name] for name in ("weight", "bias", "scale")}
        state, horizon = State(gate_state, gates, width=1), self.horizon()
        table = self.arrays(params)["table"]
        return (RelativeState(self.entry, table, state=state, horizon=horizon),)

    def entry(self, table, distance):
        """The entry of the table, as a vector of one number: [H, *n, 1]."""
        return self.lookup(table, distance)[..., None]


def gate_state(arrays, x, before):
    """g_t as a state of one number: [*B, T, H, 1]."""
    return gate(x, **arrays)[..., None]
