"""The grid of tiles over the scores of a call: which tokens, and which distances, a tile has."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.terms import Tokens


class Tile(NamedTuple):
    """A tile of scores.

    Attributes:
      i: block row.
      j: block column.
      q: what is known of its queries.
      k: what is known of its keys.
      view: which view of queries and keys scores it, see `views`.
      gap: the distance of its first row and its first column, where positions are contiguous.
    """

    i: Any
    j: Any
    q: Tokens
    k: Tokens
    view: Any = 0
    gap: Any = 0


class Range(NamedTuple):
    """The smallest and the largest value in each block or tile."""

    low: jax.Array
    high: jax.Array


@dataclasses.dataclass(frozen=True)
class Grid:
    """The tiles of a call, or of what one device has of it."""

    rows: int  # queries in a tile
    columns: int  # keys in a tile
    q_blocks: int  # rows of tiles
    k_blocks: int  # columns of tiles
    runs: int = 1  # contiguous runs of tokens among the queries, and as many among the keys
    longest: int = 2**30  # no two tokens of a row are farther apart

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens in a run of queries and in one of keys, each to the end of its last tile."""
        q_length, k_length = self.rows * self.q_blocks, self.columns * self.k_blocks
        return q_length // self.runs, k_length // self.runs

    def tile(self, q: Tokens, k: Tokens, i, j, view=0, contiguous: bool = False) -> Tile:
        """Tile (i, j) of these tokens."""
        rows = jax.tree.map(lambda x: cut_block(x, i, self.rows, 1), q)
        columns = jax.tree.map(lambda x: cut_block(x, j, self.columns, 1), k)
        return Tile(i, j, rows, columns, view, self.gaps(q, k, i, j) if contiguous else 0)

    def gaps(self, q: Tokens, k: Tokens, i, j) -> jax.Array:
        """The distance of the first row and the first column of tile (i, j), if contiguous."""
        return q.positions[0, :: self.rows][i] - k.positions[0, :: self.columns][j]

    def run_gaps(self, q: Tokens, k: Tokens) -> jax.Array:
        """The distance between the first tokens of each two runs: int32 [runs, runs]."""
        runs = np.arange(self.runs)
        i, j = (runs * (blocks // self.runs) for blocks in (self.q_blocks, self.k_blocks))
        return self.gaps(q, k, i[:, None], j[None])

    def distances(self, q: Tokens, k: Tokens, i) -> Range:
        """Those in each tile of block row i, if contiguous: [k_blocks]."""
        gap = self.gaps(q, k, i, np.arange(self.k_blocks))
        return Range(gap - (self.columns - 1), gap + self.rows - 1)


def cut_block(x: jax.Array, i, size: int, axis: int = 2) -> jax.Array:
    """Block i, of `size`, along an axis."""
    return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis)


def ranges(x: jax.Array, blocks: int) -> Range:
    """Of the values [B or 1, T] in each of T's blocks: [blocks]."""
    x = jnp.asarray(x).reshape(len(x), blocks, -1)
    return Range(x.min((0, 2)), x.max((0, 2)))
