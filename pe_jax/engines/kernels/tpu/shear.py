"""From windows of distances to tiles of pairs, and back: what a TPU has instead of a gather.

A tile has `rows` tokens a side and 2·rows - 1 distances, a band 2·rows entries: row r of the tile
has the entries rows - 1 - r … 2·rows - 2 - r, so that row by row the band is rotated by one lane.
A row of numbers is the same band for all rows of the tile. Vectors are dotted with each row's own
token, a part of at most 128 rows at a time: a part meets at most rows + 128 entries of the band.

X width of a vector.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

PART = 128  # rows that share a window
ROWS, LANES = 8, 128  # of a register


def shear(band: jax.Array) -> jax.Array:
    """y[r, c] = band[0, rows - 1 - r + c]: [1, 2·rows] → [rows, rows].

    The rows so far, rotated as a whole, are the next ones. (A strided rotation does it in one
    instruction, for the same cost, from v5 on.)
    """
    rows = band.shape[1] // 2
    wide = pltpu.roll(band, rows + 1, 1)
    while wide.shape[0] < rows:
        wide = jnp.concatenate([wide, pltpu.roll(wide, wide.shape[0], 1)])
    return wide[:, :rows]


def unshear(y: jax.Array) -> jax.Array:
    """The transpose of `shear`, sums along diagonals: [rows, rows] → [1, 2·rows]."""
    rows = y.shape[0]
    shift, wide = rows - 1, jnp.concatenate([y, jnp.zeros_like(y)], axis=1)
    while rows > 1:
        rows //= 2
        wide = wide[:rows] + pltpu.roll(wide[rows:], wide.shape[1] - rows, 1)
    return pltpu.roll(wide, shift, 1)


def parts(rows: int) -> Iterator[tuple[slice, slice]]:
    """Rows of a tile that share a window, and the entries of the band that are in it."""
    size = min(PART, rows)
    for first in range(0, rows, size):
        yield slice(first, first + size), slice(rows - first - size, 2 * rows - first)


def multiply(own: jax.Array, vectors: Any) -> jax.Array:
    """y[r, c] = own[r]·vectors[rows - 1 - r + c]: [rows, X] and [2·rows, X] → [rows, rows].

    The vectors may be a reference.
    """
    rows = own.shape[0]
    tiles = []
    for tokens, entries in parts(rows):
        wide = dot(own[tokens], vectors[entries], 1)
        count, width = wide.shape
        wide = pltpu.roll(wide, width - count + 1, 1, stride=1, stride_axis=0)
        tiles.append(wide[:, :rows])
    return jnp.concatenate(tiles)


def windows(y: jax.Array) -> Iterator[tuple[slice, slice, jax.Array]]:
    """For each of `parts`, its rows of y [rows, rows] by entry of the band, zeros elsewhere."""
    for tokens, entries in parts(y.shape[0]):
        part = y[tokens]
        count = part.shape[0]
        wide = jnp.concatenate([part, jnp.zeros((count, count), y.dtype)], axis=1)
        yield tokens, entries, _rotate_back(wide)


def _rotate_back(wide: jax.Array) -> jax.Array:
    """Row r of [rows, n] rotated by rows - 1 - r: there is no strided rotation in this direction.

    Rows of one register rotate as a whole, then each by its index among them, bit by bit.
    """
    rows, width = wide.shape
    starts = range(0, rows, ROWS)
    rotated = (pltpu.roll(wide[n : n + ROWS], (rows - 1 - n) % width, 1) for n in starts)
    wide = jnp.concatenate(list(rotated))
    row = jax.lax.broadcasted_iota(jnp.int32, wide.shape, 0)
    for bit in (1, 2, 4):
        wide = jnp.where(row & bit != 0, pltpu.roll(wide, width - bit, 1), wide)
    return wide


def lane_sums(y: jax.Array) -> jax.Array:
    """[rows, rows] → [rows, lanes]: what is left to sum is one register per row."""
    size = min(LANES, y.shape[1])
    firsts = range(0, y.shape[1], size)
    return functools.reduce(jnp.add, (y[:, n : n + size] for n in firsts))


def as_column(row: jax.Array) -> jax.Array:
    """[1, n] → [n, 1]."""
    return jnp.expand_dims(row[0], -1)


def repeat_columns(x: jax.Array, width: int) -> jax.Array:
    """Equal columns, repeated to `width` of them."""
    return jnp.tile(x, (1, -(-width // x.shape[1])))[:, :width]


def dot(a: jax.Array, b: jax.Array, axis: int, of: int = 1) -> jax.Array:
    """The product over axis `of` of a matrix and `axis` of another, in float32."""
    axes = (((of,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)
