"""Biases of sums of gates along rows, tile by tile: tiles are visited from the right.

Each row carries one number per term, how much the gates of the tiles to the right add up to. A sum
in a tile is that number plus what the tile adds itself; nothing else is kept. `along_rows` says how
the passes visit tiles.

b, h batch and heads of the group, r, c rows and columns of a tile, C numbers of a query.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import RowSum, select
from pe_jax.engines.tiled.leaves import Leaves
from pe_jax.engines.tiled.ways import Way, add_up

BLOCK = 32  # columns that are summed by one small matrix product


class SumLeaves(NamedTuple):
    """What tiles read, for each term."""

    terms: tuple[RowSum, ...]  # without arrays
    numbers: tuple[Any, ...]  # those of queries: [b or 1, h, T, C], or None
    left: tuple[Any, ...]  # the queries' half of a state: [b, h, T, C], or None
    right: tuple[Any, ...]  # the keys': [b, h, C, S]


class RowSums(Way):
    """Biases of sums along the row, at any positions; `along` evaluates them, not `scores`."""

    cheap = False  # a tile whose mask shows all of it takes part in the sums all the same

    def prepare(self, tables, q, k):
        raw = None if q.raw is None else self.scale * q.raw.astype(jnp.float32)
        left = tuple(None if t.state is None else x for t, x in zip(tables, q.states, strict=True))
        right = tuple(x if x is None else jnp.swapaxes(x, 2, 3) for x in k.states)
        terms = tuple(dataclasses.replace(term, arrays=None, state=None) for term in tables)
        numbers = tuple(self._of_queries(term, raw, q.x) for term in tables)
        return Leaves(always=SumLeaves(terms, numbers, left, right))

    def _of_queries(self, term: RowSum, raw: Any, q: jax.Array) -> Any:
        """A term's numbers of all queries [b, h, T, E], whatever they are broadcast from."""
        numbers = term.of_queries(raw)
        if numbers is None:
            return None
        return jnp.broadcast_to(numbers, (len(numbers), *q.shape[1:3], numbers.shape[-1]))

    def cuts(self, tile):
        rows, columns = self.row_cut(tile), self.column_cut(tile)
        return Leaves(always=SumLeaves(None, rows, rows, columns._replace(axis=3)))  # pyright: ignore[reportArgumentType]

    def scores(self, near, always, tile):
        return None

    def along(
        self, leaves: SumLeaves, products: jax.Array, seen: jax.Array, carried: tuple
    ) -> tuple[jax.Array, tuple]:
        """The bias of a tile [b, h, r, c], and what its rows carry on.

        Args:
          leaves: the tile's part.
          products: q·k times the scale, float32 [b, h, r, c].
          seen: what the mask shows, bool [b or 1, 1, r, c].
          carried: the sums of the gates to the right, [b, h, r, 1] for each term.
        """
        biases, sums = [], []
        for term, numbers, gates, before in zip(
            leaves.terms, leaves.numbers, self.gates(leaves, products, seen), carried, strict=True
        ):
            biases.append(term.fn(numbers, before + suffix_sums(gates, term.own)))
            sums.append(before + gates.sum(-1, keepdims=True))
        return add_up(biases), tuple(sums)

    def gates(self, leaves: SumLeaves, products: jax.Array, seen: jax.Array) -> list[jax.Array]:
        """The gates of each term in a tile, 0 where a key is hidden: [b, h, r, c]."""
        gates = []
        for term, left, right in zip(leaves.terms, leaves.left, leaves.right, strict=True):
            own = products
            if left is not None:
                own = jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)
            gates.append(jnp.where(seen, term.gate(own), 0))
        return gates

    def at_limit(self, leaves: SumLeaves) -> jax.Array:
        """The bias of rows whose sums are all beyond their limits: [b, h, r, 1]."""
        biases = []
        for term, numbers in zip(leaves.terms, leaves.numbers, strict=True):
            shape = (1, 1, 1, 1) if numbers is None else (*numbers.shape[:-1], 1)
            biases.append(term.fn(numbers, jnp.full(shape, term.limit, jnp.float32)))  # pyright: ignore[reportArgumentType]
        return add_up(biases)

    def bound(self, leaves: SumLeaves, carried: tuple) -> jax.Array:
        """The bias that none of the tiles to come exceeds, where it decays: [b, h, r, 1]."""
        each = zip(leaves.terms, leaves.numbers, carried, strict=True)
        return add_up(term.fn(numbers, sums) for term, numbers, sums in each)

    def below_limit(self, leaves: SumLeaves, carried: tuple) -> jax.Array:
        """Whether any sum of a row is below its limit: bool [b, h, r, 1]."""
        each = zip(leaves.terms, carried, strict=True)
        return jnp.stack([sums < term.limit for term, sums in each]).any(0)


def limited(terms: tuple) -> bool:
    """Whether sums along rows have limits, beyond which tiles need no gates."""
    sums = select(terms, RowSum)
    return bool(sums) and all(term.limit is not None for term in sums)


def suffix_sums(x: jax.Array, own: bool) -> jax.Array:
    """The sum over all later columns, and `own`: [..., c] → [..., c]."""
    *lead, columns = x.shape
    if columns % BLOCK:
        return _small_sums(x, own)
    blocks = x.reshape(*lead, columns // BLOCK, BLOCK)
    later = _small_sums(blocks.sum(-1), False)
    return (_small_sums(blocks, own) + later[..., None]).reshape(x.shape)


def _small_sums(x: jax.Array, own: bool) -> jax.Array:
    """The same in one product with a triangle of ones."""
    index = jnp.arange(x.shape[-1], dtype=jnp.int32)
    later = index[:, None] >= index[None] + int(not own)
    return jnp.matmul(x, later.astype(x.dtype), precision=jax.lax.Precision.HIGHEST)
