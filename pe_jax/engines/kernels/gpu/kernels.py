"""The GPU kernels: what one program computes, and from what.

FlashAttention-2 (Dao, arXiv 2307.08691) in Pallas, lowered by Triton. A program owns a block of
tokens of one side and visits the blocks of the other, tile by tile (`tiles`). What the kernels read
is prepared in `operands`; `passes` launches them.

Kernels take references: `Arrays`; blanks, arrays in the memory of outputs of which not every entry
is stored; and `Outs`. All are of one batch row and one head. Scores are kept times log2(e). Letters
are those of `engine`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.engines.kernels.gpu import chunks, phases, pieces, row_sums
from pe_jax.engines.kernels.gpu.operands import Arrays, Outs, Plan
from pe_jax.engines.kernels.gpu.tiles import (
    KVLoop,
    Tile,
    gradient,
    products,
    scores,
    store_by_distance,
    visible,
)
from pe_jax.engines.reference import LOWEST
from pe_jax.numerics.products import dot


def forward_kernel(plan: Plan, x: Arrays, _, outs: Outs) -> None:
    """Output and row sums; scores by distance and sums along rows, where they are wanted.

    The entries at either end have the logarithm of the sum of all scores beyond it.
    """
    entries, carried = outs.entries, outs.carried
    loop, rows = KVLoop(plan, x), plan.sizes[0]
    q, own = x.q[loop.own, :], loop.own

    def visit(tile, carry):
        total, top, sums, ends, before = carry
        v, of_rows = x.v[tile.other, :], None
        product, _ = products(tile, q, x.k[tile.other, :])
        if carried is not None:
            carried[own, tile.other.start // plan.sums.block] = before
            of_rows = row_sums.evaluate(tile, product, visible(tile), before)
            before = of_rows.after
        s = scores(tile, product, of_rows, None if x.knots is None else pieces.evaluate(tile))
        new = jnp.maximum(top, s.max(1))
        p, fade = jnp.exp2(s - new[:, None]), jnp.exp2(top - new)
        if entries is not None:
            ends = [end * fade for end in ends]
            ends = store_by_distance(tile, entries, s, p, ends)
        total = total * fade[:, None] + dot(p.astype(v.dtype), v, 0)
        return total, new, sums * fade + p.sum(1), ends, before

    # A row without visible keys so far needs no special care: LOWEST is finite.
    zero = jnp.zeros((rows,), jnp.float32)
    start = jnp.zeros((rows, x.v.shape[1]), jnp.float32), zero + LOWEST, zero, [zero, zero], zero
    total, top, sums, ends, _ = loop(visit, start, from_the_right=carried is not None)

    def log2(sums, empty):
        return jnp.where(sums > 0, top + jnp.log2(jnp.where(sums > 0, sums, 1)), empty)

    # A row without visible keys gets zeros, and a sum so large that its weights vanish again.
    outs.out[own, :] = total / jnp.where(sums > 0, sums, 1)[:, None]
    outs.lse[own] = log2(sums, -LOWEST)
    if entries is not None:
        entries[own, 0] = log2(ends[0], -jnp.inf)
        entries[own, plan.distances - 1] = log2(ends[1], -jnp.inf)


def backward_kernel(plan: Plan, x: Arrays, _, outs: Outs, *, by_keys: bool) -> None:
    """Gradients of a block of queries or, `by_keys`, of keys and values, and what else is wanted.

    For queries alone: those of the coefficients, of the bias of each pair, of what sums along rows
    and linear pieces read.
    """
    of_own, numbers, of_factors = (
        (outs.k, outs.k_numbers, outs.right) if by_keys else (outs.q, outs.q_numbers, outs.left)
    )
    entries, columns = outs.entries, [outs.coefficients, numbers]
    loop, rows = KVLoop(plan, x, by_keys), plan.sizes[0]
    sides = ((x.q, x.d_out), (x.k, x.v))
    owners, others = sides[::-1] if by_keys else sides
    own, owned = loop.own, tuple(ref[loop.own, :] for ref in owners)

    def visit(tile, carry):
        d_own, d_v, ends, d_c, d_n, so_far, d_factors, d_table, totals = carry
        visited = tuple(ref[tile.other, :] for ref in others)
        p, d_s, (sums, bent, wave) = gradient(tile, owned, visited)
        d_product, more = d_s, d_s
        if wave is not None:
            d_product, more = phases.gradients(tile, wave, d_s)
        if sums is not None:
            left = tile.of_block(x.pending) if by_keys else so_far
            more, after, d_table = row_sums.gradients(tile, sums, d_s, left, d_table)
            if not by_keys:
                outs.pending[own, tile.other.start // plan.sums.block] = so_far
                so_far = after
            if x.left is None:
                d_product = d_s + more
        if plan.chunk:
            d_factors = chunks.gradient(tile, d_s, d_factors, outs)
        else:
            if d_factors is not None:
                factors = tile.factors(tile.sides[1])
                d_factors += dot(more.astype(factors.dtype), factors, 0)
            d_own += dot(d_product.astype(visited[0].dtype), visited[0], 0)
        if by_keys:
            d_v += dot(p.astype(visited[1].dtype), visited[1], 0)
        if outs.bias is not None:
            outs.bias[own, tile.other] = d_s
        if entries is not None:
            ends = store_by_distance(tile, entries, d_s, d_s, ends)
        if d_c:  # one coefficient per row, so that its gradient is a sum along the row
            formula = functools.partial(plan.formula, distance=tile.distance())
            shared = [jnp.full((rows, 1), x.coefficients[c], jnp.float32) for c in range(len(d_c))]
            d_c = [a + b for a, b in zip(d_c, jax.vjp(formula, shared)[1](d_s)[0], strict=True)]
        if d_n:
            of_owned, of_others = (tile.numbers(side) for side in tile.sides)
            more = plan.number_gradients(of_owned, of_others, by_keys, d_s)
            d_n = [a + b for a, b in zip(d_n, more, strict=True)]
        if totals is not None:
            totals = pieces.add(tile, bent, d_s, totals)
        return d_own, d_v, ends, d_c, d_n, so_far, d_factors, d_table, totals

    zero, column = jnp.zeros((rows,), jnp.float32), jnp.zeros((rows, 1), jnp.float32)
    d_own: Any = jnp.zeros(owned[0].shape, jnp.float32)
    d_v: Any = jnp.zeros(owned[1].shape, jnp.float32) if by_keys else None
    sums = ([column] * (0 if ref is None else ref.shape[0]) for ref in columns)
    d_factors, d_table = (
        None if ref is None else jnp.zeros((rows, ref.shape[-1]), jnp.float32)
        for ref in (of_factors, outs.sum_numbers)
    )
    totals: Any = None
    if outs.pieces is not None:
        totals = pieces.Totals.zeros(rows, outs.pieces.shape[2])
    start = d_own, d_v, [zero, zero], *sums, zero, d_factors, d_table, totals
    d_own, d_v, ends, *sums, _, d_factors, d_table, totals = loop(visit, start)
    if outs.pieces is not None:
        for n, total in enumerate(totals.sums):
            outs.pieces[loop.at, n, :] = total
        for n, column in enumerate(totals[1:]):
            outs.scale[n, own] = column.sum(1)
    if d_factors is not None and len(of_factors.shape) == 2:
        of_factors[own, :] = d_factors
    if d_table is not None:
        outs.sum_numbers[own, :] = d_table
    of_own[own, :] = (d_own * plan.scale).astype(of_own.dtype)
    if by_keys:
        outs.v[own, :] = d_v.astype(outs.v.dtype)
    if entries is not None:
        entries[own, 0], entries[own, plan.distances - 1] = ends
    for ref, total in zip(columns, sums, strict=True):
        for c, d in enumerate(total):
            ref[c, own] = d.sum(1)


def diagonal_kernel(plan: Plan, x: Arrays, _, outs: Outs) -> None:
    """The score gradients of one block diagonal, summed tile upon tile."""
    size = plan.sizes[0]
    rows, columns = (side.shape[0] // size for side in (x.q, x.k))
    offset = pl.program_id(0) - (columns - 1)

    def visit(i, total):
        loop = KVLoop(plan, x, at=i)
        tile = Tile(loop, i - offset)
        owned = x.q[loop.own, :], x.d_out[loop.own, :]
        visited = x.k[tile.other, :], x.v[tile.other, :]
        return total + gradient(tile, owned, visited)[1]

    lo, hi = plan.span  # distances outside are not visible
    meets = (offset * size + size > lo) & (offset * size - size < hi)
    first = jnp.maximum(offset, 0)
    last = jnp.where(meets, jnp.minimum(rows, columns + offset), first)
    total = jax.lax.fori_loop(first, last, visit, jnp.zeros((size, size), jnp.float32))
    outs.tiles[pl.program_id(0), :, :] = total
