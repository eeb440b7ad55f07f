"""A tile of the GPU kernels: its scores and their gradient, and what is stored of it by distance.

A row meets each distance within the span of the tables at most once: the program that owns it
stores those entries one by one and keeps a sum for either far end. At explicit positions it may
meet one more often; then its program adds in rounds, in each of which no two tokens of the block
have the same position. So nothing is added atomically.
Scores are kept times log2(e). Letters are those of `engine`.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.engines.kernels.gpu.kv_loops import Tile
from pe_jax.engines.kernels.gpu.plan import LOG2E

try:  # deprecated since jax 0.11, there in 0.12
    from jax.experimental.pallas import triton
except ImportError:
    triton: Any = None


def scores(tile: Tile, product: jax.Array) -> jax.Array:
    """The scores of a tile from q·k: times log2(e); minus infinity where hidden."""
    plan, x = tile.plan, tile.x
    tables = ((x.table, None), (x.rows, "q"), (x.columns, "k"))
    parts = [look_up(tile, ref, side) for ref, side in tables if ref is not None]
    if x.bias is not None:
        bias = x.bias[tile.slices["q"], tile.slices["k"]]
        parts.append(bias.T if tile.loop.by_keys else bias)
    if x.coefficients is not None:
        numbers = [x.coefficients[c] for c in range(x.coefficients.shape[0])]
        parts.append(plan.formula(numbers, distance=tile.distance()))
    if plan.of_tokens:
        parts.append(plan.of_tokens(tile.numbers("q"), tile.numbers("k")))
    s = product * (plan.scale * LOG2E)
    s = s + functools.reduce(jnp.add, parts) * LOG2E if parts else s
    if plan.cap is not None:
        s = jnp.tanh(s * (1 / (plan.cap * LOG2E))) * (plan.cap * LOG2E)
    pairs = visible(tile)
    return s if pairs is None else jnp.where(pairs, s, -jnp.inf)


def gradient(tile: Tile, owned: tuple, visited: tuple) -> tuple[jax.Array, jax.Array]:
    """Weights, and the gradient of the scores; from q, d_out and k, v, or the reverse."""
    s, cap = scores(tile, dot(owned[0], visited[0], 1)), tile.plan.cap
    p = jnp.exp2(s - tile.token("q", "lse"))
    d_p = dot(owned[1], visited[1], 1) - tile.token("q", "delta")
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
    return jax.vjp(lambda rows: tile.plan.formula(rows, distance=distance), rows)[1](d_s)[0]


def number_zeros(ref, rows: int) -> list[jax.Array]:
    """What gradients of the owned tokens' numbers begin with: [owned, 1] each; none if unwanted."""
    return [] if ref is None else [jnp.zeros((rows, 1), jnp.float32)] * ref.shape[0]


def add_number_gradients(tile: Tile, sums: list[jax.Array], d_s: jax.Array) -> list[jax.Array]:
    """The gradients of the owned tokens' numbers, this tile's added."""
    if not sums:
        return sums
    own, other = tile.numbers(tile.sides[0]), tile.numbers(tile.sides[1])

    def bias(own):
        pair = (other, own) if tile.loop.by_keys else (own, other)
        return jnp.broadcast_to(tile.plan.of_tokens(*pair), d_s.shape)

    more = jax.vjp(bias, own)[1](d_s)[0]
    return [a + b for a, b in zip(sums, more, strict=True)]


def store_numbers(ref, own, sums: list[jax.Array]) -> None:
    """Stores the gradients of the owned tokens' numbers, if they are wanted."""
    for c, d in enumerate(sums):
        ref[c, own] = d.sum(1)


def visible(tile: Tile) -> jax.Array | None:
    """Which pairs are visible; None where that is all."""
    plan, spec, parts = tile.plan, tile.plan.spec, []
    q, k = (tile.along(side, tile.indices[side]) for side in "qk")
    if (tile.edge or plan.indexed) and (spec.causal or spec.window is not None):
        ahead = q - k if spec.aligned else tile.token("q", "index") - tile.token("k", "index")
        parts += [ahead >= 0] if spec.causal else []
        if spec.window is not None:
            inside = jnp.abs(ahead) < spec.window
            rank = k if tile.x.of_key.rank is None else tile.token("k", "rank")
            parts.append(inside | (rank < plan.sinks) if plan.sinks else inside)
    if tile.edge and plan.padded and not tile.loop.by_keys:
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
    row = [jnp.broadcast_to(tile.along(s, tile.indices[s]), entry.shape) for s in side or ""]
    # Always so; but of a load in a conditional Triton does not keep several copies, each as large
    # as a tile, in the shared memory that the operands' pipeline needs.
    near = tile.other.start >= 0
    return jax.lax.cond(near, lambda: ref[*row, entry], lambda: jnp.zeros(entry.shape, ref.dtype))


def store_by_distance(
    tile: Tile,
    ref,
    entries: jax.Array,
    amounts: jax.Array,
    ends: list,
    add: Callable = operator.add,
) -> list:
    """Stores `entries` by distance, within the span; adds `amounts` past it to `ends` [owned] each.

    Where each pair has an entry to itself in `ref` [owned tokens, n], nothing is added there; at
    explicit positions `add` makes one entry of two.
    """
    lo, hi = tile.plan.span
    if tile.far is not None:
        last = zip(ends, (0, hi - lo), strict=True)
        return [end + amounts.sum(1) if tile.far == entry else end for end, entry in last]
    d = tile.distance()
    row = jnp.broadcast_to(tile.indices[tile.sides[0]][:, None], d.shape)
    inside = (d > lo) & (d < hi)
    if tile.plan.spec.contiguous:
        triton.store(ref.at[row, jnp.clip(d, lo, hi) - lo], entries, mask=inside)
    else:
        rounds = tile.token(tile.sides[1], "round")

        def take_round(n, done):
            now = inside & (rounds == n)
            entry = ref.at[row, jnp.where(now, d - lo, 0)]  # 0: what `ends` will be stored over
            triton.store(entry, add(triton.load(entry, mask=now, other=0), entries), mask=now)
            if not tile.plan.interpret:
                triton.debug_barrier()  # what comes next may read what other threads have stored
            return done

        jax.lax.fori_loop(0, rounds.max() + 1, take_round, 0)
    past = zip(ends, (d <= lo, d >= hi), strict=True)
    return [end + jnp.where(out, amounts, 0).sum(1) for end, out in past]


def log2_of_sum(a: jax.Array, b: jax.Array) -> jax.Array:
    """log2(2^a + 2^b), where either may be minus infinity."""
    top = jnp.maximum(a, b)
    finite = jnp.where(top > -jnp.inf, top, 0)
    return finite + jnp.log2(jnp.exp2(a - finite) + jnp.exp2(b - finite))


def dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Product over the last axis of a and `axis` of b; float32 as such (Triton prefers TF32)."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    axes = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, precision, preferred_element_type=jnp.float32)
