"""Kinds that depend on the distance alone: biases, and vectors for dot products.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms.diagonals import Pairs
from pe_jax.encodings.terms.term import (
    OfSomeHeads,
    ScoreTerm,
    Side,
    State,
    Term,
    Tokens,
    kind,
    static,
)
from pe_jax.numerics.arrays import align


class ByDistance(Term):
    """Depends on the distance alone: at contiguous positions engines evaluate it per distance."""

    def at(self, distance: jax.Array) -> jax.Array:
        """Its values at distances [*n]: float32 [H or 1, *n, …]."""
        raise NotImplementedError

    def pairs(self, q: Tokens, k: Tokens) -> Pairs:
        """Its values at all pairs of a block, at any positions."""
        return Pairs(self.at(q.positions[:, :, None] - k.positions[:, None]))


class DistanceScores(ByDistance, ScoreTerm):
    """Adds scores that depend on the distance alone: `at`, and `along` if they are not biases."""

    def scores(self, q, k, states):
        return self.along(self.pairs(q.tokens, k.tokens), q, k, states)

    def along(self, line: Any, q: Side, k: Side, states: Any) -> jax.Array:
        """The scores of a block from its values there: its `pairs`, or a `Line` of diagonals."""
        return line.spread(q.x.shape[2], k.x.shape[2])


@kind
class DistanceTerm(ByDistance):
    """A kind with values `fn(arrays, distance)` [H or 1, *n, …], which engines hold in tables.

    Attributes:
      fn: the function, of integer distances [*n] ([*n, A] of several axes).
      arrays: its parameters.
      horizon: (low, high): the term is constant for distances ≤ low and for distances ≥ high; or
        None. With a horizon only tiles near the diagonal pay for it.
    """

    by_head = False

    fn: Callable = static()
    arrays: Any = None
    horizon: tuple[int, int] | None = static(default=None, kw_only=True)

    def at(self, distance):
        return self.fn(self.arrays, distance).astype(jnp.float32)

    def without_function_arrays(self) -> "DistanceTerm":
        """The term for engines that hold its values in a table."""
        return dataclasses.replace(self, arrays=None)

    def for_heads(self, share):
        return dataclasses.replace(self, fn=OfSomeHeads(self.fn, share, 0))


@kind
class DistanceBias(DistanceTerm, DistanceScores):
    """A bias: `fn` gives [H, *n]. With `scaled` it is multiplied by the scale, as q·k is."""

    positions_alone = True

    scaled: bool = static(default=False, kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]


class DistanceVectors(DistanceTerm):
    """A vector of each distance."""


class DistanceProducts(DistanceVectors, DistanceScores):
    """Adds the products of these vectors with numbers of the query or the key."""

    def dotted_with(self, q: Side, k: Side, states: Any) -> tuple[str, jax.Array]:
        """What the vectors are dotted with: "q" or "k", and numbers of that side.

        Float32 [B or 1, H or K, T or S, width of a vector].
        """
        raise NotImplementedError

    def along(self, line, q, k, states):
        return line.products(self.dotted_with(q, k, states)[1], k.x.shape[2])


@kind
class RelativeKeys(DistanceProducts):
    """Vectors [H or 1, *n, E] dotted with q as it was before rotations (plus `u` [H, E])."""

    scaled = True
    reads_raw = "q"
    u: jax.Array | None = dataclasses.field(default=None, kw_only=True)

    def dotted_with(self, q, k, states):
        raw = q.raw.astype(jnp.float32)
        return "q", raw if self.u is None else raw + align(self.u[:, None], raw)

    def for_heads(self, share):
        term = super().for_heads(share)
        return term if self.u is None else dataclasses.replace(term, u=share(self.u, 0))


@kind
class RelativeQueries(DistanceProducts):
    """Vectors [H or 1, *n, E] dotted with k as it was before rotations."""

    scaled = True
    reads_raw = "k"

    def dotted_with(self, q, k, states):
        return "k", k.raw.astype(jnp.float32)

    def along(self, line, q, k, states):
        return line.key_products(k.raw, *q.x.shape[1:3])


@kind
class RelativeState(DistanceProducts):
    """Vectors [H or 1, *n, C] dotted with the query's state."""

    state: State = dataclasses.field(kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]

    @property
    def key_width(self):
        return 0

    def dotted_with(self, q, k, states):
        return "q", states[0]


@kind
class RelativeValues(DistanceVectors):
    """Vectors [H or 1, *n, F] averaged with the attention weights, as the values are."""
