"""Selective RoPE: Movahedi et al., "Selective Rotary Position Embedding", arXiv 2511.17388.

    ω_t,i = τ_i · g_t · (w_i·x̂_t + exp(β_i)),     φ_t,i = Σ_{l ≤ t} ω_l,i
    score_mn = (R(φ_m) q_m)·(R(φ_n) k_n) / sqrt(E)

RoPE whose angles the input sets: from token t - 1 to token t, pair i of channels turns by ω_t,i.
τ_i = base^(-2i/E) is the temperature, which is not learned, g_t = sigmoid(u·x̂_t + c) a gate that
each token sets for a head, w has a low rank, β is a bias for each pair, and x̂ is the layer's
input, each head's slice of it divided by its norm. With w = 0, β = 0 and the gate open it is RoPE.
φ is held in two numbers, so that late tokens turn as exactly as early ones.

As in the authors' code (timurcarstensen/selective-rope), layout "half", except that their causal
convolution of w·x̂ over four tokens is left out: it would let the first tokens of a packed document
see the document before, as a state does not know documents. A model, which does, can convolve the
layer's input. Their bias and gate are options, both on here; β = -∞ disables the bias. Query heads
that share a key head (not in that code) share its angles.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import above_field, int_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.rope import turn, waves
from pe_jax.encodings.terms import Rotation, State
from pe_jax.numerics import angles, running_sums
from pe_jax.numerics.arrays import align
from pe_jax.numerics.products import einsum, matmul
from pe_jax.validation import require


def steps(
    x: jax.Array,
    temperature: jax.Array,
    down: jax.Array,
    up: jax.Array,
    bias: jax.Array,
    gate: jax.Array,
    gate_bias: jax.Array,
) -> jax.Array:
    """ω_t, how far each pair turns at each token: float32 [*B, T, K, P] for P = E/2 pairs.

    Args:
      x: the layer's input [*B, T, D].
      temperature: τ, float32 [P].
      down: the first factor of w, [D, R].
      up: the second, [R, K, P].
      bias: β, [K, P].
      gate: u, [D, K].
      gate_bias: c, [K].

    Raises:
      TypeError: parameters of half precision: their rounding errors add up over a row.
    """
    parameters = {"down": down, "up": up, "bias": bias, "gate": gate, "gate_bias": gate_bias}
    for name, array in parameters.items():
        angles.require_exact(name, array)
    slices = x.astype(jnp.float32).reshape(*x.shape[:-1], len(bias), x.shape[-1] // len(bias))
    size = (slices**2).sum(-1, keepdims=True)
    unit = (slices * jax.lax.rsqrt(size + 1e-6)).reshape(x.shape)
    low = matmul(unit, down)
    turns = einsum("...tr,rkp->...tkp", low, up)
    turns = turns + align(jnp.exp(bias), turns)
    opening = matmul(unit, gate)
    opening = jax.nn.sigmoid(opening + align(gate_bias, opening))[..., None]
    return align(temperature, turns) * opening * turns


@dataclasses.dataclass(frozen=True)
class Angles:
    """The state of a token: φ for each of `heads` query heads, [*B, T, H, 2P]."""

    heads: int
    base: float

    def __call__(self, arrays, x, before):
        bias = arrays["bias"]
        share = self.heads // len(bias)
        temperature = jnp.asarray(angles.geometric(2 * bias.shape[1], self.base), jnp.float32)
        before = None if before is None else before[..., ::share, :]
        sums = running_sums.totals(steps(x, temperature, **arrays), before)
        return jnp.repeat(sums, share, axis=-2)


@dataclasses.dataclass(frozen=True)
class SelectiveRoPE(Encoding):
    """Rotates q and k by angles that the layer's input adds up, token by token."""

    base: float = above_field(5e5, 1)
    rank: int = int_field(16, 1)

    multiples = (("head_dim", 2, "it rotates pairs: use an even head width"),)

    def check(self, dims):
        """The head width must be even, and key heads must divide the model width."""
        super().check(dims)
        fix = f"each of {dims.kv_heads} key heads has a slice of it: pass a multiple"
        require(dims.width % dims.kv_heads == 0, "width", dims.width, fix)

    def init_layer(self, key, dims):
        """Factors [D, R] and [R, K, E/2] of w, β and c zeros, u [D, K]: keep them float32."""
        keys, pairs = jax.random.split(key, 3), dims.head_dim // 2
        shapes = {
            "down": (dims.width, self.rank),
            "up": (self.rank, dims.kv_heads, pairs),
            "gate": (dims.width, dims.kv_heads),
        }
        drawn = {
            name: jax.random.normal(subkey, shape, jnp.float32) * shape[0] ** -0.5
            for subkey, (name, shape) in zip(keys, shapes.items(), strict=True)
        }
        return drawn | {
            "bias": jnp.zeros((dims.kv_heads, pairs), jnp.float32),
            "gate_bias": jnp.zeros(dims.kv_heads, jnp.float32),
        }

    def terms(self, params, dims):
        state = State(
            Angles(dims.heads, self.base),
            params.layer,
            width=2 * (dims.head_dim // 2),
            after=running_sums.after_totals,
        )
        return (Rotation(rotate, rotate, state=state),)


def rotate(_, x, positions, state):
    """R(φ) x: [..., T, H or K, E] for a state [..., T, H, E]."""
    share = state.shape[-2] // x.shape[-2]
    state = align(state[..., ::share, :], x)
    whole, rest = jnp.split(state, 2, axis=-1)
    return turn(turn(x.astype(jnp.float32), *waves(whole)), *waves(rest)).astype(x.dtype)
