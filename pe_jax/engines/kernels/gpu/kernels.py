"""The GPU kernels: what one program computes, and from what.

FlashAttention-2 (Dao, arXiv 2307.08691) in Pallas, lowered by Triton. A program owns a block of
tokens of one side and visits the blocks of the other (`kv_loops`), tile by tile (`tiles`). What the
kernels read is prepared in `operands`; `passes` launches them.

Kernels take references: `Arrays`, what outputs are stored over where not all of them is stored (the
same memory as these), an output of entries by distance, and other outputs, all of one batch row and
one head. Scores are kept times log2(e). Letters are
those of `engine`.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.engines.kernels.gpu.kv_loops import KVLoop, Tile
from pe_jax.engines.kernels.gpu.plan import Arrays, Plan
from pe_jax.engines.kernels.gpu.tiles import (
    add_number_gradients,
    coefficient_gradients,
    dot,
    gradient,
    log2_of_sum,
    number_zeros,
    scores,
    store_by_distance,
    store_numbers,
)
from pe_jax.engines.reference import LOWEST


def forward_kernel(plan: Plan, x: Arrays, _, entries, out, lse) -> None:
    """Output and log2 of each row's sum of exponentials; `entries`: of scores by distance, or None.

    `entries` [T, n] hold scores, and at either end the logarithm of the sum of all beyond it.
    """
    loop, rows = KVLoop(plan, x), plan.sizes[0]
    q, own = x.q[loop.own, :], loop.own

    def visit(tile, carry):
        total, top, sums, ends = carry
        v = x.v[tile.other, :]
        s = scores(tile, dot(q, x.k[tile.other, :], 1))
        new = jnp.maximum(top, s.max(1))
        p, fade = jnp.exp2(s - new[:, None]), jnp.exp2(top - new)
        if entries is not None:
            ends = [end * fade for end in ends]
            ends = store_by_distance(tile, entries, s, p, ends, log2_of_sum)
        total = total * fade[:, None] + dot(p.astype(v.dtype), v, 0)
        return total, new, sums * fade + p.sum(1), ends

    # A row without visible keys so far needs no special care: LOWEST is finite.
    zero = jnp.zeros((rows,), jnp.float32)
    start = jnp.zeros((rows, x.v.shape[1]), jnp.float32), zero + LOWEST, zero, [zero, zero]
    total, top, sums, ends = loop(visit, start)

    def log2(sums, empty):
        return jnp.where(sums > 0, top + jnp.log2(jnp.where(sums > 0, sums, 1)), empty)

    # A row without visible keys gets zeros, and a sum so large that its weights vanish again.
    out[own, :] = total / jnp.where(sums > 0, sums, 1)[:, None]
    lse[own] = log2(sums, -LOWEST)
    if entries is not None:
        entries[own, 0] = log2(ends[0], -jnp.inf)
        entries[own, plan.distances - 1] = log2(ends[1], -jnp.inf)


def queries_kernel(
    plan: Plan, x: Arrays, _, entries, of_q, of_coefficients, of_numbers, of_bias
) -> None:
    """Gradients of a block of queries, and what else is wanted, row by row.

    That is, of the coefficients, of the queries' numbers, and of the bias of each pair.

    `entries` [T, n] get the gradient of the scores by distance, if it is not None.
    """
    loop, rows = KVLoop(plan, x), plan.sizes[0]
    q, d_out, own = x.q[loop.own, :], x.d_out[loop.own, :], loop.own
    count = 0 if of_coefficients is None else of_coefficients.shape[0]

    def visit(tile, carry):
        d_q, ends, d_c, d_n = carry
        k, v = x.k[tile.other, :], x.v[tile.other, :]
        _, d_s = gradient(tile, (q, d_out), (k, v))
        d_q += dot(d_s.astype(k.dtype), k, 0)
        if of_bias is not None:
            of_bias[own, tile.other] = d_s
        if entries is not None:
            ends = store_by_distance(tile, entries, d_s, d_s, ends)
        if count:
            more = coefficient_gradients(tile, d_s)
            d_c = [a + b for a, b in zip(d_c, more, strict=True)]
        return d_q, ends, d_c, add_number_gradients(tile, d_n, d_s)

    zero, column = jnp.zeros((rows,), jnp.float32), jnp.zeros((rows, 1), jnp.float32)
    start = jnp.zeros(q.shape, jnp.float32), [zero, zero], [column] * count
    d_q, ends, d_c, d_n = loop(visit, (*start, number_zeros(of_numbers, rows)))
    of_q[own, :] = (d_q * plan.scale).astype(of_q.dtype)
    if entries is not None:
        entries[own, 0], entries[own, plan.distances - 1] = ends
    if of_coefficients is not None:
        for i, d in enumerate(d_c):
            of_coefficients[i, own] = d.sum(1)
    store_numbers(of_numbers, own, d_n)


def keys_kernel(plan: Plan, x: Arrays, _, entries, of_k, of_v, of_numbers) -> None:
    """Gradients of a block of keys and values, and of the keys' numbers, if they are wanted.

    `entries` [S, n] as in `queries_kernel`.
    """
    loop, rows = KVLoop(plan, x, by_keys=True), plan.sizes[0]
    k, v, own = x.k[loop.own, :], x.v[loop.own, :], loop.own

    def visit(tile, carry):
        d_k, d_v, ends, d_n = carry
        q, d_out = x.q[tile.other, :], x.d_out[tile.other, :]
        p, d_s = gradient(tile, (k, v), (q, d_out))
        d_k += dot(d_s.astype(q.dtype), q, 0)
        d_v += dot(p.astype(d_out.dtype), d_out, 0)
        if entries is not None:
            ends = store_by_distance(tile, entries, d_s, d_s, ends)
        return d_k, d_v, ends, add_number_gradients(tile, d_n, d_s)

    zero = jnp.zeros((rows,), jnp.float32)
    start = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32), [zero, zero]
    d_k, d_v, ends, d_n = loop(visit, (*start, number_zeros(of_numbers, rows)))
    of_k[own, :] = (d_k * plan.scale).astype(of_k.dtype)
    of_v[own, :] = d_v.astype(of_v.dtype)
    if entries is not None:
        entries[own, 0], entries[own, plan.distances - 1] = ends
    store_numbers(of_numbers, own, d_n)


def diagonal_kernel(plan: Plan, x: Arrays, _, __, tiles) -> None:
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

    lo, hi = plan.span  # what lies outside is not visible
    meets = (offset * size + size > lo) & (offset * size - size < hi)
    first = jnp.maximum(offset, 0)
    last = jnp.where(meets, jnp.minimum(rows, columns + offset), first)
    total = jax.lax.fori_loop(first, last, visit, jnp.zeros((size, size), jnp.float32))
    tiles[pl.program_id(0), :, :] = total
