"""The forward and the backward pass over the tiles of a group of heads.

A row of tiles is visited in two loops, `schedule` says which tiles in which; what the terms of an
encoding add to a tile comes from `ways`, products that are made once per row from `row_products`,
sums along the row from `along_rows`.

b, h batch and heads of the group, k its key heads, r, c rows and columns of a tile, T queries,
S keys, E and F widths of keys and values.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.engines.reference import LOWEST, average
from pe_jax.engines.tiled import along_rows, row_products
from pe_jax.engines.tiled.grid import Tile, cut_block
from pe_jax.engines.tiled.group import Group, make_group, multiply
from pe_jax.engines.tiled.leaves import Cut, Leaves, add_at, add_leaves, cut_leaves
from pe_jax.engines.tiled.schedule import Stage
from pe_jax.engines.tiled.setup import Fixed, Operands, Result, Setup
from pe_jax.engines.tiled.ways import Vectors, Way, add_up, unbroadcast
from pe_jax.numerics.arrays import varying_like


def _prepare(setup: Setup, tables: tuple, q: Vectors, k: Vectors) -> tuple[Leaves, ...]:
    """The leaves of each way, for a group of heads."""
    ways = zip(setup.ways, tables, strict=True)
    leaves = tuple(way.prepare(own, way.own(q), way.own(k)) for way, own in ways)
    return varying_like(leaves, q)


# Forward.


class Running(NamedTuple):
    """The online softmax of a row of tiles: sums of exp(score - top) so far."""

    out: jax.Array
    top: jax.Array
    total: jax.Array


def forward(setup: Setup, operands: Operands, fixed: Fixed) -> Result:
    """Attention of a group over these keys alone."""
    group = make_group(setup, operands, fixed)
    leaves = _prepare(setup, operands.tables, operands.q, operands.k)
    turned = jnp.swapaxes(group.k, 2, 3)  # the faster way to multiply by
    columns = setup.grid.columns

    def row(found, i):
        q, order = group.rows(group.q, i), group.order(i)
        filled = row_products.fill(group, leaves, found, order, i)

        def visit(stage, n, carry):
            (running, carried), plain = carry, stage.plain
            tile = group.tile(i, n)
            cut = cut_leaves(leaves, group.cuts(tile))
            s = group.products(q, cut_block(turned, group.key_block(n), columns, 3), tile)
            summed, carried = along_rows.add(group, stage, cut, s, tile, carried)
            added = _scores(setup.ways, cut, tile, plain), row_products.read(group, filled, tile)
            s, _ = group.cap(add_up([s, *added, summed]))
            s = s if plain else group.mask(s, tile)
            top = jnp.maximum(running.top, s.max(-1, keepdims=True))
            p, fade = jnp.exp(s - top), jnp.exp(running.top - top)
            weights = group.drop(p, tile)
            out = average(weights, cut_block(operands.v, tile.j, columns))
            out = add_up([out, _values(setup.ways, cut, weights, tile, plain)])
            total = running.total * fade + p.sum(-1, keepdims=True)
            return Running(running.out * fade + out, top, total), carried

        shape = q.shape[:3]
        start = Running(
            jnp.zeros((*shape, operands.v.shape[-1]), jnp.float32),
            # above LOWEST: what the mask hides has weight exp(LOWEST - LOWEST/2) = 0
            jnp.full((*shape, 1), LOWEST / 2, jnp.float32),
            jnp.zeros((*shape, 1), jnp.float32),
        )
        start = varying_like((start, along_rows.start(group, leaves)), operands)
        (out, top, total), _ = along_rows.visit(group, leaves, order, i, visit, start)
        empty = total == 0
        total = jnp.where(empty, 1, total)
        return filled, Result(out / total, jnp.where(empty, LOWEST, top + jnp.log(total)))

    block_rows = jnp.arange(setup.grid.q_blocks, dtype=jnp.int32)
    _, rows = jax.lax.scan(row, row_products.start(group, leaves), block_rows)
    return jax.tree.map(_join_rows, rows)


# Backward.


class RowOperands(NamedTuple):
    """What tiles read of their queries: [b, h, T or r, …]."""

    q: jax.Array  # the queries, as in `Group`
    d_out: jax.Array  # the gradient of the output
    d_low: jax.Array  # the same in the dtype of the values
    inner: jax.Array  # the part of each score's gradient that is the same for all keys
    lse: jax.Array  # the logarithm of each row's sum
    # [b, h, E or F, r], of one row of tiles: sums over rows are twice as fast from these
    q_turned: Any = None
    d_turned: Any = None

    def with_turned(self) -> "RowOperands":
        """With q and d_low turned."""
        q, d = (jnp.swapaxes(x, 2, 3) for x in (self.q, self.d_low))
        return self._replace(q_turned=q, d_turned=d)


class ColumnOperands(NamedTuple):
    """What a tile reads of its keys: k [b, k, c, E], turned [b, k, E, c], v turned [b, k, F, c]."""

    k: jax.Array
    k_turned: jax.Array
    v_turned: jax.Array


class Gradients(NamedTuple):
    """Gradients of a tile, or those that grow from tile to tile: float32."""

    k: jax.Array  # [b, k, E, c or S] (faster so)
    v: jax.Array  # [b, k, F, c or S]
    leaves: tuple[Leaves, ...]  # for each way


def backward(
    setup: Setup, operands: Operands, fixed: Fixed, result: Result, cotangent: Result
) -> Operands:
    """Gradients of a group, where `result` is that over all keys, of which these may be some."""
    group = make_group(setup, operands, fixed)
    prepare = functools.partial(_prepare, setup)
    leaves, pull_prepare = jax.vjp(prepare, operands.tables, operands.q, operands.k)
    all_rows = _row_operands(group, operands.v.dtype, result, cotangent)
    k_turned, v_turned = (jnp.swapaxes(x, 2, 3) for x in (group.k, operands.v))
    columns = setup.grid.columns

    def row(carry, i):
        totals, found = carry
        rows, order = group.rows(all_rows, i).with_turned(), group.order(i)
        sums = along_rows.collect(group, leaves, rows.q, rows.lse, k_turned, order, i)
        carried, left = sums
        filled = row_products.fill(group, leaves, found, order, i)

        def visit(stage, n, carry):
            dq, totals, d_carried, filled = carry
            tile, block = group.tile(i, n), group.key_block(n)
            cuts = group.cuts(tile)
            keys = ColumnOperands(
                cut_block(group.k, block, columns),
                cut_block(k_turned, block, columns, 3),
                cut_block(v_turned, tile.j, columns, 3),
            )
            cut = cut_leaves(leaves, cuts)
            before = jax.tree.map(lambda x: x[n], carried)
            from_row = row_products.read(group, filled, tile)
            dq_tile, part, d_carried, ds = _tile_gradients(
                group, rows, keys, cut, from_row, tile, stage, before, d_carried
            )
            totals = Gradients(
                add_at(Cut(3, block * columns, columns), totals.k, part.k),
                add_at(Cut(3, tile.j * columns, columns), totals.v, part.v),
                tuple(map(add_leaves, totals.leaves, part.leaves, cuts)),
            )
            return dq + dq_tile, totals, d_carried, row_products.put(group, filled, ds, tile)

        dq = jnp.zeros(rows.q.shape, jnp.float32)
        dq, d_carried = varying_like((dq, along_rows.start(group, leaves)), operands)
        carry = dq, totals, d_carried, filled
        dq, totals, _, filled = along_rows.visit_back(group, order, left, visit, carry)
        d_leaves = row_products.pull(group, leaves, totals.leaves, filled, order, i)
        return (totals._replace(leaves=d_leaves), filled), dq

    totals = jax.tree.map(
        lambda x: jnp.zeros(x.shape, jnp.float32), Gradients(k_turned, v_turned, leaves)
    )
    block_rows = jnp.arange(setup.grid.q_blocks, dtype=jnp.int32)
    carry = varying_like(totals, operands), row_products.start(group, leaves)
    (totals, _), dq = jax.lax.scan(row, carry, block_rows)
    d_leaves = jax.tree.map(lambda g, x: g.astype(x.dtype), totals.leaves, leaves)
    d_tables, d_q, d_k = pull_prepare(d_leaves)
    dq, dk = _join_rows(dq), setup.views.merge_keys(jnp.swapaxes(totals.k, 2, 3))
    return Operands(
        d_q._replace(x=d_q.x.astype(jnp.float32) + group.prescale * dq),
        d_k._replace(x=d_k.x.astype(jnp.float32) + dk),
        jnp.swapaxes(totals.v, 2, 3),
        d_tables,
    )


def _row_operands(group: Group, dtype, result: Result, cotangent: Result) -> RowOperands:
    """The backward pass's rows, for values of a dtype."""
    d_out, d_lse = cotangent
    inner = (d_out * result.out).sum(-1, keepdims=True) - d_lse
    # of what sees nothing: a sum so large that the weights vanish again
    lse = jnp.where(result.lse > LOWEST / 2, result.lse, -LOWEST)
    return RowOperands(group.q, d_out, d_out.astype(dtype), inner, lse)


