"""The way of a program along the blocks of the other side, and what is known of a tile's pairs.

Letters are those of `engine`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.engines.kernels.gpu.plan import Arrays, PerToken, Plan


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
        for stretch in stretches(self.plan, self.x, self.at, self.keys_own):

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


def stretches(plan: Plan, x: Arrays, at, keys_own: bool) -> list[Stretch]:
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
    if x.bounds is not None:
        begin = jnp.maximum(begin, x.bounds[0][at])
        end = clip(x.bounds[1][at], begin, end)
    before, after = [], []  # what is seen out of the window
    if x.sinks is not None:
        first, last = (ref[at] for ref in x.sinks)
        in_order = spec.aligned and spec.causal
        if not (in_order and keys_own):
            before = [Stretch(first, jnp.minimum(last, begin), True, None)]
        if keys_own or not in_order:
            after = [Stretch(jnp.maximum(first, end), last, True, None)]
    full = plan.lengths[1] // other if plan.padded and not keys_own else n
    plain = begin if high == math.inf else clip(some(high + 1), begin, end)
    edge = clip(full if low == -math.inf else jnp.minimum(whole(low), full), plain, end)
    left = [Stretch(begin, plain, True, None)] if high < math.inf else []
    right = [Stretch(edge, end, True, None)] if low > -math.inf or full < n else []
    if not (plan.far and spec.contiguous):
        return [*before, *left, Stretch(plain, edge, False, None), *right, *after]
    entries = (plan.distances - 1, 0)  # of distances at the upper end, at the lower
    near = clip(whole(hi), plain, edge)
    past = clip(some(lo + 1), near, edge)
    left = [*left, Stretch(plain, near, False, entries[keys_own])] if over else []
    right = [Stretch(past, edge, False, entries[not keys_own]), *right] if under else []
    begin, end = near if over else begin, past if under else end
    return [*before, *left, Stretch(begin, end, not (over and under), None), *right, *after]


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


def read_numbers(ref, tokens) -> list[jax.Array]:
    """The C rows [tokens] of an array of numbers [C, T]; none if there is none."""
    return [] if ref is None else [ref[c, tokens] for c in range(ref.shape[0])]
