"""Products of queries and vectors of distances, once per row of tiles; without such terms, nothing.

Of contiguous positions neighbouring tiles have distances in common: tile by tile, each product
would be made almost twice. A block row multiplies its queries by the vectors of all distances that
its tiles have, block by block, into a buffer of which each tile reads its part through a shear. An
entry of it belongs to one pair of tokens, so tiles put their gradients side by side too, and
the row goes back through the products once, at its end.

Query r and distance w, counted from the largest of the row, are at r·W + w of the flat buffer.
Query r and column c meet at w = rows - 1 - r + c: in a row of W - 1 numbers, at rows - 1 + c.
Either is a slice and a reshape of the other; rows that are never written keep slices inside.

b, h batch and heads of the group, r, c rows and columns of a tile, W distances of a buffer.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.engines.tiled.grid import Tile
from pe_jax.engines.tiled.group import Group
from pe_jax.engines.tiled.leaves import Cut, Leaves, add_at, cut_leaves
from pe_jax.engines.tiled.schedule import Order
from pe_jax.engines.tiled.ways import unbroadcast
from pe_jax.engines.tiled.windows import RowLeaves, Windows
from pe_jax.numerics.arrays import varying_like


class RowProducts(NamedTuple):
    """What block rows write into, one after the other; None where no term needs it.

    Attributes:
      products: flat: [b, h, (r + 1)·W].
      gradient: theirs, in rows of W - 1: [b, h, r + 2, W - 1].
    """

    products: Any = None
    gradient: Any = None


class Blocks(NamedTuple):
    """Blocks of distances of a block row."""

    order: jax.Array  # first those that its tiles need
    needed: jax.Array  # how many these are
    visited: jax.Array  # which tiles are visited, with the overhang on either side: [runs, …]


def start(group: Group, leaves: tuple[Leaves, ...]) -> RowProducts:
    """What the first block row finds: any numbers will do, later rows find what others left."""
    if _own(group, leaves) is None:
        return RowProducts()
    lead, rows, width = group.q.shape[:2], group.setup.grid.rows, _width(group)
    products = jnp.zeros((*lead, (rows + 1) * width), jnp.float32)
    gradient = jnp.zeros((*lead, rows + 2, width - 1), jnp.float32)
    return varying_like(RowProducts(products, gradient), leaves)


def fill(
    group: Group, leaves: tuple[Leaves, ...], found: RowProducts, order: Order, i
) -> RowProducts:
    """With the products of block row i, as far as the tiles of `order` have these distances."""
    own = _own(group, leaves)
    if own is None:
        return found
    columns, blocks = group.setup.grid.columns, _blocks(group, order, i)
    rows = group.rows(own.rows, i)

    def turn(t, products):
        n = blocks.order[t]
        block = jnp.matmul(rows, cut_leaves(own.turned, _way(group).vector_cut(i, n)))
        return jax.lax.dynamic_update_slice_in_dim(products, block, n * columns, 3)

    flat = found.products
    products = flat.reshape(*flat.shape[:2], -1, _width(group))
    products = jax.lax.fori_loop(0, blocks.needed, turn, products)
    return found._replace(products=products.reshape(flat.shape))


def read(group: Group, found: RowProducts, tile: Tile) -> Any:
    """What a tile's scores have of the products: [b, h, r, c]; or None."""
    if found.products is None:
        return None
    grid, column = group.setup.grid, _column(group, tile)
    return _oblique(found.products, column, (grid.rows, _width(group) - 1), grid.columns)


def put(group: Group, found: RowProducts, ds: jax.Array, tile: Tile) -> RowProducts:
    """With the gradient of a tile's scores: [b, h, r, c]."""
    if found.gradient is None:
        return found
    column = _column(group, tile)
    gradient = jax.lax.dynamic_update_slice_in_dim(found.gradient, ds, column, 3)
    return found._replace(gradient=gradient)