def _tile_gradients(
    group: Group,
    rows: RowOperands,
    keys: ColumnOperands,
    leaves: tuple[Leaves, ...],
    from_row: Any,
    tile: Tile,
    stage: Stage,
    carried: tuple,
    d_carried: tuple,
) -> tuple[jax.Array, Gradients, tuple, jax.Array]:
    """Computes a tile again, then the gradients of its queries [b, h, r, E] and of the rest.

    `from_row` is its part of the row's products, `carried` are the sums that its rows carry into
    it, `d_carried` the gradients of those that they carry on; the gradients of `carried` and of
    `from_row` are returned last.
    """
    ways, views, kv_heads = group.setup.ways, group.setup.views, keys.k.shape[1]
    plain = stage.plain
    added, pull_added = _pull_scores(ways, leaves, tile, plain)
    products = group.products(rows.q, keys.k_turned, tile)
    summed, pull_sums = along_rows.pull(group, stage, leaves, products, tile, carried)
    s, slope = group.cap(add_up([products, added, from_row, summed]))
    s = s if plain else group.mask(s, tile)
    p, dp = jnp.exp(s - rows.lse), multiply(rows.d_low, keys.v_turned)
    weights = group.drop(p, tile)
    d_values, d_weights = _pull_values(ways, leaves, weights, tile, plain, rows.d_out)
    ds = p * (group.drop(add_up([dp, d_weights]), tile) - rows.inner)
    ds = ds if slope is None else ds * slope
    d_leaves = tuple(
        own._replace(values=values) for own, values in zip(pull_added(ds), d_values, strict=True)
    )
    d_row = ds
    ds, d_leaves, d_carried = pull_sums(ds, d_leaves, d_carried)
    dv = _sum_rows(rows.d_turned, weights, kv_heads)
    if not group.setup.has_products:
        dq, dk = (jnp.zeros(x.shape, jnp.float32) for x in (rows.q, keys.k_turned))
        return dq, Gradients(dk, dv, d_leaves), d_carried, d_row
    q = views.queries(rows.q_turned, tile.view, axis=2)
    dk = group.gain * _sum_rows(q, ds, kv_heads)
    dq = group.gain * average(ds, keys.k)
    return views.merge_queries(dq, tile.view), Gradients(dk, dv, d_leaves), d_carried, d_row


