"""Terms that are arithmetic on distances or on the states of two tokens: computed in each tile."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import DistanceFormula, TokenBias, TokenProduct
from pe_jax.engines.tiled.leaves import Leaves
from pe_jax.engines.tiled.ways import Way, add_up


class InPlaceLeaves(NamedTuple):
    """What tiles read."""

    formulas: Any  # terms whose numbers are [C, 1, h, 1, 1]
    biases: Any  # terms whose states follow
    rows: Any  # the queries' states for each bias: [b, h, T, C]
    columns: Any  # the keys': [b, h, S, C]
    left: Any  # the queries' factors of all products of tokens, side by side: [b, h, T, C], or None
    right: Any  # the keys': [b, h, C, S], the faster way to multiply by


class InPlace(Way):
    """Formulas, and biases and products of two tokens' states; at any positions."""

    def prepare(self, tables, q, k):
        formulas, biases, factors = [], [], []
        for term, rows, columns in zip(tables, q.states, k.states, strict=True):
            if isinstance(term, DistanceFormula):
                formulas.append(_columns(term))
            elif isinstance(term, TokenProduct):
                factors.append(term.factors((rows, columns)))
            else:
                biases.append((term, rows, columns))
        biases, rows, columns = zip(*biases, strict=True) if biases else ((), (), ())
        left = right = None
        if factors:
            left, right = (jnp.concatenate(side, axis=-1) for side in zip(*factors, strict=True))
            right = jnp.swapaxes(right, 2, 3)
        return Leaves(always=InPlaceLeaves(tuple(formulas), biases, rows, columns, left, right))

    def cuts(self, tile):
        rows, columns = self.row_cut(tile), self.column_cut(tile)
        right = columns._replace(axis=3)
        return Leaves(always=InPlaceLeaves(None, None, rows, columns, rows, right))

    def scores(self, near, always, tile):
        parts = [_formula(term, tile) for term in always.formulas]
        states = zip(always.biases, always.rows, always.columns, strict=True)
        parts += [_token_bias(*bias) for bias in states]
        if always.left is not None:
            exact = jax.lax.Precision.HIGHEST
            parts.append(jnp.matmul(always.left, always.right, precision=exact))
        return add_up(parts)


def _columns(term: Any) -> DistanceFormula:
    """The formula with its numbers as they meet the distances of a tile: [C, 1, h, 1, 1]."""
    numbers = jnp.moveaxis(term.numbers, 1, 0)[:, None, :, None, None]
    return dataclasses.replace(term, numbers=numbers)


def _formula(term: DistanceFormula, tile) -> jax.Array:
    """The bias of a tile: [b or 1, h, r, c]."""
    distance = tile.q.positions[:, :, None] - tile.k.positions[:, None]
    return term.fn(list(term.numbers), distance[:, None])


def _token_bias(term: TokenBias, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """The bias of a tile: [b, h, r, c]."""
    return term.scores(None, None, (rows, columns))  # pyright: ignore[reportArgumentType]
