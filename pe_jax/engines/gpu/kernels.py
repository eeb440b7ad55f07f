"""The GPU kernels: what one program computes, and from what.

FlashAttention-2 (Dao, arXiv 2307.08691) in Pallas, lowered by Triton. A program owns a block of
tokens of one side and visits the blocks of the other. What is prepared for the kernels, launched
and made of their results is in `engine`.

A row meets each distance within the span of the tables at most once: the program that owns it
stores those entries one by one and keeps a sum for either far end. So nothing is added atomically.

Kernels take references: `Arrays`, an array of entries by distance (before and after: one and the
same) and outputs, all of one batch row and one head. Scores are kept times log2(e). Letters are
those of `engine`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.gpu.launches import Launch, Launches
from pe_jax.engines.kernel_common import FormulaSum, TokenSum
from pe_jax.engines.reference import LOWEST

try:  # deprecated since jax 0.11, there in 0.12
    from jax.experimental.pallas import triton
except ImportError:
    triton: Any = None

LOG2E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static about a call."""

    spec: AttentionSpec
    scale: float  # what q·k is multiplied by
    formula: FormulaSum  # the biases that are computed in place from distances
    of_tokens: TokenSum  # those that are computed from numbers of both tokens
    decays: bool  # whether these fall with the distance, and nothing else is added
    cap: float | None  # what bounds the scores
    lengths: tuple[int, int]  # T and S before padding
    launches: Launches  # of every kernel
    launch: Launch  # of the one at hand
    arch: int  # what they are compiled for: 90 for sm_90
    span: tuple[int, int]  # the least and the largest distance of the tables, if there are any
    far: bool  # whether there are tables that are constant beyond the span
    values: bool  # whether weights by distance are wanted
    interpret: bool  # whether the kernels run as plain JAX

    @property
    def sizes(self) -> tuple[int, int]:
        """Tokens of an owned block, of a visited one."""
        return self.launch[:2]

    @property
    def distances(self) -> int:
        """How many distances a table holds."""
        return self.span[1] - self.span[0] + 1

    @property
    def indexed(self) -> bool:
        """Whether the mask reads index arrays."""
        return not self.spec.aligned and (self.spec.causal or self.spec.window is not None)

    @property
    def padded(self) -> bool:
        """Whether keys of the padding could be seen: not if causality hides them."""
        hidden = self.spec.aligned and self.spec.causal
        return not hidden and self.lengths[1] % self.sizes[1] != 0

    def visible_distances(self) -> tuple[float, float]:
        """The least and the largest distance that the mask shows, by place; may be infinite."""
        window = self.spec.window if self.spec.aligned else None
        high = math.inf if window is None else window - 1
        return 0 if self.spec.aligned and self.spec.causal else -high, high


class PerToken(NamedTuple):
    """One number per query or key, [B or 1, 1, T or S]; None where kernels do not read it."""

    positions: Any = None
    index: Any = None
    segments: Any = None
    lse: Any = None  # log2 of each row's sum, for gradients, [B, H, T]
    delta: Any = None  # what is subtracted from the gradient of each weight, [B, H, T]


class Arrays(NamedTuple):
    """What kernels read, and its gradients: arrays or references; None where there is none."""

    q: Any = None  # [B, H, T, E]
    k: Any = None  # [B, K, S, E]
    v: Any = None  # [B, K, S, F]
    coefficients: Any = None  # the numbers of all formulas, [1, H, C]
    table: Any = None  # the sum of the biases by distance, [1, H, n]
    rows: Any = None  # what each query adds to its scores, by distance, [B, H, T, n]
    columns: Any = None  # what each key adds to its scores, by distance, [B, H, S, n]
    q_numbers: Any = None  # those of the queries that biases of two tokens read, [B or 1, H, C, T]
    k_numbers: Any = None  # the same of the keys, [B or 1, H, C, S]
    of_query: Any = None  # `PerToken` of the queries
    of_key: Any = None  # `PerToken` of the keys
    bounds: tuple | None = None  # first block to visit, one past the last: [B or 1, H or 1, blocks]
    d_out: Any = None  # cotangent of the output, [B, H, T, F]
    d_weights: Any = None  # cotangent of the weights by distance, [B, H, T, n]


