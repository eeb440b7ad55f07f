"""Terms of any kind, at any positions: evaluated for every pair of a tile by their own formulas."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import RelativeValues, ScoreTerm, Side, select
from pe_jax.engines.tiled.leaves import Leaves
from pe_jax.engines.tiled.tiles import alone, devices
from pe_jax.engines.tiled.ways import Vectors, Way, add_up

OF_POSITIONS = (kinds.PairBias, kinds.DistanceBias)  # they read nothing else


class PairLeaves(NamedTuple):
    """What tiles read: the terms of scores, and the vectors that these need."""

    terms: Any
    q: Any
    k: Any


class Pairwise(Way):
    """The last resort: positions, states and vectors of two tokens.

    A term's function has all heads, so a tile has them too.
    """

    heads_apart = False
    cheap = False

    def prepare(self, tables, q, k):
        scored = [i for i, term in enumerate(tables) if isinstance(term, ScoreTerm)]
        terms = tuple(tables[i] for i in scored)
        sides = [x._replace(states=tuple(x.states[i] for i in scored)) for x in (q, k)]
        if all(type(term).__module__.startswith(f"{kinds.__name__}.") for term in terms):
            # Kinds of that package read no vectors after rotations, only how many heads there are.
            sides = [x._replace(x=x.x[..., :0]) for x in sides]
        return Leaves(PairLeaves(terms, *sides), values=tuple(select(tables, RelativeValues)))

    def cuts(self, tile):
        return Leaves(PairLeaves(None, self.row_cut(tile), self.column_cut(tile)))

    def scores(self, near, always, tile):
        q, k = (_side(*x) for x in ((near.q, tile.q), (near.k, tile.k)))
        parts = []
        for term, *states in zip(near.terms, q.states, k.states, strict=True):
            scores = _scores(term, q, k, states)
            parts.append(self.scale * scores if term.scaled else scores)
        return add_up(parts)

    def values(self, values, weights, tile):
        q, k = (Side(weights, None, (), tokens) for tokens in (tile.q, tile.k))  # tokens are read
        return add_up(term.values(weights, q, k) for term in values)


def _scores(term: ScoreTerm, q: Side, k: Side, states: list) -> jax.Array:
    """`term.scores`, row by row where these follow from positions alone and heads take turns.

    Rows that all have the same positions have the same scores, evaluated once. Documents that begin
    within a row lower its positions, so that the greatest of all rows are those of a row without.
    """
    positions = q.tokens.positions, k.tokens.positions
    batch = max(map(len, positions))
    if type(term) not in OF_POSITIONS or batch == 1 or not alone(devices(q.x, k.x)):
        return term.scores(q, k, states)
    q, k = (side._replace(x=side.x[:1]) for side in (q, k))  # tells the number of heads

    @jax.checkpoint
    def of_row(term: ScoreTerm, positions: tuple) -> jax.Array:
        row_q, row_k = (
            side._replace(tokens=side.tokens._replace(positions=x[None]))
            for side, x in zip((q, k), positions, strict=True)
        )
        return term.scores(row_q, row_k, states)[0]

    greatest = tuple(x.max(0) for x in positions)
    common = of_row(term, greatest)

    def row(own: tuple) -> jax.Array:
        same = [(x == y).all() for x, y in zip(own, greatest, strict=True)]
        return jax.lax.cond(same[0] & same[1], lambda: common, lambda: of_row(term, own))

    each = tuple(jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in positions)
    return jax.lax.map(row, each)


def _side(vectors: Vectors, tokens: kinds.Tokens) -> Side:
    return Side(vectors.x, vectors.raw, vectors.states, tokens)
