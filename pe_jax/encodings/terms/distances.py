"""Kinds that depend on the distance alone: biases, and vectors for dot products.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms.term import (
    OfSomeHeads,
    ScoreTerm,
    Side,
    State,
    Term,
    kind,
    pair_distance,
    static,
)
from pe_jax.numerics.arrays import align, repeat_heads


@kind
class DistanceTerm(Term):
    """A kind whose `fn(arrays, distance)` depends on the distance alone: [H or 1, *n, …].

    Attributes:
      fn: the function, of integer distances [*n] ([*n, A] of several axes).
      arrays: its parameters.
      horizon: (low, high): the term is constant for distances ≤ low and for distances ≥ high; or
        None. With a horizon only tiles near the diagonal pay for it.
    """

    distances = "vectors"

    fn: Callable = static()
    arrays: Any = None
    horizon: tuple[int, int] | None = static(default=None, kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]

    def at(self, distance: jax.Array) -> jax.Array:
        """Its values at distances [*n]: float32 [H or 1, *n, …]."""
        return self.fn(self.arrays, distance).astype(jnp.float32)

    def without_function_arrays(self) -> "DistanceTerm":
        """The term for engines that hold its values in a table."""
        return dataclasses.replace(self, arrays=None)

    def contract(self, form: str, x: jax.Array, q: Side, k: Side) -> jax.Array:
        """Sums x times the vectors [H or 1, B or 1, T, S, E] of all pairs as `form` says."""
        return jnp.einsum(form, x.astype(jnp.float32), self.at(pair_distance(q, k)))

    def for_heads(self, share):
        return dataclasses.replace(self, fn=OfSomeHeads(self.fn, share, 0))


@kind
class DistanceBias(DistanceTerm, ScoreTerm):
    """A bias: `fn` gives [H, *n]. With `scaled` it is multiplied by the scale, as q·k is."""

    distances = "bias"
    positions_alone = True

    scaled: bool = static(default=False, kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]

    def scores(self, q, k, states):
        return jnp.moveaxis(self.at(pair_distance(q, k)), 0, 1)

    def along(self, line, q, k, states):
        return line.spread(q.x.shape[2], k.x.shape[2])[None]


@kind
class RelativeKeys(DistanceTerm, ScoreTerm):
    """Vectors [H or 1, *n, E] dotted with q as it was before rotations (plus `u` [H, E])."""

    scaled = True
    reads_raw = "q"
    u: jax.Array | None = dataclasses.field(default=None, kw_only=True)

    def dotted_with(self, q, k, states):
        raw = q.raw.astype(jnp.float32)
        return "q", raw if self.u is None else raw + align(self.u[:, None], raw)

    def scores(self, q, k, states):
        return self.contract("bhte,hbtse->bhts", self.dotted_with(q, k, states)[1], q, k)

    def along(self, line, q, k, states):
        return line.products(self.dotted_with(q, k, states)[1], k.x.shape[2])

    def for_heads(self, share):
        term = super().for_heads(share)
        return term if self.u is None else dataclasses.replace(term, u=share(self.u, 0))


@kind
class RelativeQueries(DistanceTerm, ScoreTerm):
    """Vectors [H or 1, *n, E] dotted with k as it was before rotations."""

    scaled = True
    reads_raw = "k"

    def dotted_with(self, q, k, states):
        return "k", k.raw.astype(jnp.float32)

    def scores(self, q, k, states):
        return self.contract("bhse,hbtse->bhts", repeat_heads(k.raw, q.x.shape[1]), q, k)

    def along(self, line, q, k, states):
        return line.key_products(k.raw, *q.x.shape[1:3])


@kind
class RelativeState(DistanceTerm, ScoreTerm):
    """Vectors [H or 1, *n, C] dotted with the query's state."""

    state: State = dataclasses.field(kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]

    def dotted_with(self, q, k, states):
        return "q", states[0]

    def scores(self, q, k, states):
        return self.contract("bhte,hbtse->bhts", states[0], q, k)

    def along(self, line, q, k, states):
        return line.products(states[0], k.x.shape[2])


@kind
class RelativeValues(DistanceTerm):
    """Vectors [H or 1, *n, F] averaged with the attention weights, as the values are."""

    reads = "pairs"

    def values(self, weights: jax.Array, q: Side, k: Side) -> jax.Array:
        """Float32 [B, H, T, F] for weights [B, H, T, S]."""
        return self.contract("bhts,hbtse->bhte", weights, q, k)

    def values_along(self, line, weights):
        return line.average(weights)
