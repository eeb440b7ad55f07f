"""Terms of any kind, at any positions: evaluated for every pair of a tile by their own formulas."""

from typing import Any, NamedTuple

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import RelativeValues, ScoreTerm, Side, select
from pe_jax.engines.tiled.leaves import Leaves
from pe_jax.engines.tiled.ways import Vectors, Way, add_up


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
        if all(type(term).__module__ == kinds.__name__ for term in terms):
            # Kinds of that module read no vectors after rotations, only how many heads there are.
            sides = [x._replace(x=x.x[..., :0]) for x in sides]
        return Leaves(PairLeaves(terms, *sides), values=tuple(select(tables, RelativeValues)))

    def cuts(self, tile):
        return Leaves(PairLeaves(None, self.row_cut(tile), self.column_cut(tile)))

    def scores(self, near, always, tile):
        q, k = (_side(*x) for x in ((near.q, tile.q), (near.k, tile.k)))
        parts = []
        for term, *states in zip(near.terms, q.states, k.states, strict=True):
            scores = term.scores(q, k, states)
            parts.append(self.scale * scores if term.scaled else scores)
        return add_up(parts)

    def values(self, values, weights, tile):
        q, k = (Side(weights, None, (), tokens) for tokens in (tile.q, tile.k))  # tokens are read
        return add_up(term.values(weights, q, k) for term in values)


def _side(vectors: Vectors, tokens: kinds.Tokens) -> Side:
    return Side(vectors.x, vectors.raw, vectors.states, tokens)
