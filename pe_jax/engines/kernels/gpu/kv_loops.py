"""The loop of a program over blocks of keys (or of queries), and what is known of a tile's pairs.

Letters are those of `engine`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.engines.kernels.gpu.plan import Arrays, PerToken, Plan


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

    def __call__(self, visit: Callable, carry):
        """`visit(tile, carry)`, tile after tile."""
        for part in ranges(self.plan, self.x, self.at, self.by_keys):

            def step(j, carry, part=part):
                return visit(Tile(self, j, part.edge, part.far), carry)

            carry = jax.lax.fori_loop(part.first, part.last, step, carry)
        return carry


class Range(NamedTuple):
    """Blocks to visit one after the other, whose tiles are of one sort."""

    first: Any  # the first block
    last: Any  # one past the last
    edge: bool  # whether the mask may hide pairs by their indices
    far: int | None  # the entry of the tables that all pairs share, if they do


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

    (low, high), (lo, hi) = plan.visible_distances(), plan.span
    if by_keys:
        low, high, lo, hi = -high, -low, -hi, -lo
    over, under = high > hi, low < lo  # whether pairs past the tables can be visible
    begin = jnp.int32(0) if high == math.inf else clip(whole(high + 1), 0, n)
    end = jnp.int32(n) if low == -math.inf else clip(some(low), 0, n)
    if x.bounds is not None:
        begin = jnp.maximum(begin, x.bounds[0][at])
        end = clip(x.bounds[1][at], begin, end)
    before, after = [], []  # what is visible outside the window
    if x.sinks is not None:
        first, last = (ref[at] for ref in x.sinks)
        in_order = spec.aligned and spec.causal
        if not (in_order and by_keys):
            before = [Range(first, jnp.minimum(last, begin), True, None)]
        if by_keys or not in_order:
            after = [Range(jnp.maximum(first, end), last, True, None)]
    full = plan.lengths[1] // other if plan.padded and not by_keys else n
    plain = begin if high == math.inf else clip(some(high + 1), begin, end)
    edge = clip(full if low == -math.inf else jnp.minimum(whole(low), full), plain, end)
    left = [Range(begin, plain, True, None)] if high < math.inf else []
    right = [Range(edge, end, True, None)] if low > -math.inf or full < n else []
    if not (plan.far and spec.contiguous):
        return [*before, *left, Range(plain, edge, False, None), *right, *after]
    entries = (plan.distances - 1, 0)  # of distances at the upper end, at the lower
    near = clip(whole(hi), plain, edge)
    past = clip(some(lo + 1), near, edge)
    left = [*left, Range(plain, near, False, entries[by_keys])] if over else []
    right = [Range(past, edge, False, entries[not by_keys]), *right] if under else []
    begin, end = near if over else begin, past if under else end
    return [*before, *left, Range(begin, end, not (over and under), None), *right, *after]


class Tile:
    """A block of owned tokens and a visited one; what is known of their pairs: [owned, visited]."""

    def __init__(self, loop: KVLoop, j: Any, edge: bool = True, far: int | None = None):
        self.loop, self.plan, self.x = loop, loop.plan, loop.x
        self.edge, self.far = edge, far  # as in `Range`
        self.other = pl.ds(j * self.plan.sizes[1], self.plan.sizes[1])
        self.sides = "kq" if loop.by_keys else "qk"
        self.slices = dict(zip(self.sides, (loop.own, self.other), strict=True))
        parts = zip((loop.own, self.other), self.plan.sizes, strict=True)
        indices = (part.start + jnp.arange(size, dtype=jnp.int32) for part, size in parts)
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

    def numbers(self, side: str) -> list[jax.Array]:
        """The numbers of one side that biases of two tokens read, along its axis of the tile."""
        if side == self.sides[0]:
            numbers = self.loop.owned_numbers
        else:
            numbers = read_numbers(
                self.x.q_numbers if side == "q" else self.x.k_numbers, self.other
            )
        return [self.along(side, x) for x in numbers]

    def distance(self) -> jax.Array:
        """`q_pos - k_pos`."""
        if self.plan.spec.contiguous:
            return self.along("q", self.indices["q"]) - self.along("k", self.indices["k"])
        return self.token("q", "positions") - self.token("k", "positions")


def read_numbers(ref, tokens) -> list[jax.Array]:
    """The C rows [tokens] of an array of numbers [C, T]; none if there is none."""
    return [] if ref is None else [ref[c, tokens] for c in range(ref.shape[0])]
