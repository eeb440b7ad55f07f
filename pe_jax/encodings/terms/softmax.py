"""Kinds that change scores or weights as they stand: caps, masks, dropout, sinks.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms.term import State, Term, Tokens, kind, require_positive, static


@kind
class LogitCap(Term):
    """Bounds the scores, with all that is added to them: cap·tanh(score / cap); at most one.

    Gemma 2 (arXiv 2408.00118, §2), before the mask.
    """

    value: float = static()

    def __post_init__(self):
        require_positive("logit_cap", self.value)


@kind
class Mask(Term):
    """Hides pairs that the causal mask, the window and the segments show: `fn(arrays, q, k)`.

    q and k are `Tokens` and the result is bool [B or 1, T, S]. A tile asks for its own tokens, so
    the function reads their indices, segments and positions, and arrays [B or 1, …] that it looks
    up by index (the length of each row's prefix, the subtree of each token).

    Attributes:
      fn: the function.
      arrays: what it looks up.
      length: how many tokens it can tell apart (a tree's); None: any number.
    """

    reads = "pairs"
    hides = True
    by_head = True

    fn: Callable = static()
    arrays: Any = None
    length: int | None = static(default=None, kw_only=True)

    def visible(self, q: Tokens, k: Tokens) -> jax.Array:
        """Which pairs are visible: bool [B or 1, 1, T, S]."""
        seen = self.fn(self.arrays, q, k)
        pairs = (q.index.shape[-1], k.index.shape[-1])
        if seen.dtype != bool or seen.ndim != 3 or seen.shape[1:] != pairs:
            given = f"its function gives {seen.dtype}{list(seen.shape)}"
            raise ValueError(f"mask: {given}; pass one that gives bool {['B or 1', *pairs]}")
        return seen[:, None]


@kind
class Dropout(Term):
    """Drops weights and divides those that are kept by 1 - rate; at most one.

    A pair is dropped by a hash of its row's seed and of the two tokens' indices: every engine drops
    the same pairs, and the backward pass draws them again.

    Attributes:
      seeds: uint32 [B, H], drawn for each call.
      rate: the fraction that is dropped.
    """

    seeds: jax.Array
    rate: float = static(kw_only=True)

    def factors(self, q: Tokens, k: Tokens) -> jax.Array:
        """What the weights are multiplied by: 0 or 1 / (1 - rate), float32 [B, H, T, S]."""
        golden, mixed = jnp.uint32(0x9E3779B9), jnp.uint32(0x85EBCA6B)
        rows, columns = (tokens.index.astype(jnp.uint32) for tokens in (q, k))
        bits = self.seeds[..., None] ^ (rows * golden)[:, None]
        bits = mix_bits(bits)[..., None] ^ (columns * mixed)[:, None, None]
        kept = mix_bits(bits) >= jnp.uint32(round(self.rate * 2**32))
        return jnp.where(kept, jnp.float32(1 / (1 - self.rate)), 0)


def mix_bits(x: jax.Array) -> jax.Array:
    """Bits that look random, one to one: the finalizer of MurmurHash3 (Appleby), uint32."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@kind
class Sink(Term):
    """One more logit [H] in the softmax of each row, without a value.

    With a `state` of one number, that of the query is added to it.
    """

    reads = "outside"

    logit: jax.Array
    state: State | None = None

    def for_heads(self, share):
        return dataclasses.replace(self, logit=share(self.logit, 0))


@kind
class Unnormalized(Term):
    """Weights are exp(score): no softmax divides them by their sum. At most one, and no `Sink`."""

    reads = "outside"
