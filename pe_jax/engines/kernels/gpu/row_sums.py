"""The sums of gates along a row in the GPU kernels: CoPE, GRAPE-AP, stick-breaking.

    p_ij = Σ_l gate_il over the keys l right of j,    bias_ij = fn(numbers_i, p_ij)

The forward kernel visits a row's blocks of keys from the right. It carries the sum so far, and
stores it for each block of keys that it meets, so that backward kernels take blocks in any order. A
gate reaches the biases of all keys on its left: the kernel of the queries visits blocks from the
left, carries the sum of the gradients of the sums p, and stores it for the kernel of the keys. Both
are one number per query and block of keys, whose length is that of all kernels.

Where all rows of a tile have reached the last of their interpolated numbers, it computes no gates.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms.rows import interpolate


@dataclasses.dataclass(frozen=True)
class RowSums:
    """The static part of a `RowSum`, whose functions these are."""

    gate: Callable
    fn: Callable
    own: bool
    count: int  # how many numbers a query has
    settles: bool  # whether all sums from the last of them on have its bias
    block: int  # keys of a block

    @classmethod
    def of(cls, term: Any, count: int, block: int) -> "RowSums":
        """That of a `RowSum`."""
        settles = term.fn is interpolate and term.limit == count - 1
        return cls(term.gate, term.fn, term.own, count, settles, block)

    @property
    def last(self) -> int:
        """The index of the last number."""
        return self.count - 1


class Sums(NamedTuple):
    """What a tile has to its biases and gradients; pairs are [owned, visited]."""

    pairs: Any  # which are visible, or None
    products: Any  # what the gates read
    before: Any  # the sum over all blocks on the right, along the queries' axis
    sums: Any  # p of each pair
    bias: Any  # of each pair
    after: Any  # `before` of the next block, [queries]


def evaluate(tile: Any, product: jax.Array, pairs: Any, before: jax.Array) -> Sums:
    """The sums of a tile and their biases, from q·k and the sums `before` [queries]."""
    x, rows, axis = tile.x, tile.plan.sums, tile.axis("k")
    products = product * tile.plan.scale if x.left is None else tile.factors_product()

    def counted():
        gates = hide(pairs, rows.gate(products))
        # Differences of sums from the left would lose the digits of the nearest keys.
        later = jax.lax.cumsum(gates, axis, reverse=True) - (0 if rows.own else gates)
        sums = tile.along("q", before) + later
        return sums, bias(tile, sums), before + gates.sum(axis)

    def settled():
        sums = tile.along("q", before)
        same = jnp.broadcast_to(bias(tile, sums), products.shape)
        return jnp.broadcast_to(sums, products.shape), same, before

    if not rows.settles:
        sums, biases, after = counted()
    else:
        sums, biases, after = jax.lax.cond(is_settled(rows, before), settled, counted)
    return Sums(pairs, products, before, sums, biases, after)


def gradients(tile: Any, of: Sums, d_bias: jax.Array, pending: jax.Array, d_numbers: Any) -> tuple:
    """The gradients of what gates read [owned, visited]; those of the sums so far [queries].

    Args:
      tile: where.
      of: its sums.
      d_bias: the gradient of the biases.
      pending: that of the sums p of all blocks on the left, [queries].
      d_numbers: that of the queries' numbers so far, to which the tile's is added; or None.
    """
    rows, axis = tile.plan.sums, tile.axis("k")

    def counted():
        d_sums, more = pull(tile, of.sums, d_bias, d_numbers)
        so_far = jnp.cumsum(d_sums, axis) - (0 if rows.own else d_sums)
        d_gates = hide(of.pairs, tile.along("q", pending) + so_far)
        d_products = jax.vjp(rows.gate, of.products)[1](d_gates)[0]
        return d_products, pending + d_sums.sum(axis), more

    def settled():
        more = d_numbers
        if more is not None:
            last = jnp.arange(more.shape[1], dtype=jnp.int32) == rows.last
            more = more + jnp.where(last[None], d_bias.sum(axis)[:, None], 0)
        return jnp.zeros_like(d_bias), pending, more

    if not rows.settles:
        return counted()
    return jax.lax.cond(is_settled(rows, of.before), settled, counted)


def is_settled(rows: RowSums, before: jax.Array) -> jax.Array:
    """Whether all keys of a tile, and all farther left, have the bias of the last number."""
    return before.min() >= rows.last


def hide(pairs: Any, values: jax.Array) -> jax.Array:
    """Zeros where a pair is hidden."""
    return values if pairs is None else jnp.where(pairs, values, 0)


def bias(tile: Any, sums: jax.Array) -> jax.Array:
    """The biases of pairs with these sums."""
    if tile.plan.sums.fn is not interpolate:
        return tile.plan.sums.fn(tile.sum_number(), sums)
    below, above, share, _ = neighbours(tile, sums)
    return below + share * (above - below)


def neighbours(tile: Any, sums: jax.Array) -> tuple:
    """The two numbers around each sum, the share of the upper, and the sum, up to the last."""
    last = tile.plan.sums.last
    place = jnp.minimum(sums, float(last))
    low = place.astype(jnp.int32)
    row = jnp.broadcast_to(tile.along("q", tile.indices["q"]), low.shape)
    below, above = (tile.x.sum_numbers[row, at] for at in (low, jnp.minimum(low + 1, last)))
    return below, above, place - low.astype(jnp.float32), place


def pull(tile: Any, sums: jax.Array, d_bias: jax.Array, d_numbers: Any) -> tuple:
    """The gradient of the sums, and that of the numbers added to `d_numbers`, from the biases'."""
    rows = tile.plan.sums
    if rows.fn is interpolate:
        below, above, _, place = neighbours(tile, sums)
        d_sums = d_bias * (above - below)  # which are the same number past the last
        return d_sums, None if d_numbers is None else d_numbers + of_table(d_numbers, place, d_bias)
    if tile.x.sum_numbers is None:
        return jax.vjp(lambda sums: rows.fn(None, sums), sums)[1](d_bias)[0], d_numbers
    number = jnp.broadcast_to(tile.sum_number(), sums.shape)
    d_number, d_sums = jax.vjp(rows.fn, number, sums)[1](d_bias)
    return d_sums, None if d_numbers is None else d_numbers + d_number.sum(1, keepdims=True)


def of_table(like: jax.Array, place: jax.Array, d_bias: jax.Array) -> jax.Array:
    """The gradient of each query's numbers [queries, P], entry by entry; adds nothing atomically.

    A sum between two entries has a share of both.
    """
    entries = jnp.arange(like.shape[1], dtype=jnp.int32)

    def add(n, total):
        share = jnp.maximum(1 - jnp.abs(place - n.astype(jnp.float32)), 0)
        column = (share * d_bias).sum(1)[:, None]
        return total + jnp.where(entries[None] == n, column, 0)

    first, last = place.min().astype(jnp.int32), place.max().astype(jnp.int32) + 2
    return jax.lax.fori_loop(first, jnp.minimum(last, like.shape[1]), add, jnp.zeros_like(like))
