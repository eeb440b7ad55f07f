"""The kernels of the fused engine: what one program on the GPU computes, and from what.

FlashAttention-2 (Dao, arXiv 2307.08691) in Pallas, lowered by Triton. Here are the mask and the
scores of a tile, a program's way along the tiles, and the sums that it keeps; what is prepared for
the kernels, launched and made of the results is in `fused`.

A row meets each distance within the horizon at most once: the program that owns it stores those
entries one by one and keeps a sum for either far end. So nothing is added atomically.

A kernel takes, as references by name, what it reads (`x`), what it deals entries by distance over
(before and after: one and the same) and what it writes. Scores are kept times log2(e); the letters
are those of `fused`.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.engines.dense import Rules

try:
    from jax.experimental.pallas import triton
except ImportError:
    triton: Any = None

LOG2E = math.log2(math.e)
FLOOR = -1e30  # below any score, and finite: a row that has seen nothing yet needs no special care
SIDE = {"rows": "q", "d_weights": "q", "columns": "k"}  # whose token picks the row of a table


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static about a call. A program owns a block of one side and visits the other's."""

    rules: Rules
    lengths: tuple[int, int]  # T, S before padding
    sizes: tuple[int, int]  # of the owned block, of a visited one
    back: tuple[int, int]  # likewise in the backward pass
    span: tuple[int, int]  # the distances of the tables, if there are any
    far: bool  # there are, and they are constant beyond the span
    values: bool  # weights by distance are wanted
    interpret: bool

    @property
    def indexed(self) -> bool:
        """Whether the mask reads index arrays."""
        return not self.rules.aligned and (self.rules.causal or self.rules.window is not None)

    @property
    def padded(self) -> bool:
        """Whether keys of the padding could be seen: not if causality hides them."""
        hidden = self.rules.aligned and self.rules.causal
        return not hidden and self.lengths[1] % self.sizes[1] != 0

    def visible(self) -> tuple[int | None, int | None]:
        """The least and the largest distance that the mask shows, by place; None: no limit."""
        window = self.rules.window if self.rules.aligned else None
        low = None if window is None else 1 - window
        low = 0 if self.rules.aligned and self.rules.causal else low
        return low, None if window is None else window - 1