def forward_kernel(plan: Plan, x: Arrays, _, entries, out, lse) -> None:
    """Output and log2 of each row's sum of exponentials; `entries`: of scores by distance, or None.

    `entries` [T, n] hold scores, and at either end the logarithm of the sum of all beyond it.
    """
    walk, rows = Walk(plan, x), plan.sizes[0]
    q, own = x.q[walk.own, :], walk.own

    def visit(tile, carry):
        total, top, sums, ends = carry
        v = x.v[tile.other, :]
        s = scores(tile, dot(q, x.k[tile.other, :], 1))
        new = jnp.maximum(top, s.max(1))
        p, fade = jnp.exp2(s - new[:, None]), jnp.exp2(top - new)
        if entries is not None:
            ends = store_by_distance(tile, entries, s, p, [end * fade for end in ends])
        total = total * fade[:, None] + dot(p.astype(v.dtype), v, 0)
        return total, new, sums * fade + p.sum(1), ends

    # A row that has seen nothing yet needs no special care: LOWEST is finite.
    zero = jnp.zeros((rows,), jnp.float32)
    start = jnp.zeros((rows, x.v.shape[1]), jnp.float32), zero + LOWEST, zero, [zero, zero]
    total, top, sums, ends = walk(visit, start)

    def log2(sums, empty):
        return jnp.where(sums > 0, top + jnp.log2(jnp.where(sums > 0, sums, 1)), empty)

    # A row that sees nothing gets zeros, and a sum so large that its weights vanish again.
    out[own, :] = total / jnp.where(sums > 0, sums, 1)[:, None]
    lse[own] = log2(sums, -LOWEST)
    if entries is not None:
        entries[own, 0] = log2(ends[0], -jnp.inf)
        entries[own, plan.distances - 1] = log2(ends[1], -jnp.inf)


def queries_kernel(plan: Plan, x: Arrays, _, entries, of_q, of_coefficients, of_numbers) -> None:
    """Gradients of a block of queries, and what else is wanted, row by row.

    That is, of the coefficients and of the queries' numbers.

    `entries` [T, n] get the gradient of the scores by distance, if it is not None.
    """
    walk, rows = Walk(plan, x), plan.sizes[0]
    q, d_out, own = x.q[walk.own, :], x.d_out[walk.own, :], walk.own
    count = 0 if of_coefficients is None else of_coefficients.shape[0]

    def visit(tile, carry):
        d_q, ends, d_c, d_n = carry
        k, v = x.k[tile.other, :], x.v[tile.other, :]
        _, d_s = gradient(tile, (q, d_out), (k, v))
        d_q += dot(d_s.astype(k.dtype), k, 0)
        if entries is not None:
            ends = store_by_distance(tile, entries, d_s, d_s, ends)
        if count:
            more = coefficient_gradients(tile, d_s)
            d_c = [a + b for a, b in zip(d_c, more, strict=True)]
        return d_q, ends, d_c, add_number_gradients(tile, d_n, d_s)

    zero, column = jnp.zeros((rows,), jnp.float32), jnp.zeros((rows, 1), jnp.float32)
    start = jnp.zeros(q.shape, jnp.float32), [zero, zero], [column] * count
    d_q, ends, d_c, d_n = walk(visit, (*start, number_zeros(of_numbers, rows)))
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
    walk, rows = Walk(plan, x, keys_own=True), plan.sizes[0]
    k, v, own = x.k[walk.own, :], x.v[walk.own, :], walk.own

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
    d_k, d_v, ends, d_n = walk(visit, (*start, number_zeros(of_numbers, rows)))
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
        walk = Walk(plan, x, at=i)
        tile = Tile(walk, i - offset)
        mine = x.q[walk.own, :], x.d_out[walk.own, :]
        theirs = x.k[tile.other, :], x.v[tile.other, :]
        return total + gradient(tile, mine, theirs)[1]

    lo, hi = plan.span  # what lies outside is not seen
    meets = (offset * size + size > lo) & (offset * size - size < hi)
    first = jnp.maximum(offset, 0)
    last = jnp.where(meets, jnp.minimum(rows, columns + offset), first)
    total = jax.lax.fori_loop(first, last, visit, jnp.zeros((size, size), jnp.float32))
    tiles[pl.program_id(0), :, :] = total