# Of a tile.


def _scores(ways: tuple[Way, ...], leaves: tuple[Leaves, ...], tile: Tile, plain: bool) -> Any:
    """What all ways add to the scores of a tile: broadcasts to [b, h, r, c]; or None."""
    each = zip(ways, leaves, strict=True)
    if plain:
        return add_up(way.plain_scores(own.always, tile) for way, own in each)
    return add_up(way.scores(own.near, own.always, tile) for way, own in each)


def _pull_scores(ways: tuple[Way, ...], leaves: tuple[Leaves, ...], tile: Tile, plain: bool):
    """The same, and the function from its gradient [b, h, r, c] to those of the leaves."""
    read = tuple(own._replace(values=None, row=None) for own in leaves)
    if plain:
        read = tuple(own._replace(near=None) for own in read)
    scores, pull = jax.vjp(lambda read: _scores(ways, read, tile, plain), read)

    def pull_back(ds):
        if scores is None:
            return (Leaves(),) * len(ways)
        return pull(unbroadcast(ds, scores.shape))[0]

    return scores, pull_back


def _values(
    ways: tuple[Way, ...], leaves: tuple[Leaves, ...], weights: jax.Array, tile: Tile, plain: bool
) -> Any:
    """What all ways add to the output of a tile: [b, h, r, F]; or None."""
    each = zip(ways, leaves, strict=True)
    if plain:
        return add_up(way.plain_values(own.values, weights, tile) for way, own in each)
    return add_up(way.values(own.values, weights, tile) for way, own in each)


def _pull_values(ways, leaves: tuple[Leaves, ...], weights, tile: Tile, plain: bool, d_out):
    """The gradients of each way's values and of the weights, where `_values` adds anything."""

    def added(values, weights):
        return _values(ways, tuple(Leaves(values=x) for x in values), weights, tile, plain)

    out, pull = jax.vjp(added, tuple(own.values for own in leaves), weights)
    return ((None,) * len(ways), None) if out is None else pull(d_out)


def _sum_rows(turned: jax.Array, x: jax.Array, kv_heads: int) -> jax.Array:
    """turned [b, h, E, r], x [b, h, r, c] → [b, k, E, c]: sums over rows and a key's heads."""
    x = x.astype(turned.dtype)
    x = jnp.einsum("bher,bhrc->bhec", turned, x, preferred_element_type=jnp.float32)
    return x.reshape(len(x), kv_heads, -1, *x.shape[2:]).sum(2)


def _join_rows(x: jax.Array) -> jax.Array:
    """[q_blocks, b, h, r, …] → [b, h, T, …]."""
    x = jnp.moveaxis(x, 0, 2)
    return x.reshape(*x.shape[:2], -1, x.shape[-1])
