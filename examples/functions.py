"""The functions of RoPE, ALiBi and T5 borrowed into attention that is five lines of plain JAX.

    python -m examples.functions

prints the shape of each output, [B, T, H, E]. The functions need nothing but JAX.
"""

import jax
import jax.numpy as jnp

from pe_jax.encodings import alibi, rope, t5


def attend(q, k, v, bias: jax.Array | float = 0.0, scale=1.0):
    """Causal attention: q, k, v [B, T, H, E], bias [H, T, T]."""
    scores = scale * jnp.einsum("bthe,bshe->bhts", q, k) + bias
    visible = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf))
    return jnp.einsum("bhts,bshe->bthe", weights, v)


def with_rope(q, k, v, base=1e4):
    """Rotate queries and keys."""
    positions, frequencies = jnp.arange(q.shape[1]), rope.frequencies(q.shape[-1], base)
    q, k = (rope.rotate(x, positions, frequencies) for x in (q, k))
    return attend(q, k, v, scale=q.shape[-1] ** -0.5)


def with_alibi(q, k, v):
    """Subtract slope × distance from the scores of each head."""
    positions = jnp.arange(q.shape[1])
    distance = positions[:, None] - positions
    bias = -alibi.slopes(q.shape[2])[:, None, None] * jnp.abs(distance)
    return attend(q, k, v, bias, scale=q.shape[-1] ** -0.5)


def with_t5(q, k, v, table):
    """Add a learned number for each bucket of distances: table [H, 32]."""
    positions = jnp.arange(q.shape[1])
    bias = table[:, t5.bucket(positions[:, None] - positions)]
    return attend(q, k, v, bias)


if __name__ == "__main__":
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 16, 8, 64))
    table = jax.random.normal(jax.random.key(1), (8, 32))
    for y in with_rope(q, k, v), with_alibi(q, k, v), with_t5(q, k, v, table):
        print(y.shape)