class Walk:
    """The block that a program owns, and its way along the blocks of the other side."""

    def __init__(self, plan: Plan, x: Arrays, keys_own: bool = False, at: Any = None):
        if at is None:  # under a causal mask the last queries have the longest way: they go first
            i = pl.program_id(0)
            at = i if keys_own or not plan.spec.causal else pl.num_programs(0) - 1 - i
        self.plan, self.x, self.keys_own, self.at = plan, x, keys_own, at
        self.own = pl.ds(at * plan.sizes[0], plan.sizes[0])
        numbers = x.of_key if keys_own else x.of_query
        self.held = PerToken(*(None if ref is None else ref[self.own] for ref in numbers))
        self.held_numbers = read_numbers(x.k_numbers if keys_own else x.q_numbers, self.own)

    def __call__(self, visit: Callable, carry):
        """`visit(tile, carry)`, tile after tile."""
        for stretch in stretches(self.plan, self.x.bounds, self.at, self.keys_own):

            def step(j, carry, stretch=stretch):
                return visit(Tile(self, j, stretch.edge, stretch.far), carry)

            carry = jax.lax.fori_loop(stretch.first, stretch.last, step, carry)
        return carry


class Stretch(NamedTuple):
    """Blocks to visit one after the other, whose tiles are alike."""

    first: Any  # the first block
    last: Any  # one past the last
    edge: bool  # whether the mask may hide pairs by their place
    far: int | None  # the entry of the tables that all pairs share, if they do


def stretches(plan: Plan, bounds: tuple | None, at, keys_own: bool) -> list[Stretch]:
    """The blocks that the program owning block `at` visits, in order.

    Here e is the place of an owned token less that of a visited one; it falls from block to block.
    """
    spec, (own, other) = plan.spec, plan.sizes
    n = pl.cdiv(plan.lengths[not keys_own], other)

    def whole(e):  # how many blocks have nothing but pairs at e or more
        return (at * own + 1 - e) // other

    def some(e):  # how many blocks have such a pair
        return (at * own + own - 1 - e) // other + 1

    def clip(block, least, most):
        return jnp.minimum(jnp.maximum(block, least), most)

    (low, high), (lo, hi) = plan.visible_distances(), plan.span
    if keys_own:
        low, high, lo, hi = -high, -low, -hi, -lo
    over, under = high > hi, low < lo  # whether pairs past the tables can be visible
    begin = jnp.int32(0) if high == math.inf else clip(whole(high + 1), 0, n)
    end = jnp.int32(n) if low == -math.inf else clip(some(low), 0, n)
    if bounds is not None:
        begin = jnp.maximum(begin, bounds[0][at])
        end = clip(bounds[1][at], begin, end)
    sinks = []  # what windows hide of the first keys
    if spec.sinks and spec.window is not None and keys_own:
        seen_by_all = at * own < spec.sinks
        end = jnp.where(seen_by_all, n if bounds is None else bounds[1][at], end)
        if not spec.causal:
            begin = jnp.where(seen_by_all, 0 if bounds is None else bounds[0][at], begin)
    elif spec.sinks and spec.window is not None:
        last = jnp.minimum(pl.cdiv(spec.sinks, other), n)
        end = end if spec.causal else jnp.maximum(end, last)
        first = jnp.int32(0) if bounds is None else bounds[0][at]
        sinks = [Stretch(first, jnp.minimum(last, begin), True, None)]
    full = plan.lengths[1] // other if plan.padded and not keys_own else n
    plain = begin if high == math.inf else clip(some(high + 1), begin, end)
    edge = clip(full if low == -math.inf else jnp.minimum(whole(low), full), plain, end)
    left = [Stretch(begin, plain, True, None)] if high < math.inf else []
    right = [Stretch(edge, end, True, None)] if low > -math.inf or full < n else []
    if not plan.far:
        return [*sinks, *left, Stretch(plain, edge, False, None), *right]
    entries = (plan.distances - 1, 0)  # of distances at the upper end, at the lower
    near = clip(whole(hi), plain, edge)
    past = clip(some(lo + 1), near, edge)
    left = [*left, Stretch(plain, near, False, entries[keys_own])] if over else []
    right = [Stretch(past, edge, False, entries[not keys_own]), *right] if under else []
    begin, end = near if over else begin, past if under else end
    return [*sinks, *left, Stretch(begin, end, not (over and under), None), *right]


