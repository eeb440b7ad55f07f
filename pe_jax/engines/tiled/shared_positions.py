"""Scores of positions alone, computed once for the batch rows of a tile that share positions."""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import ScoreTerm, Side


def scores(term: ScoreTerm, q: Side, k: Side, states: Any) -> Any:
    """`term.scores`, evaluated once for all rows of the batch that have the same positions.

    The others are evaluated one by one. The shared positions are the greatest of all rows: those of
    a row in which no document begins, as a document that begins within a row lowers its positions.
    """
    positions = q.tokens.positions, k.tokens.positions
    batch = max(map(len, positions))
    if batch == 1 or not term.positions_alone:
        return term.scores(q, k, states)
    q, k = (side._replace(x=side.x[:1]) for side in (q, k))  # for the number of heads

    @jax.checkpoint
    def of_row(term: Any, positions: tuple) -> jax.Array:
        row_q, row_k = (
            side._replace(tokens=side.tokens._replace(positions=x[None]))
            for side, x in zip((q, k), positions, strict=True)
        )
        return term.scores(row_q, row_k, states)[0]

    greatest = tuple(x.max(0) for x in positions)
    common = of_row(term, greatest)

    def row(positions: tuple) -> jax.Array:
        same = jnp.stack([(x == y).all() for x, y in zip(positions, greatest, strict=True)]).all()
        return jax.lax.cond(same, lambda: common, lambda: of_row(term, positions))

    return jax.lax.map(row, tuple(jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in positions))
