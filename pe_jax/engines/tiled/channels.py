"""The term that stands for q·k: channels that fade by what the tokens between say."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Side, repeat_heads
from pe_jax.engines.tiled.leaves import Leaves
from pe_jax.engines.tiled.ways import Way
from pe_jax.numerics.running_sums import between

# Of tiles. A pair on the diagonal takes an exponential for each channel: a gradient at 1,024 tokens
# took 0.29 s with tiles of 64 and 2.4 s with tiles of 512.
SIDE = 64


class ChannelLeaves(NamedTuple):
    """What tiles read."""

    term: Any
    q: Any  # the queries after rotations: [b, h, T, E]
    k: Any  # the keys: [b, k, S, E]
    rows: Any  # the queries' sums: [b, h, T, 2E]
    columns: Any  # the keys': [b, h, S, 2E]


class Channels(Way):
    """A product of matrices where a tile's keys all come before its queries, else pair by pair."""

    for_products = True
    cheap = False

    def prepare(self, tables, q, k):
        (term,), (rows,), (columns,) = tables, q.states, k.states
        return Leaves(always=ChannelLeaves(term, q.x, k.x, rows, columns))

    def cuts(self, tile):
        rows, columns = self.row_cut(tile), self.column_cut(tile)
        return Leaves(always=ChannelLeaves(None, rows, columns, rows, columns))

    def scores(self, near, always, tile):
        first = tile.q.index[:, :1]
        behind = jnp.all(tile.q.index >= first) & jnp.all(tile.k.index <= first)

        def pair_by_pair(q, k, rows, columns):
            sides = (Side(x, None, (), tokens) for x, tokens in ((q, tile.q), (k, tile.k)))
            return always.term.products(*sides, (rows, columns))

        return self.scale * jax.lax.cond(behind, products_behind, pair_by_pair, *always[1:])


def products_behind(q: jax.Array, k: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """`ChannelDecay.products` where the first query follows all keys and the others follow it.

    |P - P'| is then the way from the key to the first query, and on from there: of steps of one
    sign, so that neither exponential exceeds 1. (Padding, whose sums are 0, has any it likes.)
    """
    sums = [jnp.split(x, 2, axis=-1) for x in (rows, columns)]
    first = [x[..., :1, :] for x in sums[0]]
    fade_q, fade_k = (jnp.exp(-between(x, first)) for x in sums)
    keys = repeat_heads(k, q.shape[1]).astype(jnp.float32) * fade_k
    queries = q.astype(jnp.float32) * fade_q
    exact = jax.lax.Precision.HIGHEST
    return jnp.einsum("bhre,bhce->bhrc", queries, keys, precision=exact)
