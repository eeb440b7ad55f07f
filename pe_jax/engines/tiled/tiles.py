"""How large tiles are, how many there are, and how devices share a call.

On CPU a tile holds two heads or more (XLA splits elementwise loops over the leading axes only, so
one for each core) of 512 × 512 scores, and the heads take turns: what a tile needs stays in the
caches. On other devices, and on several, a tile holds all heads, so that a sharded batch or head
axis is never looped over; its sides halve until it fits TILE scores per device.
"""

import dataclasses
import math
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.terms import Tokens
from pe_jax.engines.tiled.groups import Groups
from pe_jax.validation import require

TILE = 2**21  # scores in a tile that holds all heads: 8 MB of float32
AREA = 2**19  # scores in a tile that holds some: two heads of 512 × 512
LARGEST = (512, 512)  # rows and columns
NARROWEST = 64


@dataclasses.dataclass(frozen=True)
class TileSizes:
    """Sizes of tiles; what is None is chosen for each call.

    Attributes:
      rows: queries in a tile.
      columns: keys in a tile.
      group: rows of the batch and heads in a tile, where heads can take turns.
      sub_blocks: sides of the sub-blocks of which bands make a tile, smallest first.
      window_rows: rows of a tile that share one window of distances.
    """

    rows: int | None = None
    columns: int | None = None
    group: tuple[int, int] | None = None
    sub_blocks: tuple[int, ...] = (64, 128, 256)
    window_rows: int = 256


CHOSEN = TileSizes()


class Partition(NamedTuple):
    """How devices share a call: not at all, or as a ring has it.

    Attributes:
      runs_per_row: contiguous runs of tokens that a row is cut into.
      runs: those that one device holds.
      batch: devices that share the batch, each with rows of its own.
      heads: devices that share the heads, each with heads of its own.
      devices: those that share batch and heads, by hand as above or by the compiler.
    """

    runs_per_row: int = 1
    runs: int = 1
    batch: int = 1
    heads: int = 1
    devices: int = 1


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
    """The tiles of a call, or of what one device has of it.

    Attributes:
      rows: queries in a tile.
      columns: keys in a tile.
      q_blocks: rows of tiles.
      k_blocks: columns of tiles.
      runs: contiguous runs of tokens among the queries, and as many among the keys.
      longest: no two tokens of a row are farther apart.
    """

    rows: int
    columns: int
    q_blocks: int
    k_blocks: int
    runs: int = 1
    longest: int = 2**30

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


def arrange(
    q: jax.Array, k: jax.Array, partition: Partition, sizes: TileSizes, heads_apart: bool
) -> tuple[Grid, Groups]:
    """The tiles of a call and the groups of heads that take turns.

    Args:
      q: [B, H, T, E]; the shape alone is read.
      k: [B, K, S, E], likewise.
      partition: how devices share the call.
      sizes: of tiles.
      heads_apart: whether a tile may hold some of the heads.
    """
    (batch, heads, queries, _), kv_heads, keys = q.shape, k.shape[1], k.shape[2]
    runs = partition.runs_per_row
    queries, keys = queries // runs, keys // runs
    turns = heads_apart and alone(runs * partition.devices)
    pairs = 1 if turns else -(-batch * heads // partition.devices)
    rows, columns = block_sizes(LARGEST, pairs, queries, keys)
    rows = rows if sizes.rows is None else min(sizes.rows, queries)
    columns = columns if sizes.columns is None else min(sizes.columns, keys)
    batch, heads, kv_heads = (
        batch // partition.batch,
        heads // partition.heads,
        kv_heads // partition.heads,
    )
    b, h = batch, heads
    if turns:
        b, h = sizes.group or group_sizes(batch, heads, kv_heads, rows * columns)
        _check_group(b, h, batch, heads, kv_heads)
    q_blocks, k_blocks = partition.runs * -(-queries // rows), partition.runs * -(-keys // columns)
    grid = Grid(rows, columns, q_blocks, k_blocks, partition.runs)
    longest = runs * max(grid.lengths) + columns
    return dataclasses.replace(grid, longest=longest), Groups(batch // b, heads // h, b, h)


def _check_group(b: int, h: int, batch: int, heads: int, kv_heads: int) -> None:
    shared = heads // kv_heads
    fits = batch % b == heads % h == 0 and (shared % h == 0 or h % shared == 0)
    fix = f"must divide {batch} rows and {heads} heads, and keep the queries of a key head together"
    require(fits, "group", (b, h), fix)


def block_sizes(largest: tuple[int, int], pairs: int, queries: int, keys: int) -> tuple[int, int]:
    """Rows and columns of a tile of `pairs` = batch × heads, `largest` at most."""
    rows, columns = largest
    while pairs * min(rows, queries) * min(columns, keys) > TILE and max(rows, columns) > NARROWEST:
        rows, columns = max(rows // 2, 1), max(columns // 2, 1)
    return _even(queries, rows), _even(keys, columns)


def _even(length: int, widest: int) -> int:
    """A block length that cuts `length` with little to spare, in 64s where there are several."""
    blocks = -(-length // widest)
    return length if blocks == 1 else min(widest, -(-length // (blocks * NARROWEST)) * NARROWEST)


def group_sizes(batch: int, heads: int, kv_heads: int, area: int) -> tuple[int, int]:
    """How much of the batch and of the heads one tile takes, of `area` scores per pair of both.

    The heads of a group share one key head, or bring all queries of several.
    """
    most = max(AREA // area, min(os.cpu_count() or 1, 8))
    shared = heads // kv_heads
    fits = [h for h in range(1, min(heads, most) + 1) if heads % h == 0]
    h = max(h for h in fits if shared % h == 0 or h % shared == 0)
    if h < heads:
        return 1, h
    return max(b for b in range(1, batch + 1) if batch % b == 0 and b * h <= max(most, h)), h


def devices(*arrays) -> int:
    """The number of devices that share what is computed from these arrays.

    The mesh in force says so (`jax.set_mesh`; a shard_map, whose manual axes do not count); where
    there is none, the mesh that the arrays lie on, which their types tell under jit too. Neither:
    one device, however many the process sees. The engine and the sizes of tiles follow from it, and
    never a result: XLA divides whatever it is given.

    What is not seen is a mesh that `in_shardings` alone know, of a jit whose arguments lie on no
    mesh. Enter the mesh (`jax.set_mesh`), as the trainer does, or heads take turns that could run
    side by side.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        meshes = [jax.typeof(x).sharding.mesh for x in arrays]
        return max((mesh.size for mesh in meshes if not mesh.empty), default=1)
    return mesh.size // math.prod(mesh.shape[axis] for axis in mesh.manual_axes)


def alone(count: int) -> bool:
    """Whether heads may take turns: on a CPU, where `count` devices share a call."""
    return jax.default_backend() == "cpu" and count == 1
