"""How large tiles are, how many there are, and how devices share a call.

On CPU a tile holds two heads or more (XLA splits elementwise loops over the leading axes only, so
one for each core), and the heads take turns: what a tile needs stays in the caches. Its sides are
in tile_sizes.json, which `python -m tools.tile_sizes` measures. Of short rows it holds few scores
of many heads: half of a large tile would be hidden, and its scores would leave the caches; but not
where vectors of distances reach over several such tiles, each of which would multiply its own part
of them. On other devices, and on several, a tile holds all heads, so that a sharded batch or head
axis is never looped over; its sides halve until it fits TILE scores per device.
"""

import dataclasses
import functools
import json
import math
import os
from pathlib import Path
from typing import NamedTuple

import jax

from pe_jax.engines.tiled.grid import Grid
from pe_jax.engines.tiled.groups import Groups
from pe_jax.validation import require

TILE = 2**21  # scores in a tile that holds all heads: 8 MB of float32
AREA = 2**19  # scores in a tile that holds some: two heads of 512 × 512
LARGEST = (512, 512)  # rows and columns of one that holds all heads
NARROWEST = 64


class Measured(NamedTuple):
    """The fastest sides of tiles, rows and columns, where heads take turns.

    `near` is for schemes without vectors of distances, and where these reach no farther than one
    such tile; `far` for the others.
    """

    length: int | None  # of the longest row that they are for; None: of any
    near: tuple[int, int]
    far: tuple[int, int]


@functools.cache
def measured() -> tuple[Measured, ...]:
    """The rows of tile_sizes.json, the shortest first."""
    text = Path(__file__).with_name("tile_sizes.json").read_text("utf-8")
    rows = json.loads(text)["sizes"]
    return tuple(Measured(r["length"], tuple(r["near"]), tuple(r["far"])) for r in rows)


def fastest(tokens: int, reach: int) -> tuple[int, int]:
    """Rows and columns of a tile in rows of so many tokens, with vectors that reach so far."""
    row = next(row for row in measured() if row.length is None or tokens <= row.length)
    return row.near if reach <= max(row.near) else row.far


@dataclasses.dataclass(frozen=True)
class TileSizes:
    """Sizes of tiles; what is None is chosen for each call.

    Attributes:
      rows: queries in a tile.
      columns: keys in a tile.
      group: rows of the batch and heads in a tile, where heads can take turns.
      sub_blocks: sides of the sub-blocks of which bands make a tile, smallest first.
      window_rows: rows of a tile that share one window of distances, where tiles multiply by it.
    """

    rows: int | None = None
    columns: int | None = None
    group: tuple[int, int] | None = None
    sub_blocks: tuple[int, ...] = (64, 128, 256)
    window_rows: int = 256


CHOSEN = TileSizes()


class Partition(NamedTuple):
    """How devices share a call: not at all, or as a ring has it."""

    runs_per_row: int = 1  # contiguous runs of tokens that a row is cut into
    runs: int = 1  # those that one device holds
    batch: int = 1  # devices that share the batch, each with rows of its own
    heads: int = 1  # devices that share the heads, each with heads of its own
    devices: int = 1  # those that share batch and heads, by hand as above or by the compiler
    hops: int = 0  # those whose keys a device meets, besides its own


def arrange(
    q: jax.Array,
    k: jax.Array,
    partition: Partition,
    sizes: TileSizes,
    heads_apart: bool,
    reach: int = 0,
) -> tuple[Grid, Groups]:
    """The tiles of a call and the groups of heads that take turns.

    Args:
      q: [B, H, T, E]; the shape alone is read.
      k: [B, K, S, E], likewise.
      partition: how devices share the call.
      sizes: of tiles.
      heads_apart: whether a tile may hold some of the heads.
      reach: the greatest distance within which vectors of distances differ.
    """
    runs = partition.runs_per_row
    queries, keys = q.shape[2] // runs, k.shape[2] // runs
    turns = heads_apart and alone(runs * partition.devices)
    pairs = 1 if turns else -(-q.shape[0] * q.shape[1] // partition.devices)
    largest = fastest(max(queries, keys), reach) if turns else LARGEST
    rows, columns = block_sizes(largest, pairs, queries, keys)
    rows = rows if sizes.rows is None else min(sizes.rows, queries)
    columns = columns if sizes.columns is None else min(sizes.columns, keys)
    q_blocks, k_blocks = partition.runs * -(-queries // rows), partition.runs * -(-keys // columns)
    longest = max(rows * q_blocks, columns * k_blocks) // partition.runs * runs + columns
    grid = Grid(rows, columns, q_blocks, k_blocks, partition.runs, longest)
    batch = q.shape[0] // partition.batch
    heads, kv_heads = (x.shape[1] // partition.heads for x in (q, k))
    group = batch, heads
    if turns:
        group = sizes.group or group_sizes(batch, heads, kv_heads, rows * columns)
        _check_group(group, batch, heads, kv_heads)
    return grid, Groups(batch // group[0], heads // group[1], *group)


def _check_group(group: tuple[int, int], batch: int, heads: int, kv_heads: int) -> None:
    (b, h), shared = group, heads // kv_heads
    fits = batch % b == heads % h == 0 and (shared % h == 0 or h % shared == 0)
    fix = f"must divide {batch} rows and {heads} heads, and keep the queries of a key head together"
    require(fits, "group", group, fix)


def block_sizes(largest: tuple[int, int], pairs: int, queries: int, keys: int) -> tuple[int, int]:
    """Rows and columns of a tile of `pairs` = batch × heads, `largest` at most."""
    rows, columns = largest
    while pairs * min(rows, queries) * min(columns, keys) > TILE and max(rows, columns) > NARROWEST:
        rows, columns = max(rows // 2, 1), max(columns // 2, 1)
    return _even(queries, rows), _even(keys, columns)


def _even(length: int, widest: int) -> int:
    """A block length that cuts `length` with little to spare, in 64s (16s of 64) if in several."""
    blocks, step = -(-length // widest), min(NARROWEST, max(widest // 4, 1))
    return length if blocks == 1 else min(widest, -(-length // (blocks * step)) * step)


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