def _dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Product over the last axis of a and `axis` of b; float32 as such (Triton prefers TF32)."""
    return jax.lax.dot_general(
        a,
        b,
        (((1,), (axis,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


class _Tile:
    """What a tile's scores are made of besides the matrix product: [owned, visited].

    Args:
      plan: the call.
      x: references by name.
      held: what is known of the owned tokens, loaded.
      at: the owned block and the visited one.
      turned: whether keys are owned.
      edge: whether the mask may hide pairs by their place.
      far: the table's entry that all pairs share, if they do.
    """

    def __init__(self, plan: Plan, x: dict, held: dict, at, turned=False, edge=True, far=None):
        self.plan, self.x, self.held, self.turned = plan, x, held, turned
        self.edge, self.far = edge, far
        self.sides = "kq" if turned else "qk"
        starts = [i * size for i, size in zip(at, plan.sizes, strict=True)]
        slices = [pl.ds(start, size) for start, size in zip(starts, plan.sizes, strict=True)]
        places = [
            s + jnp.arange(n, dtype=jnp.int32) for s, n in zip(starts, plan.sizes, strict=True)
        ]
        self.other = slices[1]
        self.slices = dict(zip(self.sides, slices, strict=True))
        self.places = dict(zip(self.sides, places, strict=True))

    def spread(self, side: str, values: jax.Array) -> jax.Array:
        """Values of one side's tokens, along their axis of the tile."""
        return values[:, None] if side == self.sides[0] else values[None, :]

    def token(self, name: str) -> jax.Array:
        """What is known of each token, as "q_index"."""
        found = self.held.get(name)
        return self.spread(name[0], self.x[name][self.other] if found is None else found)

    def distance(self) -> jax.Array:
        """[owned, visited]."""
        if self.plan.rules.contiguous:
            return self.spread("q", self.places["q"]) - self.spread("k", self.places["k"])
        return self.token("q_positions") - self.token("k_positions")

    def pick(self, name: str) -> jax.Array:
        """Each pair's entry of a table over distances: one of the head, or of its row or column."""
        ref, side, (lo, hi) = self.x[name], SIDE.get(name), self.plan.span
        if self.far is not None:
            return self.spread(side, ref[self.slices[side], self.far]) if side else ref[self.far]
        slot = jnp.clip(self.distance(), lo, hi) - lo
        row = [jnp.broadcast_to(self.spread(s, self.places[s]), slot.shape) for s in side or ""]
        # Always so; but a load of its own block is one that Triton does not keep several of, each
        # as large as a tile, in the shared memory that the operands' pipeline needs.
        near = self.other.start >= 0
        return jax.lax.cond(near, lambda: ref[*row, slot], lambda: jnp.zeros(slot.shape, ref.dtype))

    def profile(self, coefficients: list) -> jax.Array:
        """The bias that is computed in place."""
        return self.plan.rules.encoding.profile(coefficients, self.distance())

    def seen(self) -> jax.Array | None:
        """What the mask shows; None where that is all."""
        rules, parts = self.plan.rules, []
        q, k = (self.spread(side, self.places[side]) for side in "qk")
        if (self.edge or self.plan.indexed) and (rules.causal or rules.window is not None):
            ahead = q - k if rules.aligned else self.token("q_index") - self.token("k_index")
            parts += [ahead >= 0] if rules.causal else []
            parts += [jnp.abs(ahead) < rules.window] if rules.window is not None else []
        if self.edge and self.plan.padded and not self.turned:
            parts.append(k < self.plan.lengths[1])
        if "q_segments" in self.x:
            ids = self.token("q_segments")
            parts += [ids == self.token("k_segments"), ids >= 0]
        return functools.reduce(jnp.logical_and, parts) if parts else None

    def scores(self, product: jax.Array) -> jax.Array:
        """Times log2(e); minus infinity where hidden."""
        rules = self.plan.rules
        parts = [self.pick(name) for name in ("table", "rows", "columns") if name in self.x]
        if "coefficients" in self.x:
            ref = self.x["coefficients"]
            parts.append(self.profile([ref[c] for c in range(ref.shape[0])]))
        s = product * (rules.encoding.scale(rules.dims.head_dim) * LOG2E)
        s = s + functools.reduce(jnp.add, parts) * LOG2E if parts else s
        seen = self.seen()
        return s if seen is None else jnp.where(seen, s, -jnp.inf)

    def gradient(self, mine, theirs) -> tuple[jax.Array, jax.Array]:
        """Weights, and the gradient of the scores; from q, d_out and k, v, or the other way."""
        p = jnp.exp2(self.scores(_dot(mine[0], theirs[0], 1)) - self.token("q_lse"))
        d_p = _dot(mine[1], theirs[1], 1) - self.token("q_delta")
        return p, p * (d_p + self.pick("d_weights") if "d_weights" in self.x else d_p)

    def deal(self, ref, entries: jax.Array, amounts: jax.Array, ends: list) -> list:
        """Stores `entries` by distance, within the span; adds `amounts` beyond it to `ends`.

        Each pair has a place of its own in `ref` [owned tokens, n]: nothing is added there.
        """
        lo, hi = self.plan.span
        if self.far is not None:
            slots = zip(ends, (0, hi - lo), strict=True)
            return [end + amounts.sum(1) if self.far == slot else end for end, slot in slots]
        d = self.distance()
        row = jnp.broadcast_to(self.places[self.sides[0]][:, None], d.shape)
        triton.store(ref.at[row, jnp.clip(d, lo, hi) - lo], entries, mask=(d > lo) & (d < hi))
        beyond = zip(ends, (d <= lo, d >= hi), strict=True)
        return [end + jnp.where(out, amounts, 0).sum(1) for end, out in beyond]