class Tile:
    """A block of owned tokens and a visited one; what is known of their pairs: [owned, visited]."""

    def __init__(self, walk: Walk, j: Any, edge: bool = True, far: int | None = None):
        self.walk, self.plan, self.x = walk, walk.plan, walk.x
        self.edge, self.far = edge, far  # as in `Stretch`
        self.other = pl.ds(j * self.plan.sizes[1], self.plan.sizes[1])
        self.sides = "kq" if walk.keys_own else "qk"
        self.slices = dict(zip(self.sides, (walk.own, self.other), strict=True))
        parts = zip((walk.own, self.other), self.plan.sizes, strict=True)
        places = (part.start + jnp.arange(size, dtype=jnp.int32) for part, size in parts)
        self.places = dict(zip(self.sides, places, strict=True))

    def along(self, side: str, values: jax.Array) -> jax.Array:
        """Values of the tokens of one side, along their axis of the tile."""
        return values[:, None] if side == self.sides[0] else values[None, :]

    def token(self, side: str, name: str) -> jax.Array:
        """A number per token of one side, by its name in `PerToken`."""
        if side == self.sides[0]:
            return self.along(side, getattr(self.walk.held, name))
        numbers = self.x.of_query if side == "q" else self.x.of_key
        return self.along(side, getattr(numbers, name)[self.other])

    def numbers(self, side: str) -> list[jax.Array]:
        """The numbers of one side that biases of two tokens read, along its axis of the tile."""
        if side == self.sides[0]:
            held = self.walk.held_numbers
        else:
            held = read_numbers(self.x.q_numbers if side == "q" else self.x.k_numbers, self.other)
        return [self.along(side, x) for x in held]

    def distance(self) -> jax.Array:
        """`q_pos - k_pos`."""
        if self.plan.spec.contiguous:
            return self.along("q", self.places["q"]) - self.along("k", self.places["k"])
        return self.token("q", "positions") - self.token("k", "positions")


def scores(tile: Tile, product: jax.Array) -> jax.Array:
    """The scores of a tile from q·k: times log2(e); minus infinity where hidden."""
    plan, x = tile.plan, tile.x
    tables = ((x.table, None), (x.rows, "q"), (x.columns, "k"))
    parts = [look_up(tile, ref, side) for ref, side in tables if ref is not None]
    if x.coefficients is not None:
        numbers = [x.coefficients[c] for c in range(x.coefficients.shape[0])]
        parts.append(plan.formula(numbers, tile.distance()))
    if plan.of_tokens:
        parts.append(plan.of_tokens(tile.numbers("q"), tile.numbers("k")))
    s = product * (plan.scale * LOG2E)
    s = s + functools.reduce(jnp.add, parts) * LOG2E if parts else s
    if plan.cap is not None:
        s = jnp.tanh(s * (1 / (plan.cap * LOG2E))) * (plan.cap * LOG2E)
    seen = visible(tile)
    return s if seen is None else jnp.where(seen, s, -jnp.inf)


def gradient(tile: Tile, mine: tuple, theirs: tuple) -> tuple[jax.Array, jax.Array]:
    """Weights, and the gradient of the scores; from q, d_out and k, v, or the other way round."""
    s, cap = scores(tile, dot(mine[0], theirs[0], 1)), tile.plan.cap
    p = jnp.exp2(s - tile.token("q", "lse"))
    d_p = dot(mine[1], theirs[1], 1) - tile.token("q", "delta")
    d_weights = tile.x.d_weights
    d_s = p * (d_p if d_weights is None else d_p + look_up(tile, d_weights, "q"))
    if cap is not None:  # hidden pairs have infinite scores, and no weight
        flat = jnp.where(p > 0, s * (1 / (cap * LOG2E)), 0)
        d_s = d_s * (1 - flat * flat)
    return p, d_s


def coefficient_gradients(tile: Tile, d_s: jax.Array) -> list[jax.Array]:
    """One coefficient per row, so that its gradient is a sum along the row: [owned, 1] each."""
    ref, distance = tile.x.coefficients, tile.distance()
    rows = [jnp.full((len(d_s), 1), ref[c], jnp.float32) for c in range(ref.shape[0])]
    return jax.vjp(lambda rows: tile.plan.formula(rows, distance), rows)[1](d_s)[0]


