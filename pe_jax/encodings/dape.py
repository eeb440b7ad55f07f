"""DAPE, data-adaptive positional encoding: Zheng et al., arXiv 2405.14722, §3.2.

    score = A + B + f([A, B]),      f = W₂ LeakyReLU(W₁ · + b₁) + b₂, over the heads of one pair

A = q·k/sqrt(E), and B is the bias of another scheme in a sum, such as `alibi+dape`. Alone, B = 0,
which is the paper's DAPE without positions. (The paper was first called CAPE.)
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import int_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import PairRescore


def adapt(scores: jax.Array, bias: jax.Array | None, w1, b1, w2, b2) -> jax.Array:
    """f([A, B]): float32 [B, H, T, S].

    Args:
      scores: A, float32 [B, H, T, S].
      bias: B, float32 [B, H, T, S]; None: B = 0.
      w1: [2H, M].
      b1: [M].
      w2: [M, H].
      b2: [H].
    """
    batch, heads, *pairs = scores.shape

    def by_head(x):  # [H, pairs]: products of two matrices, which XLA computes fast on a CPU
        return jnp.swapaxes(x, 0, 1).reshape(heads, -1)

    def product(w, x):
        return jnp.einsum("gm,gn->mn", w, x)

    inputs = by_head(scores)
    if bias is not None:
        inputs = jnp.concatenate([inputs, by_head(bias)])
    hidden = jax.nn.leaky_relu(product(w1[: len(inputs)], inputs) + b1[:, None])
    out = product(w2, hidden) + b2[:, None]
    return jnp.swapaxes(out.reshape(heads, batch, *pairs), 0, 1)


@dataclasses.dataclass(frozen=True)
class DAPE(Encoding):
    """Adds a network's output over the heads' scores and biases; `hidden` is its width."""

    hidden: int = int_field(32, 1)

    def init_layer(self, key, dims):
        """w1 [2H, M], b1 [M], w2 [M, H], b2 [H]: uniform in ±1/sqrt(rows), as in their code."""
        keys, sizes = jax.random.split(key, 4), (2 * dims.heads, self.hidden, dims.heads)

        def uniform(key, rows, *shape):
            return jax.random.uniform(key, shape, jnp.float32, -(rows**-0.5), rows**-0.5)

        layers = {}
        for n, (rows, columns) in enumerate(zip(sizes, sizes[1:], strict=False), start=1):
            layers[f"w{n}"] = uniform(keys[2 * n - 2], rows, rows, columns)
            layers[f"b{n}"] = uniform(keys[2 * n - 1], rows, columns)
        return layers

    def terms(self, params, dims):
        return (PairRescore(rescore, params.layer),)


def rescore(arrays, scores, bias):
    """f([A, B])."""
    return adapt(scores, bias, **arrays)
