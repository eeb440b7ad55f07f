"""FIRE's network as lines and knots, which the kernels read instead of a bias of pairs.

For keys up to the query FIRE (Li et al., arXiv 2310.04418) is piecewise linear in one number x of
each pair, which lies in [0, 1] and is `growth([|c|], distance)` times a rate of the query. Where
distances of tokens are known, a tile needs one line and the few knots within it. By the compiler's
estimate a training step takes a seventh of the time that it takes with a bias which XLA evaluates
for each pair (docs/performance.md).

What grows with the distance is the same along diagonals, so that of 128 × 128 pairs each, a tile of
512 × 512 has seven parts to evaluate. Knots below the numbers of a tile are in its line, those
above them in none; easy tiles have none within.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.fire import EPSILON, FIRE
from pe_jax.engines.kernels.tpu import shear
from pe_jax.engines.kernels.tpu.plan import Arrays, Plan, Tile
from pe_jax.engines.kernels.tpu.shear import as_column, lane_sums, repeat_columns

START, SLOPE, KNOT, BEND = range(4)  # rows of `Arrays.pieces`


class Pieces(NamedTuple):
    """start + slope·x + Σ_n bends[n]·relu(x - knots[n]), of x = growth(numbers, distance)·rate.

    Attributes:
      numbers: what the growth takes, float32 [1, C].
      rates: of queries, positive, [1, *B, T].
      start: [H or 1].
      slope: of the line before the first knot, [H or 1].
      knots: the same for all heads, in any order, [1, N].
      bends: what the slope rises by at each knot, [H or 1, N].
    """

    numbers: jax.Array
    rates: jax.Array
    start: jax.Array
    slope: jax.Array
    knots: jax.Array
    bends: jax.Array


def network(fn: Any) -> FIRE | None:
    """The FIRE whose bias the function of a `PairBias` is; None for any other function."""
    while isinstance(fn, kinds.OfSomeHeads):
        fn = fn.fn
    is_fire = isinstance(fn, kinds.Method) and fn.function is FIRE.bias
    return fn.owner if is_fire else None


def growth(numbers, distance) -> jax.Array:
    """ln(1 + numbers[0]·|distance|): float32."""
    return _log1p(numbers[0] * jnp.abs(distance).astype(jnp.float32))


@jax.custom_jvp
def _log1p(x):
    return jnp.log1p(x)


@_log1p.defjvp
def _log1p_jvp(primals, tangents):
    """1/(1 + x) as exp(-log(1 + x)): in kernels a division takes more instructions."""
    y = _log1p(*primals)
    return y, jnp.exp(-y) * tangents[0]


def pieces(fn: Any, arrays: dict[str, jax.Array], q_pos: jax.Array) -> Pieces:
    """The lines and knots of a `PairBias` that has a `network`, for its heads.

    Each hidden unit bends the line at -b1/w1, or is on or off in all of [0, 1]. A unit that bends
    it has |b1| < |w1|, so that its knot is as exact as its weights. A unit that is on before its
    knot adds its line everywhere, and a bend that cancels the line after the knot.
    """
    if isinstance(fn, kinds.OfSomeHeads):
        return jax.tree.map(lambda x: fn.share(x, 0), pieces(fn.fn, arrays, q_pos))
    w1, b1, w2, numbers = arrays["w1"], arrays["b1"], arrays["w2"], jnp.abs(arrays["c"])[None]
    threshold = jnp.abs(arrays["multiplier"] * fn.owner.length)
    longest = jnp.maximum(q_pos.astype(jnp.float32), threshold)
    bends = (w1 * b1 < 0) & (jnp.abs(b1) < jnp.abs(w1))
    on = jnp.where(bends, w1 < 0, w1 / 2 + b1 > 0)[:, None]  # before its knot, or everywhere
    knots = jnp.where(bends, -b1 / jnp.where(bends, w1, 1), 1e30)  # 1e30: none
    return Pieces(
        numbers=numbers[None],
        rates=1 / (growth(numbers, longest) + EPSILON)[None],
        start=arrays["b2"] + jnp.where(on, b1[:, None] * w2, 0).sum(0),
        slope=jnp.where(on, w1[:, None] * w2, 0).sum(0),
        knots=knots[None],
        bends=(jnp.where(bends, jnp.abs(w1), 0)[:, None] * w2).T,
    )


class Bias(NamedTuple):
    """The bias of a tile.

    Attributes:
      pairs: the biases, [block, block], without `start`.
      start: a number to add to all pairs.
      grown: the growth at each pair's distance, [block, block].
      x: the number of each pair, [block, block]; None where a tile is known to have no knots.
      pull: from the gradient of `grown` to those of the numbers that it is computed from.
    """

    pairs: jax.Array
    start: jax.Array
    grown: jax.Array
    x: Any
    pull: Callable


def bias(plan: Plan, x: Arrays, tile: Tile) -> Bias:
    """The bias of a tile.

    bend·relu(number - knot) is bend·max(number, knot) less a constant, and with the constants of
    all knots that a tile has, its line would start where the line after the last of them does.
    """

    def grow(numbers):
        at = functools.partial(growth, numbers)
        return shear.by_diagonal(at, tile.gap, plan.block, tile.transposed)

    grown, pull = jax.vjp(grow, [x.growth[c] for c in range(x.growth.shape[0])])
    rate, (low, high) = _rate(plan, x, tile), tile.knots
    slope, start = x.pieces[SLOPE, low], x.pieces[START, high]
    if tile.bends == 0:
        return Bias(_spread(plan, tile, slope * rate) * grown, start, grown, None, pull)
    number = _spread(plan, tile, rate) * grown

    def bent(n, pairs):
        return pairs + x.pieces[BEND, n] * jnp.maximum(number, x.pieces[KNOT, n])

    def loop(pairs):
        def step(n, _):
            pairs[...] = bent(n, pairs[...])

        pairs[...] = slope * number
        jax.lax.fori_loop(low, high, step, None)
        return pairs[...]

    if tile.bends is None:
        pairs = pl.run_scoped(loop, pltpu.VMEM(number.shape, number.dtype))
    else:
        knots = (low + n for n in range(tile.bends))
        pairs = functools.reduce(lambda pairs, n: bent(n, pairs), knots, slope * number)
    return Bias(pairs, start, grown, number, pull)


def add_gradients(
    plan: Plan, x: Arrays, tile: Tile, grads: Arrays, of_rates: Any, bias: Bias, d_s: jax.Array
) -> None:
    """Adds to the gradients of lines, of knots, of numbers, and of rates.

    A tile is processed a few rows at a time, so that they stay in registers between operations:
    `parts` are the gradients of `bias.grown`, [rows, block] each.

    Args:
      plan: the kernel's.
      x: what the kernel reads.
      tile: one that is not transposed.
      grads: those of lines and knots, and of numbers.
      of_rates: to be summed over lanes and divided by the rates, [block, lanes].
      bias: the tile's.
      d_s: the gradient of its scores, [block, block].
    """
    (low, high), size = tile.knots, min(shear.PART, plan.block)
    all_rows = [slice(first, first + size) for first in range(0, plan.block, size)]

    def weighted(rows, d, weight):  # a part where the bias is weight·number; sums of d, d·number
        rate = _rate(plan, x, tile)[rows]
        sums = lane_sums(d * bias.grown[rows]) * rate
        of_rates[rows] += weight * sums
        part = _spread(plan, tile, weight * rate) * d
        return part, lane_sums(d).sum(0), sums.sum(0)

    def line() -> Iterator[jax.Array]:  # the line of all pairs
        total, by_number = jnp.float32(0), jnp.float32(0)
        for rows in all_rows:
            part, *sums = weighted(rows, d_s[rows], x.pieces[SLOPE, low])
            total, by_number = total + sums[0], by_number + sums[1]
            yield part
        _add(grads, low, {START: total, SLOPE: by_number})

    def bent(n, parts: Iterable[jax.Array]) -> Iterator[jax.Array]:  # with what a knot adds
        knot, bend = x.pieces[KNOT, n], x.pieces[BEND, n]
        total, by_number = jnp.float32(0), jnp.float32(0)
        for rows, part in zip(all_rows, parts, strict=True):
            on = jnp.where(bias.x[rows] > knot, d_s[rows], 0)
            more, *sums = weighted(rows, on, bend)
            total, by_number = total + sums[0], by_number + sums[1]
            yield part + more
        _add(grads, n, {KNOT: -bend * total, BEND: by_number - knot * total})

    def loop(stored):  # in a tile that has many knots
        def store(parts):
            for rows, part in zip(all_rows, parts, strict=True):
                stored[rows] = part

        def step(n, _):
            store(bent(n, (stored[rows] for rows in all_rows)))

        store(line())
        jax.lax.fori_loop(low, high, step, None)
        return stored[...]

    if tile.bends is None:
        d_grown = pl.run_scoped(loop, pltpu.VMEM(d_s.shape, jnp.float32))
    else:
        parts = line()
        for n in range(tile.bends):
            parts = bent(low + n, parts)
        d_grown = jnp.concatenate(list(parts))
    for c, part in enumerate(bias.pull(d_grown)[0]):
        grads.growth[c] += part


def columns(plan: Plan, x: Arrays) -> jax.Array:
    """The rates of queries as equal columns: [block, lanes]."""
    return jnp.broadcast_to(as_column(x.q_rates[...]), (plan.block, plan.lanes))


def _rate(plan: Plan, x: Arrays, tile: Tile) -> jax.Array:
    """The rates of queries: equal columns [block, lanes], or [1, block] if transposed."""
    if tile.transposed:
        return x.q_rates[...]
    return columns(plan, x) if x.rate_columns is None else x.rate_columns[...]


def _spread(plan: Plan, tile: Tile, x: jax.Array) -> jax.Array:
    """Numbers of queries, as `_rate`, along the columns of a tile."""
    return x if tile.transposed else repeat_columns(x, plan.block)


def _add(grads: Arrays, n: Any, parts: dict[int, jax.Array]) -> None:
    """Adds the sums of `parts`, by row of the pieces, to the gradients of piece n."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, grads.pieces.shape, axis) for axis in (0, 1))
    for index, x in parts.items():
        grads.pieces[...] += jnp.where((row == index) & (column == n), x.sum(), 0)