def pull(
    group: Group,
    leaves: tuple[Leaves, ...],
    totals: tuple[Leaves, ...],
    found: RowProducts,
    order: Order,
    i,
) -> tuple[Leaves, ...]:
    """The gradients of all leaves, `totals`, with those that come through block row i."""
    own, place = _own(group, leaves), group.setup.row_products
    if own is None or place is None:
        return totals
    grid, blocks = group.setup.grid, _blocks(group, order, i)
    flat = found.gradient.reshape(*found.gradient.shape[:2], -1)
    rows = group.rows(own.rows, i)
    rows_turned = jnp.swapaxes(rows, 2, 3)

    def turn(t, carry):
        d_rows, d_vectors = carry
        n = blocks.order[t]
        gradient = _oblique(flat, n * grid.columns, (grid.rows, _width(group)), grid.columns)
        gradient = jnp.where(_written(group, blocks, n)[None, None], gradient, 0)
        cut = _way(group).vector_cut(i, n)
        turned = cut_leaves(own.turned, cut)
        # Autodiff would turn the gradient, which is larger than the rows: slow.
        part = unbroadcast(jnp.matmul(rows_turned, gradient).sum(0), turned.shape)
        d_rows = d_rows + jnp.matmul(gradient, jnp.swapaxes(turned, 1, 2))
        return d_rows, add_at(cut, d_vectors, part)

    total = totals[place]
    carry = varying_like(jnp.zeros(rows.shape, jnp.float32), leaves), total.row.turned
    d_rows, d_vectors = jax.lax.fori_loop(0, blocks.needed, turn, carry)
    d_rows = add_at(Cut(2, i * grid.rows, grid.rows), total.row.rows, d_rows)
    total = total._replace(row=RowLeaves(d_rows, d_vectors))
    return (*totals[:place], total, *totals[place + 1 :])


def _oblique(flat: jax.Array, start, shape: tuple[int, int], columns: int) -> jax.Array:
    """The first columns of rows of [b, h, n], cut from `start` on. XLA reads them in place."""
    part = jax.lax.dynamic_slice_in_dim(flat, start, shape[0] * shape[1], 2)
    return part.reshape(*flat.shape[:2], *shape)[..., :columns]


def _blocks(group: Group, order: Order, i) -> Blocks:
    """The blocks of distances that the visited tiles of block row i have."""
    grid, way = group.setup.grid, _way(group)
    _, columns = group.setup.views.place(order.columns, grid.k_blocks)
    counts = np.arange(len(order.columns), dtype=np.int32) < order.plain + order.partial
    visited = jnp.zeros(grid.k_blocks, bool).at[columns].max(counts).reshape(grid.runs, -1)
    visited = jnp.pad(visited, [(0, 0), (way.overhang, way.overhang)])
    of_tiles = [visited[:, n : n + way.row_blocks] for n in range(way.overhang + 1)]
    needed = jnp.stack(of_tiles).any(0)
    if way.one_sided:
        j = np.arange(grid.runs, dtype=np.int32) * (grid.k_blocks // grid.runs)
        largest = grid.gaps(group.fixed.q, group.fixed.k, i, j) + grid.rows - 1
        firsts = np.arange(way.row_blocks, dtype=np.int32) * grid.columns
        needed &= largest[:, None] >= firsts[None]
    needed = needed.reshape(-1)
    first = jnp.argsort(~needed, stable=True).astype(jnp.int32)
    return Blocks(first, needed.sum(dtype=jnp.int32), visited)


def _written(group: Group, blocks: Blocks, n) -> jax.Array:
    """Which pairs of the n-th block of distances are of tiles that are visited: bool [r, c]."""
    grid, way = group.setup.grid, _way(group)
    run, n = n // way.row_blocks, n % way.row_blocks
    row, w = (jnp.arange(size, dtype=jnp.int32) for size in (grid.rows, grid.columns))
    column = w[None] + row[:, None] - (grid.rows - 1) + way.overhang * grid.columns
    tile = column // grid.columns
    parts = [(tile == ahead) & blocks.visited[run, n + ahead] for ahead in range(way.overhang + 1)]
    return functools.reduce(jnp.logical_or, parts)


def _column(group: Group, tile: Tile):
    """Where the first row of a tile begins in the buffer."""
    grid = group.setup.grid
    run = tile.j // (grid.k_blocks // grid.runs)
    return (tile.j + run * _way(group).overhang) * grid.columns + grid.rows - 1


def _width(group: Group) -> int:
    """Distances of a buffer: those of each run, to the end of their last block."""
    grid = group.setup.grid
    return grid.runs * _way(group).row_blocks * grid.columns


def _way(group: Group) -> Windows:
    way: Any = group.setup.ways[group.setup.row_products]  # pyright: ignore
    return way


def _own(group: Group, leaves: tuple[Leaves, ...]) -> RowLeaves | None:
    """What is multiplied, of the leaves of all ways; None: there are none."""
    return None if group.setup.row_products is None else leaves[group.setup.row_products].row
