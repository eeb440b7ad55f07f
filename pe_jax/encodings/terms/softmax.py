"""Kinds that act on scores and weights: masks, sinks, weights without a softmax.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms.term import ResultTerm, State, Term, Tokens, kind, static
from pe_jax.numerics.arrays import align


@kind
class Mask(Term):
    """Hides more pairs than the causal mask, the window and the segments: `fn(arrays, q, k)`.

    q and k are `Tokens` and the result is bool [B or 1, T, S]. A tile asks for its own tokens, so
    the function reads their indices, segments and positions, and arrays [B or 1, …] that it looks
    up by index (the length of each row's prefix, the subtree of each token).

    Attributes:
      fn: the function.
      arrays: what it looks up.
      length: how many tokens it can tell apart (a tree's); None: any number.
      looks_ahead: whether later tokens can be visible: attention is then not causal unless the call
        says `causal=True`.
      of_index: whether the function reads nothing but indices, so that kernels can call it.
    """

    fn: Callable = static()
    arrays: Any = None
    length: int | None = static(default=None, kw_only=True)
    looks_ahead: bool = static(default=False, kw_only=True)
    of_index: bool = static(default=False, kw_only=True)

    def visible(self, q: Tokens, k: Tokens) -> jax.Array:
        """Which pairs are visible: bool [B or 1, 1, T, S]."""
        visible = self.fn(self.arrays, q, k)
        pairs = (q.index.shape[-1], k.index.shape[-1])
        if visible.dtype != bool or visible.ndim != 3 or visible.shape[1:] != pairs:
            given = f"its function gives {visible.dtype}{list(visible.shape)}"
            raise ValueError(f"mask: {given}; pass one that gives bool {['B or 1', *pairs]}")
        return visible[:, None]


@kind
class Sink(ResultTerm):
    """One more logit [H] in the softmax of each row, without a value.

    With a `state` of one number, the query's number is added to the logit.
    """

    logit: jax.Array
    state: State | None = None

    def rescale(self, out, lse, state):
        logit = align(self.logit[:, None, None], out) + (0 if state is None else state)
        return out * jax.nn.sigmoid(lse - logit), jnp.logaddexp(lse, logit)

    def for_heads(self, share):
        return dataclasses.replace(self, logit=share(self.logit, 0))


@kind
class Unnormalized(ResultTerm):
    """Weights are exp(score): no softmax divides them by their sum. At most one, and no `Sink`."""

    def rescale(self, out, lse, state):
        return out * jnp.exp(lse), lse