def read_numbers(ref, tokens) -> list[jax.Array]:
    """The C rows [tokens] of an array of numbers [C, T]; none if there is none."""
    return [] if ref is None else [ref[c, tokens] for c in range(ref.shape[0])]


def number_zeros(ref, rows: int) -> list[jax.Array]:
    """What gradients of the owned tokens' numbers begin with: [owned, 1] each; none if unwanted."""
    return [] if ref is None else [jnp.zeros((rows, 1), jnp.float32)] * ref.shape[0]


def add_number_gradients(tile: Tile, sums: list[jax.Array], d_s: jax.Array) -> list[jax.Array]:
    """The gradients of the owned tokens' numbers, this tile's added."""
    if not sums:
        return sums
    own, other = tile.numbers(tile.sides[0]), tile.numbers(tile.sides[1])

    def bias(own):
        pair = (other, own) if tile.walk.keys_own else (own, other)
        return jnp.broadcast_to(tile.plan.of_tokens(*pair), d_s.shape)

    more = jax.vjp(bias, own)[1](d_s)[0]
    return [a + b for a, b in zip(sums, more, strict=True)]


def store_numbers(ref, own, sums: list[jax.Array]) -> None:
    """Stores the gradients of the owned tokens' numbers, if they are wanted."""
    for c, d in enumerate(sums):
        ref[c, own] = d.sum(1)


def visible(tile: Tile) -> jax.Array | None:
    """What the mask shows; None where that is all."""
    plan, spec, parts = tile.plan, tile.plan.spec, []
    q, k = (tile.along(side, tile.places[side]) for side in "qk")
    if (tile.edge or plan.indexed) and (spec.causal or spec.window is not None):
        ahead = q - k if spec.aligned else tile.token("q", "index") - tile.token("k", "index")
        parts += [ahead >= 0] if spec.causal else []
        if spec.window is not None:
            inside = jnp.abs(ahead) < spec.window
            parts.append(inside | (k < spec.sinks) if spec.sinks else inside)
    if tile.edge and plan.padded and not tile.walk.keys_own:
        parts.append(k < plan.lengths[1])
    if tile.x.of_query.segments is not None:
        ids = tile.token("q", "segments")
        parts += [ids == tile.token("k", "segments"), ids >= 0]
    return functools.reduce(jnp.logical_and, parts) if parts else None


def look_up(tile: Tile, ref, side: str | None) -> jax.Array:
    """Each pair's entry of a table by distance; `side`: whose token picks its row, if it has any.

    Where all pairs of the tile share one distance, one number for all, for each row or column.
    """
    if tile.far is not None:
        return tile.along(side, ref[tile.slices[side], tile.far]) if side else ref[tile.far]
    lo, hi = tile.plan.span
    entry = jnp.clip(tile.distance(), lo, hi) - lo
    row = [jnp.broadcast_to(tile.along(s, tile.places[s]), entry.shape) for s in side or ""]
    # Always so; but a load of its own block is one that Triton does not keep several of, each
    # as large as a tile, in the shared memory that the operands' pipeline needs.
    near = tile.other.start >= 0
    return jax.lax.cond(near, lambda: ref[*row, entry], lambda: jnp.zeros(entry.shape, ref.dtype))


def store_by_distance(tile: Tile, ref, entries: jax.Array, amounts: jax.Array, ends: list):
    """Stores `entries` by distance, within the span; adds `amounts` past it to `ends` [owned] each.

    Each pair has a place to itself in `ref` [owned tokens, n]: nothing is added there.
    """
    lo, hi = tile.plan.span
    if tile.far is not None:
        last = zip(ends, (0, hi - lo), strict=True)
        return [end + amounts.sum(1) if tile.far == entry else end for end, entry in last]
    d = tile.distance()
    row = jnp.broadcast_to(tile.places[tile.sides[0]][:, None], d.shape)
    triton.store(ref.at[row, jnp.clip(d, lo, hi) - lo], entries, mask=(d > lo) & (d < hi))
    past = zip(ends, (d <= lo, d >= hi), strict=True)
    return [end + jnp.where(out, amounts, 0).sum(1) for end, out in past]


def dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Product over the last axis of a and `axis` of b; float32 as such (Triton prefers TF32)."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    axes = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, precision, preferred_element_type=jnp.float32)
