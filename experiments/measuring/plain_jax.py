"""The model of a training step in plain JAX, to compare with: a dictionary of arrays, no framework.

Pre-norm blocks, RMSNorm, RoPE, softmax attention, gated SiLU MLP, tied embedding, as
`ModelConfig()` has them. B batch, T tokens, D width, H heads, E head width, M MLP width,
V vocabulary. Parameters: `embedding` [V, D], `final_norm` [D] and `layers`, a list of
`attention_norm` [D], `q`, `k`, `v` [D, H·E], `out` [H·E, D], `mlp_norm` [D], `gate`, `up` [D, M]
and `down` [M, D].
"""

import functools

import jax
import jax.numpy as jnp
import optax

EPSILON = 1e-6  # of RMSNorm
BASE = 1e4  # of RoPE


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x ÷ its root mean square × scale."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + EPSILON) * scale


def rotate(x: jax.Array) -> jax.Array:
    """RoPE, layout "half": [B, T, H, E]."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * BASE ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal softmax attention: [B, T, H, E]."""
    length, width = q.shape[1], q.shape[-1]
    scores = jnp.einsum("bthe,bshe->bhts", q, k) * width**-0.5
    scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v)


def loss(params: dict, tokens: jax.Array, heads: int) -> jax.Array:
    """Mean cross entropy of the next token, nats: tokens are int32 [B, T + 1]."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    width = params["embedding"].shape[1]
    x = params["embedding"][inputs] * width**0.5
    for layer in params["layers"]:
        y = rms_norm(x, layer["attention_norm"])
        q, k, v = ((y @ layer[name]).reshape(*y.shape[:2], heads, -1) for name in "qkv")
        y = attention(rotate(q), rotate(k), v)
        x = x + y.reshape(*y.shape[:2], -1) @ layer["out"]
        y = rms_norm(x, layer["mlp_norm"])
        x = x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
    logits = rms_norm(x, params["final_norm"]) * width**-0.5 @ params["embedding"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def step(optimizer: optax.GradientTransformation, heads: int) -> jax.stages.Wrapped:
    """Jitted: (params, optimizer state, tokens) → (params, optimizer state, loss); donates both."""

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state, tokens):
        value, gradients = jax.value_and_grad(loss)(params, tokens, heads)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return update
