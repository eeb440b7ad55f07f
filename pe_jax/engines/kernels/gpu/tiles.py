"""The loop of a program over blocks, and one tile: its scores, their gradients, what is stored.

A program owns a block of tokens of one side and visits the blocks of the other (`KVLoop`), tile by
tile. A row meets each distance within the span of the tables at most once: the program that owns it
stores those entries one by one and keeps a sum for either far end. So nothing is added atomically.
Scores are kept times log2(e). Letters are those of `engine`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.encodings.terms import Tokens
from pe_jax.engines.kernels.gpu import chunks, phases, pieces, row_sums
from pe_jax.engines.kernels.gpu.operands import LOG2E, Arrays, PerToken, Plan
from pe_jax.engines.reference import LOWEST
from pe_jax.numerics.products import dot

try:  # deprecated since jax 0.11, there in 0.12
    from jax.experimental.pallas import triton
except ImportError:
    triton: Any = None


class KVLoop:
    """The block of queries that a program owns, and its loop over blocks of keys.

    `by_keys`: a program owns keys and loops over queries.
    """

    def __init__(self, plan: Plan, x: Arrays, by_keys: bool = False, at: Any = None):
        if at is None:  # under a causal mask the last queries have the longest loop: they go first
            i = pl.program_id(0)
            at = i if by_keys or not plan.spec.causal else pl.num_programs(0) - 1 - i
        self.plan, self.x, self.by_keys, self.at = plan, x, by_keys, at
        self.own = pl.ds(at * plan.sizes[0], plan.sizes[0])
        numbers = x.of_key if by_keys else x.of_query
        self.owned = PerToken(*(None if ref is None else ref[self.own] for ref in numbers))
        self.owned_numbers = read_numbers(x.k_numbers if by_keys else x.q_numbers, self.own)
        factors, self.owned_factors = x.right if by_keys else x.left, None
        if factors is not None and len(factors.shape) == 2:
            self.owned_factors = factors[self.own, :]

    def __call__(self, visit: Callable, carry, from_the_right: bool = False):
        """The carry after `visit(tile, carry)` of each tile."""
        found = ranges(self.plan, self.x, self.at, self.by_keys)
        in_order = [part for blocks in found for part in _of_chunks(self, blocks)]
        for blocks in reversed(in_order) if from_the_right else in_order:

            def step(j, carry, blocks=blocks):
                j = blocks.first + blocks.last - 1 - j if from_the_right else j
                return visit(Tile(self, j, blocks.edge, blocks.far, blocks.near), carry)

            carry = jax.lax.fori_loop(blocks.first, blocks.last, step, carry)
        return carry


class Range(NamedTuple):
    """Blocks to visit one after the other, whose tiles are of the same kind."""

    first: Any  # the first block
    last: Any  # one past the last
    edge: bool  # whether the mask may hide pairs by their indices
    far: int | None = None  # the entry of the tables that all pairs share, if they do
    near: bool | None = None  # whether all pairs are within a chunk; None: some may be


def ranges(plan: Plan, x: Arrays, at, by_keys: bool) -> list[Range]:
    """The blocks that the program owning block `at` visits, in order.

    Here e is the index of an owned token less that of a visited one; it falls from block to block.
    """
    spec, (own, other) = plan.spec, plan.sizes
    n = pl.cdiv(plan.lengths[not by_keys], other)

    def whole(e):  # how many blocks have nothing but pairs at e or more
        return (at * own + 1 - e) // other

    def some(e):  # how many blocks have such a pair
        return (at * own + own - 1 - e) // other + 1

    def clip(block, least, most):
        return jnp.minimum(jnp.maximum(block, least), most)

    lo, hi = plan.span
    high = math.inf if spec.window is None or not spec.aligned else spec.window - 1
    low = 0 if spec.aligned and spec.causal else -high  # what is visible by index
    if by_keys:
        low, high, lo, hi = -high, -low, -hi, -lo
    over, under = high > hi, low < lo  # whether pairs past the tables can be visible
    begin = jnp.int32(0) if high == math.inf else clip(whole(high + 1), 0, n)
    end = jnp.int32(n) if low == -math.inf else clip(some(low), 0, n)
    if x.bounds is not None:
        begin = jnp.maximum(begin, x.bounds[0][at])
        end = clip(x.bounds[1][at], begin, end)
    full = plan.lengths[1] // other if plan.padded and not by_keys else n
    plain = begin if high == math.inf else clip(some(high + 1), begin, end)
    edge = clip(full if low == -math.inf else jnp.minimum(whole(low), full), plain, end)
    # Blocks that meet the diagonal are of one chunk.
    left = [Range(begin, plain, True, near=high == 0 or None)] if high < math.inf else []
    right = [Range(edge, end, True, near=low == 0 or None)] if low > -math.inf or full < n else []
    if not plan.far:
        return [*left, Range(plain, edge, False), *right]
    entries = (plan.distances - 1, 0)  # of distances at the upper end, at the lower
    near = clip(whole(hi), plain, edge)
    past = clip(some(lo + 1), near, edge)
    left = [*left, Range(plain, near, False, entries[by_keys])] if over else []
    right = [Range(past, edge, False, entries[not by_keys]), *right] if under else []
    begin, end = near if over else begin, past if under else end
    return [*left, Range(begin, end, not (over and under)), *right]


def _of_chunks(loop: KVLoop, blocks: Range) -> list[Range]:
    """The blocks, where the mask touches none: apart those that are of the owned one's chunk."""
    (own, other), chunk, by_keys = loop.plan.sizes, loop.plan.chunk, loop.by_keys
    if not chunk or blocks.edge:
        return [blocks]
    if chunk == own == other:
        return [blocks._replace(near=False)]
    cut = (loop.at * own // chunk + by_keys) * chunk // other  # where the chunk begins, or ends
    first = blocks._replace(last=jnp.minimum(blocks.last, cut), near=by_keys)
    return [first, blocks._replace(first=jnp.maximum(blocks.first, cut), near=not by_keys)]


class Tile:
    """A block of owned tokens and a visited one, and facts of their pairs: [owned, visited]."""

    def __init__(
        self,
        loop: KVLoop,
        j: Any,
        edge: bool = True,
        far: int | None = None,
        near: bool | None = None,
    ):
        self.loop, self.plan, self.x = loop, loop.plan, loop.x
        self.edge, self.far, self.near = edge, far, near  # as in `Range`
        self.other = pl.ds(j * self.plan.sizes[1], self.plan.sizes[1])
        self.sides = "kq" if loop.by_keys else "qk"
        self.slices = dict(zip(self.sides, (loop.own, self.other), strict=True))
        blocks = zip((loop.own, self.other), self.plan.sizes, strict=True)
        indices = (tokens.start + jnp.arange(size, dtype=jnp.int32) for tokens, size in blocks)
        self.indices = dict(zip(self.sides, indices, strict=True))

    def along(self, side: str, values: jax.Array) -> jax.Array:
        """Values of the tokens of one side, along their axis of the tile."""
        return values[:, None] if side == self.sides[0] else values[None, :]

    def token(self, side: str, name: str) -> jax.Array:
        """A number per token of one side, by its name in `PerToken`."""
        if side == self.sides[0]:
            return self.along(side, getattr(self.loop.owned, name))
        numbers = self.x.of_query if side == "q" else self.x.of_key
        return self.along(side, getattr(numbers, name)[self.other])

    def index(self, side: str) -> jax.Array:
        """The index of each token of one side."""
        if self.plan.spec.aligned:
            return self.indices[side]
        if side == self.sides[0]:
            return self.loop.owned.index
        return (self.x.of_query if side == "q" else self.x.of_key).index[self.other]

    def numbers(self, side: str) -> list[jax.Array]:
        """The numbers of one side that biases of two tokens read, along its axis of the tile."""
        if side == self.sides[0]:
            numbers = self.loop.owned_numbers
        else:
            numbers = read_numbers(
                self.x.q_numbers if side == "q" else self.x.k_numbers, self.other
            )
        return [self.along(side, x) for x in numbers]

    def axis(self, side: str) -> int:
        """The axis of the tile along which the tokens of a side are."""
        return self.sides.index(side)

    def sum_number(self) -> jax.Array | None:
        """The number of each query that the bias of a row's sums reads, or None."""
        numbers = self.x.sum_numbers
        return None if numbers is None else self.along("q", numbers[self.slices["q"], 0])

    def factors(self, side: str) -> Any:
        """The factors of one side, which sums along rows, phases or chunks multiply."""
        if side == self.sides[0] and self.loop.owned_factors is not None:
            return self.loop.owned_factors
        factors = self.x.left if side == "q" else self.x.right
        chunk = () if len(factors.shape) == 2 else (self.chunk("k"),)
        return factors[self.slices[side], *chunk, :]

    def factors_product(self) -> jax.Array:
        """The products of both sides' factors."""
        owned, visited = map(self.factors, self.sides)
        return dot(owned, visited, 1)

    def chunk(self, side: str) -> Any:
        """The number of the chunk of one side's tokens."""
        return self.slices[side].start // self.plan.chunk

    def of_block(self, numbers) -> jax.Array:
        """The queries' numbers for the tile's block of keys, of an array [T, blocks]."""
        return numbers[self.slices["q"], self.slices["k"].start // self.plan.sums.block]

    def distance(self) -> jax.Array:
        """`q_pos - k_pos`."""
        if self.plan.spec.in_order:
            return self.along("q", self.indices["q"]) - self.along("k", self.indices["k"])
        return self.token("q", "positions") - self.token("k", "positions")


def read_numbers(ref, tokens) -> list[jax.Array]:
    """The C rows [tokens] of an array of numbers [C, T]; an empty list for None."""
    return [] if ref is None else [ref[c, tokens] for c in range(ref.shape[0])]


def products(tile: Tile, owned: jax.Array, visited: jax.Array) -> tuple[jax.Array, Any]:
    """The products of a tile's pairs, from q and k or the reverse; what a phase has of them."""
    if tile.plan.chunk:
        return chunks.product(tile), None
    product = dot(owned, visited, 1)
    if tile.plan.phase is None:
        return product, None
    wave = phases.evaluate(tile, product)
    return wave.product, wave


def scores(tile: Tile, product: jax.Array, sums: Any = None, bent: Any = None) -> jax.Array:
    """The scores of a tile from q·k: times log2(e); minus infinity where hidden.

    `sums` are those along rows, `bent` linear pieces, if a term has any.
    """
    plan, x = tile.plan, tile.x
    tables = ((x.table, None), (x.rows, "q"), (x.columns, "k"))
    biases = [look_up(tile, ref, side) for ref, side in tables if ref is not None]
    if x.bias is not None:
        bias = x.bias[tile.slices["q"], tile.slices["k"]]
        biases.append(bias.T if tile.loop.by_keys else bias)
    if x.coefficients is not None:
        numbers = [x.coefficients[c] for c in range(x.coefficients.shape[0])]
        biases.append(plan.formula(numbers, distance=tile.distance()))
    if plan.of_tokens:
        biases.append(plan.of_tokens(tile.numbers("q"), tile.numbers("k")))
    biases += [evaluated.bias for evaluated in (sums, bent) if evaluated is not None]
    s = product * (plan.scale * LOG2E)
    s = s + functools.reduce(jnp.add, biases) * LOG2E if biases else s
    if plan.cap is not None:  # a bias of -inf hides a pair, whatever the cap
        capped = jnp.tanh(s * (1 / (plan.cap * LOG2E))) * (plan.cap * LOG2E)
        s = jnp.where(s < LOWEST, -jnp.inf, capped)
    pairs = visible(tile) if sums is None else sums.pairs
    return s if pairs is None else jnp.where(pairs, s, -jnp.inf)


def gradient(tile: Tile, owned: tuple, visited: tuple) -> tuple[jax.Array, jax.Array, tuple]:
    """Weights, and the gradient of the scores; from q, d_out and k, v, or the reverse.

    Also returns what was evaluated of sums along rows, pieces and phases, None without such a term.
    """
    (product, wave), sums, cap = products(tile, owned[0], visited[0]), None, tile.plan.cap
    bent = None if tile.x.knots is None else pieces.evaluate(tile)
    if tile.plan.sums is not None:
        before = tile.of_block(tile.x.carried)
        sums = row_sums.evaluate(tile, product, visible(tile), before)
    s = scores(tile, product, sums, bent)
    p = jnp.exp2(s - tile.token("q", "lse"))
    d_p = dot(owned[1], visited[1], 1) - tile.token("q", "delta")
    d_weights = tile.x.d_weights
    d_s = p * (d_p if d_weights is None else d_p + look_up(tile, d_weights, "q"))
    if cap is not None:  # hidden pairs have infinite scores, and no weight
        flat = jnp.where(p > 0, s * (1 / (cap * LOG2E)), 0)
        d_s = d_s * (1 - flat * flat)
    return p, d_s, (sums, bent, wave)


def visible(tile: Tile) -> jax.Array | None:
    """Which pairs are visible; None: all."""
    plan, spec, tests = tile.plan, tile.plan.spec, []
    q, k = (tile.along(side, tile.indices[side]) for side in "qk")
    if (tile.edge or plan.indexed) and (spec.causal or spec.window is not None):
        ahead = q - k if spec.aligned else tile.token("q", "index") - tile.token("k", "index")
        tests += [ahead >= 0] if spec.causal else []
        if spec.window is not None:
            tests.append(jnp.abs(ahead) < spec.window)
    if plan.sums is not None:
        ends = plan.lengths[1] % plan.sums.block != 0  # gates of the padding would count
    else:
        ends = tile.edge and plan.padded and not tile.loop.by_keys
    if ends:
        tests.append(k < plan.lengths[1])
    for fn in plan.masks:
        rows, columns = (tile.index(side)[None] for side in "qk")
        shown = fn(None, Tokens(rows, rows), Tokens(columns, columns))  # [1, T, S]
        shown = shown.astype(jnp.int32).reshape(q.size, k.size)
        tests.append((shown.T if tile.loop.by_keys else shown) != 0)
    if tile.x.of_query.segments is not None:
        ids = tile.token("q", "segments")
        tests += [ids == tile.token("k", "segments"), ids >= 0]
    return functools.reduce(jnp.logical_and, tests) if tests else None


def look_up(tile: Tile, ref, side: str | None) -> jax.Array:
    """Each pair's entry of a table by distance; `side`: whose token picks its row, if it has any.

    Where all pairs of the tile share one distance, one number for all, for each row or column.
    """
    if tile.far is not None:
        return tile.along(side, ref[tile.slices[side], tile.far]) if side else ref[tile.far]
    lo, hi = tile.plan.span
    entry = jnp.clip(tile.distance(), lo, hi) - lo
    row = [jnp.broadcast_to(tile.along(s, tile.indices[s]), entry.shape) for s in side or ""]
    # Always true; but Triton does not keep several copies of a load in a conditional, each as large
    # as a tile, in the shared memory that the operands' pipeline needs.
    near = tile.other.start >= 0
    return jax.lax.cond(near, lambda: ref[*row, entry], lambda: jnp.zeros(entry.shape, ref.dtype))


def store_by_distance(tile: Tile, ref, entries: jax.Array, amounts: jax.Array, ends: list) -> list:
    """Stores `entries` by distance, within the span; adds `amounts` past it to `ends` [owned] each.

    Each pair has a separate entry in `ref` [owned tokens, n].
    """
    lo, hi = tile.plan.span
    if tile.far is not None:
        last = zip(ends, (0, hi - lo), strict=True)
        return [end + amounts.sum(1) if tile.far == entry else end for end, entry in last]
    d = tile.distance()
    row = jnp.broadcast_to(tile.indices[tile.sides[0]][:, None], d.shape)
    inside = (d > lo) & (d < hi)
    triton.store(ref.at[row, jnp.clip(d, lo, hi) - lo], entries, mask=inside)
    past = zip(ends, (d <= lo, d >= hi), strict=True)
    return [end + jnp.where(out, amounts, 0).sum(1) for end, out in past]
