"""The passes over tiles whose rows carry sums from tile to tile; without such terms, nothing.

Backward, the gradient of a sum from the right is a sum from the left: `collect` goes from the right
through a block row and keeps what is carried into each tile, one number for each row, tile and
term: as many as there are keys. The tiles are then visited from the left.

b, h batch and heads of the group, r, c rows and columns of a tile.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.engines.tiled import negligible, schedule
from pe_jax.engines.tiled.grid import Tile, cut_block
from pe_jax.engines.tiled.group import Group
from pe_jax.engines.tiled.leaves import Leaves, cut_leaves
from pe_jax.engines.tiled.row_sums import RowSums, SumLeaves
from pe_jax.engines.tiled.schedule import Order, Stage
from pe_jax.engines.tiled.ways import unbroadcast
from pe_jax.numerics.arrays import varying_like


def start(group: Group, leaves: tuple[Leaves, ...]) -> tuple[jax.Array, ...]:
    """What block rows carry into their last tile: [b, h, r, 1] for each term."""
    own = _own(group, leaves)
    shape = *group.q.shape[:2], group.setup.grid.rows, 1
    return () if own is None else tuple(jnp.zeros(shape, jnp.float32) for _ in own.terms)


def add(
    group: Group,
    stage: Stage,
    leaves: tuple[Leaves, ...],
    products: jax.Array,
    tile: Tile,
    carried: tuple,
) -> tuple[Any, tuple]:
    """What sums along the row add to a tile, or None, and what its rows carry on.

    Args:
      group: the heads.
      stage: what is known of the tile.
      leaves: its part of the leaves of all ways.
      products: q·k times the scale, float32 [b, h, r, c].
      tile: the tile.
      carried: what its rows carry into it.
    """
    own = _own(group, leaves)
    if own is None:
        return None, carried
    if stage.settled:
        return _way(group).at_limit(own), carried
    return _way(group).along(own, products, group.seen(tile), carried)


def pull(
    group: Group,
    stage: Stage,
    leaves: tuple[Leaves, ...],
    products: jax.Array,
    tile: Tile,
    carried: tuple,
):
    """What `add` adds to a tile, and the function of gradients that goes back.

    It takes the gradients of scores, of all leaves and of what is carried on; it returns those of
    products, of all leaves and of what is carried into the tile.
    """
    place = group.setup.sums
    if place is None:
        return None, lambda *grads: grads

    def added(own, products, carried):
        with_own = leaves[place]._replace(always=own)
        all_leaves = (*leaves[:place], with_own, *leaves[place + 1 :])
        return add(group, stage, all_leaves, products, tile, carried)

    (bias, _), pull_added = jax.vjp(added, leaves[place].always, products, carried)

    def pull_back(ds, d_leaves, d_carried):
        own, d_products, d_carried = pull_added((unbroadcast(ds, bias.shape), d_carried))
        of_way = d_leaves[place]._replace(always=own)
        d_leaves = (*d_leaves[:place], of_way, *d_leaves[place + 1 :])
        return ds + d_products, d_leaves, d_carried

    return bias, pull_back


def visit(group: Group, leaves: tuple[Leaves, ...], order: Order, i, f, carry):
    """(running, carried) = f(stage, n, …) for each tile of block row i that counts."""
    setup = group.setup
    if setup.sums is None:
        return schedule.visit(setup, order, f, carry)

    def more(carry):
        running, carried = carry
        return _unsettled(group, leaves, i, carried, running.top)

    def step(n, carry):
        return f(Stage(), n, carry)

    left, carry = schedule.visit_from_right(order, step, carry, more)
    if setup.limited:
        carry = schedule.visit_range(Stage(settled=True), order, 0, left, f, carry)
    return carry


def visit_back(group: Group, order: Order, left, f, carry):
    """Carry = f(stage, n, carry) for each tile of a block row, for `left` that `collect` gives."""
    setup = group.setup
    if setup.sums is None:
        return schedule.visit(setup, order, f, carry)
    carry = schedule.visit_range(Stage(), order, left, order.partial, f, carry)
    if setup.limited:
        carry = schedule.visit_range(Stage(settled=True), order, 0, left, f, carry)
    return carry


def collect(
    group: Group, leaves: tuple[Leaves, ...], q: jax.Array, lse: jax.Array, k_turned, order, i
) -> tuple[tuple, Any]:
    """The sums that block row i carries into each of its tiles: [k_blocks, b, h, r, 1] by column.

    Also returns how many tiles, the first of the order, are settled or do not matter.

    Args:
      group: the heads.
      leaves: those of all ways.
      q: the block row's queries [b, h, r, E], as in `Group`.
      lse: the logarithms of its rows' sums [b, h, r, 1].
      k_turned: keys [b, k, E, S].
      order: of its tiles.
      i: the block row.
    """
    grid, none = group.setup.grid, start(group, leaves)
    if group.setup.sums is None:
        return (), 0

    def step(n, carry):
        collected, carried = carry
        collected = jax.tree.map(lambda all, x: all.at[n].set(x), collected, carried)
        tile = group.tile(i, n)
        cut = cut_leaves(leaves, group.cuts(tile))
        products = group.products(q, cut_block(k_turned, group.key_block(n), grid.columns, 3), tile)
        return collected, add(group, Stage(), cut, products, tile, carried)[1]

    def more(carry):
        return _unsettled(group, leaves, i, carry[1], lse)

    collected = tuple(jnp.zeros((grid.k_blocks, *x.shape), x.dtype) for x in none)
    carry = varying_like((collected, none), (q, lse, k_turned, leaves))
    left, (collected, _) = schedule.visit_from_right(order, step, carry, more)
    return collected, left


def _unsettled(group: Group, leaves: tuple[Leaves, ...], i, carried: tuple, weight: jax.Array):
    """Whether the gates of tiles to come, and these tiles, can matter to block row i.

    `weight` [b, h, r, 1] is the largest score of each row, or the logarithm of its sum.
    """
    setup, own = group.setup, _own(group, leaves)
    if not (setup.limited or setup.stops) or own is None:
        return True
    own = own._replace(numbers=group.rows(own.numbers, i))
    if setup.limited:
        matter = _way(group).below_limit(own, carried)
    else:
        highest = group.rows(group.reach, i) + _way(group).bound(own, carried)
        matter = highest - weight >= negligible.NEGLIGIBLE
    if group.fixed.q.segments is not None:  # what sees nothing would never settle
        ids = cut_block(group.fixed.q.segments, i, setup.grid.rows, 1)
        matter = matter & (ids >= 0)[:, None, :, None]
    return matter.any()


def _way(group: Group) -> RowSums:
    way: Any = group.setup.ways[group.setup.sums]  # pyright: ignore
    return way


def _own(group: Group, leaves: tuple[Leaves, ...]) -> SumLeaves | None:
    """The leaves of sums along rows, of those of all ways; None: there are none."""
    return None if group.setup.sums is None else leaves[group.setup.sums].always