def _stretches(plan: Plan, x: dict, at, turned: bool) -> list:
    """The blocks to visit, in order: (first, last + 1, edge, far), the latter two as in `_Tile`.

    Here e is the place of an owned token less that of a visited one; it falls from block to block.
    """
    (own, other), n = plan.sizes, -(-plan.lengths[not turned] // plan.sizes[1])
    whole = lambda e: (at * own + 1 - e) // other  # noqa: E731  blocks of pairs at e or more
    some = lambda e: (at * own + own - 1 - e) // other + 1  # noqa: E731  blocks with such a pair
    clip = lambda v, least, most: jnp.minimum(jnp.maximum(v, least), most)  # noqa: E731
    flip = lambda ends: tuple(None if e is None else -e for e in ends[::-1])  # noqa: E731
    low, high = flip(plan.visible()) if turned else plan.visible()
    begin = jnp.int32(0) if high is None else clip(whole(high + 1), 0, n)
    end = jnp.int32(n) if low is None else clip(some(low), 0, n)
    if "first" in x:
        begin = jnp.maximum(begin, x["first"][at])
        end = clip(x["last"][at], begin, end)
    full = plan.lengths[1] // other if plan.padded and not turned else n
    plain = begin if high is None else clip(some(high + 1), begin, end)
    edge = clip(full if low is None else jnp.minimum(whole(low), full), plain, end)
    left = [(begin, plain, True, None)] if high is not None else []
    right = [(edge, end, True, None)] if low is not None or full < n else []
    if not plan.far:
        return [*left, (plain, edge, False, None), *right]
    slots = (plan.span[1] - plan.span[0], 0)  # of distances at the upper end, at the lower
    lo, hi = (-plan.span[1], -plan.span[0]) if turned else plan.span
    near = clip(whole(hi), plain, edge)
    beyond = clip(some(lo + 1), near, edge)
    over, under = high is None or high > hi, low is None or low < lo  # far pairs can be visible
    left = [*left, (plain, near, False, slots[turned])] if over else []
    right = [(beyond, edge, False, slots[not turned]), *right] if under else []
    middle = (near if over else begin, beyond if under else end, not (over and under), None)
    return [*left, middle, *right]


class _Walk:
    """One program: the block that it owns, and its way along the blocks of the other side."""

    def __init__(self, plan: Plan, x: dict, turned: bool):
        i, self.plan, self.x, self.turned = pl.program_id(0), plan, x, turned
        # Under a causal mask the last queries have the longest way: they go first.
        self.at = i if turned or not plan.rules.causal else pl.num_programs(0) - 1 - i
        self.own = pl.ds(self.at * plan.sizes[0], plan.sizes[0])
        mine = "k_" if turned else "q_"
        self.held = {name: ref[self.own] for name, ref in x.items() if name.startswith(mine)}

    def __call__(self, body, carry):
        """`body(tile, carry)`, tile after tile."""
        for first, last, *kind in _stretches(self.plan, self.x, self.at, self.turned):

            def step(j, carry, kind=kind):
                tile = _Tile(self.plan, self.x, self.held, (self.at, j), self.turned, *kind)
                return body(tile, carry)

            carry = jax.lax.fori_loop(first, last, step, carry)
        return carry


def forward_kernel(plan: Plan, x: dict, _, dealt: dict, out: dict) -> None:
    """Output, log2 of each row's sum of exponentials and, if wanted, of scores by distance."""
    walk = _Walk(plan, x, False)
    q, own, rows = x["q"][walk.own, :], walk.own, plan.sizes[0]

    def body(tile, carry):
        total, top, sums, ends = carry
        v = x["v"][tile.other, :]
        s = tile.scores(_dot(q, x["k"][tile.other, :], 1))
        new = jnp.maximum(top, s.max(1))
        p, fade = jnp.exp2(s - new[:, None]), jnp.exp2(top - new)
        if dealt:
            ends = tile.deal(dealt["weights"], s, p, [end * fade for end in ends])
        total = total * fade[:, None] + _dot(p.astype(v.dtype), v, 0)
        return total, new, sums * fade + p.sum(1), ends

    zero = jnp.zeros((rows,), jnp.float32)
    start = jnp.zeros((rows, x["v"].shape[1]), jnp.float32), zero + FLOOR, zero, [zero, zero]
    total, top, sums, ends = walk(body, start)
    log = lambda x, none: jnp.where(x > 0, top + jnp.log2(jnp.where(x > 0, x, 1)), none)  # noqa: E731
    # A row that sees nothing gets zeros, and a sum so large that its weights vanish again.
    out["out"][own, :] = total / jnp.where(sums > 0, sums, 1)[:, None]
    out["lse"][own] = log(sums, -FLOOR)
    if dealt:
        dealt["weights"][own, 0] = log(ends[0], -jnp.inf)
        dealt["weights"][own, plan.span[1] - plan.span[0]] = log(ends[1], -jnp.inf)


def backward_kernel(turned: bool, plan: Plan, x: dict, _, dealt: dict, out: dict) -> None:
    """The gradients that belong to the owned block; those of coefficients row by row."""
    walk = _Walk(plan, x, turned)
    mine, theirs = (("k", "v"), ("q", "d_out")) if turned else (("q", "d_out"), ("k", "v"))
    owned, own = [x[name][walk.own, :] for name in mine], walk.own
    ref = dealt.get("columns" if turned else "rows")
    count = out["coefficients"].shape[0] if "coefficients" in out else 0

    def body(tile, carry):
        d_first, d_v, ends, d_c = carry
        visited = [x[name][tile.other, :] for name in theirs]
        p, d_s = tile.gradient(owned, visited)
        d_first += _dot(d_s.astype(visited[0].dtype), visited[0], 0)
        if turned:
            d_v += _dot(p.astype(visited[1].dtype), visited[1], 0)
        if ref is not None:
            ends = tile.deal(ref, d_s, d_s, ends)
        if count:  # one coefficient a row: its gradient is a sum along the row
            c = [jnp.full((len(p), 1), x["coefficients"][i], jnp.float32) for i in range(count)]
            (more,) = jax.vjp(tile.profile, c)[1](d_s)
            d_c = [a + b for a, b in zip(d_c, more, strict=True)]
        return d_first, d_v, ends, d_c

    zeros = lambda *shape: jnp.zeros(shape, jnp.float32)  # noqa: E731
    rows, d_v = plan.sizes[0], zeros(*owned[1].shape) if turned else None
    start = zeros(*owned[0].shape), d_v, [zeros(rows)] * 2, [zeros(rows, 1)] * count
    d_first, d_v, ends, d_c = walk(body, start)
    scale = plan.rules.encoding.scale(plan.rules.dims.head_dim)
    out[mine[0]][own, :] = (d_first * scale).astype(out[mine[0]].dtype)
    if d_v is not None:
        out["v"][own, :] = d_v.astype(out["v"].dtype)
    if ref is not None:
        ref[own, 0], ref[own, plan.span[1] - plan.span[0]] = ends
    for i, d in enumerate(d_c):
        out["coefficients"][i, own] = d.sum(1)


def diagonal_kernel(plan: Plan, x: dict, _, __, out: dict) -> None:
    """The score gradients of one block diagonal, summed tile upon tile."""
    size = plan.sizes[0]
    rows, columns = (x[name].shape[0] // size for name in "qk")
    offset = pl.program_id(0) - (columns - 1)

    def body(i, total):
        own = pl.ds(i * size, size)
        held = {name: ref[own] for name, ref in x.items() if name.startswith("q_")}
        tile = _Tile(plan, x, held, (i, i - offset))
        mine = x["q"][own, :], x["d_out"][own, :]
        return total + tile.gradient(mine, [x[name][tile.other, :] for name in "kv"])[1]

    lo, hi = plan.span  # what lies outside is not seen
    meets = (offset * size + size > lo) & (offset * size - size < hi)
    first = jnp.maximum(offset, 0)
    last = jnp.where(meets, jnp.minimum(rows, columns + offset), first)
    total = jax.lax.fori_loop(first, last, body, jnp.zeros((size, size), jnp.float32))
    out["tiles"][pl.program_id(0), :, :] = total
