"""How large tiles are, and how many.

On a CPU a tile holds two heads or more (XLA splits elementwise loops over the leading axes only, so
one for each core), and the heads take turns: the data of a tile stays in the caches. For short rows
it holds few scores of many heads: half of a large tile would be hidden, and its scores would leave
the caches. That is not so where vectors of distances reach over several small tiles, each of which
would multiply its own part of them. Where pairs near the diagonal cost more than others, tiles are
smaller at any length. On other devices, and on several, a tile holds all heads, so that a sharded
batch or head axis is never looped over; its sides halve until it fits MOST scores per device. A GPU
launches each operation of a tile by itself, which took longer than the operations while tiles were
as small as a CPU's, so that tiles are larger there (docs/performance.md has the count).
"""

import dataclasses
import math
import os
from typing import NamedTuple

import jax

from pe_jax.engines.tiled.groups import Groups
from pe_jax.validation import PlainFields, require

MOST = 2**21  # scores in a tile that holds all heads: 8 MB of float32
AREA = 2**19  # scores in a tile that holds some: two heads of 512 × 512
LARGEST, SMALL = 512, 64  # sides
GPU_MOST = 2**25  # in place of MOST on a GPU: 128 MB
VECTORS = 256  # side, with vectors of distances: those within a horizon cost less
COSTLY = 128  # side, where pairs cost more than a product, all of them or those near a query
SHORT = 512  # tokens: rows up to here have small tiles


@dataclasses.dataclass(frozen=True)
class TileSizes(PlainFields):
    """Sizes of tiles; a size of None is chosen for each call."""

    rows: int | None = None  # queries in a tile
    columns: int | None = None  # keys in a tile
    # rows of the batch and heads in a tile, where heads can take turns
    group: tuple[int, int] | None = None


CHOSEN = TileSizes()


class Grid(NamedTuple):
    """The tiles of a call, or of one device's part of it."""

    rows: int  # queries in a tile
    columns: int  # keys in a tile
    q_blocks: int  # rows of tiles
    k_blocks: int  # columns of tiles

    @property
    def lengths(self) -> tuple[int, int]:
        """Queries and keys, each to the end of the last tile."""
        return self.rows * self.q_blocks, self.columns * self.k_blocks


def arrange(
    queries: tuple[int, int, int],
    keys: tuple[int, int],
    sizes: TileSizes,
    devices: int = 1,
    by_head: bool = True,
    reach: int = 0,
    costly: bool = False,
    all_heads: bool = False,
    square: bool = False,
) -> tuple[Grid, Groups]:
    """The tiles of a call and the groups of heads that take turns.

    Args:
      queries: B, H, T.
      keys: K, S.
      sizes: of tiles.
      devices: how many share the call.
      by_head: whether a tile may hold some of the heads.
      reach: the greatest distance within which vectors of distances differ.
      costly: whether smaller tiles take less time: pairs cost more, all or those near a query.
      all_heads: whether a tile has to hold all heads, for a network over the heads of each pair.
      square: whether tiles have as many queries as keys, of which there are as many.
    """
    (batch, heads, length), (kv_heads, keys_length) = queries, keys
    turns = by_head and alone(devices)
    pairs = 1 if turns else -(-batch * heads // devices)
    # where terms make states for tiles, a pair may take as many numbers as a head has channels
    most = GPU_MOST if jax.default_backend() == "gpu" and not square else MOST
    short = max(length, keys_length) <= SHORT and reach <= SMALL
    small = turns and short
    side = VECTORS if reach or square else LARGEST
    side = COSTLY if costly and alone(devices) else side
    side = SMALL if small else side
    rows, columns = (_even(n, _side(side, pairs, n, most)) for n in (length, keys_length))
    rows = rows if sizes.rows is None else min(sizes.rows, length)
    columns = columns if sizes.columns is None else min(sizes.columns, keys_length)
    rows, columns = (min(rows, columns),) * 2 if square else (rows, columns)
    grid = Grid(rows, columns, -(-length // rows), -(-keys_length // columns))
    group = batch, heads
    if turns:
        # what terms make for tiles is in memory for all tokens of a group
        area = LARGEST**2 if square and not small else rows * columns
        group = sizes.group or _group(batch, heads, kv_heads, area)
        group = (1, heads) if all_heads else group
        _check_group(group, batch, heads, kv_heads)
    return grid, Groups(batch // group[0], heads // group[1], *group)


def _check_group(group: tuple[int, int], batch: int, heads: int, kv_heads: int) -> None:
    (b, h), shared = group, heads // kv_heads
    fits = batch % b == heads % h == 0 and (shared % h == 0 or h % shared == 0)
    fix = f"must divide {batch} rows and {heads} heads, and keep the queries of a key head together"
    require(fits, "group", group, fix)


def _side(side: int, pairs: int, length: int, most: int) -> int:
    """A side of a tile of `pairs` = batch × heads and at most so many scores."""
    while pairs * min(side, length) ** 2 > most and side > SMALL:
        side //= 2
    return side


def _even(length: int, widest: int) -> int:
    """A block length with little padding: in 64s (16s if `widest` is 64), or all of `length`."""
    blocks, step = -(-length // widest), min(SMALL, max(widest // 4, 1))
    return length if blocks == 1 else min(widest, -(-length // (blocks * step)) * step)


def _group(batch: int, heads: int, kv_heads: int, area: int) -> tuple[int, int]:
    """How many batch rows and heads one tile holds, with `area` scores for each pair of these.

    The heads of a group share one key head, or are all query heads of several.
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
    there is none, the mesh that the arrays lie on, which their types tell under jit too. Without
    either: one device, however many the process sees. The choice of engine and tile sizes depends
    on this number, results do not: XLA partitions any program.

    A mesh that only `in_shardings` name, of a jit whose arguments lie on no mesh, is not found.
    Enter the mesh (`jax.set_mesh`), as the trainer does; otherwise heads take turns that could run
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
