"""Linear pieces of a normalised distance in the GPU kernels: FIRE.

    x_ij    = ln(1 + rate·|i - j|)·scale_i
    bias_ij = slope·x + constant + Σ_k bends_k·max(x - knots_k, 0)

A knot below the least x of a tile has bent all of it, one above the greatest none: the bias of a
tile is one line, plus a term for each knot in between, of which there are few. Gradients are sums
over the pairs of a tile: S of the biases' gradient and S·x, which a row of `sums` keeps by the
number of knots below the tile, and the same of the pairs beyond each knot in between. Together they
are the gradients of the knots, the bends and the line (`gradients`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

SUMS = 4  # by knots below: S, S·x; beyond a knot: S, S·(x - knot)


class Bent(NamedTuple):
    """A tile's function; pairs are [owned, visited]."""

    logs: Any  # ln(1 + rate·|distance|)
    x: Any
    first: Any  # how many knots are below the tile
    last: Any  # and how many below its end
    slope: Any  # of all pairs, and what the knots in between add
    bias: Any


def evaluate(tile: Any) -> Bent:
    """The function of a tile."""
    refs, (rows, columns) = tile.x, (tile.slices[side] for side in "qk")
    rate, scales = refs.rate[0], refs.scale[rows]
    behind = rows.start - (columns.start + columns.size - 1)  # the distances of two corners
    ahead = rows.start + rows.size - 1 - columns.start
    least = jnp.maximum(jnp.maximum(behind, -ahead), 0)
    ends = [
        jnp.log1p(rate * distance.astype(jnp.float32)) * scale
        for distance, scale in (
            (least, scales.min()),
            (jnp.maximum(jnp.abs(behind), jnp.abs(ahead)), scales.max()),
        )
    ]
    knots, bends = refs.knots[:], refs.bends[:]
    below = knots < ends[0]
    first, last = (inside.astype(jnp.int32).sum() for inside in (below, knots < ends[1]))
    slope = refs.line[0] + jnp.where(below, bends, 0).sum()
    constant = refs.line[1] - jnp.where(below, bends * jnp.where(below, knots, 0), 0).sum()
    logs = jnp.log1p(rate * jnp.abs(tile.distance()).astype(jnp.float32))
    x = logs * tile.along("q", scales)

    def bend(n, carry):
        slope, bias = carry
        knot, change = refs.knots[n], refs.bends[n]
        return jnp.where(x > knot, slope + change, slope), bias + change * jnp.maximum(x - knot, 0)

    start = jnp.full(x.shape, slope, jnp.float32), slope * x + constant
    slope, bias = jax.lax.fori_loop(first, last, bend, start)
    return Bent(logs, x, first, last, slope, bias)


class Totals(NamedTuple):
    """Gradients of a block of queries so far."""

    sums: Any  # one array [K] for each of `SUMS`
    of_x: Any  # Σ_j of the gradient of x times x, [queries, 1]
    of_rate: Any  # Σ_j of the gradient of x times the derivative of the logarithm by the rate

    @classmethod
    def zeros(cls, queries: int, knots: int) -> "Totals":
        """Nothing so far."""
        column, row = (jnp.zeros(n, jnp.float32) for n in ((queries, 1), (knots,)))
        return cls([row] * SUMS, column, column)


def add(tile: Any, of: Bent, d_bias: jax.Array, so_far: Totals) -> Totals:
    """The totals with those of a tile that queries own."""
    refs, (below, below_x, beyond, beyond_x) = tile.x, so_far.sums
    entries = jnp.arange(below.size, dtype=jnp.int32)

    def at(n, total, amount):
        return total + jnp.where(entries == n, amount, 0)

    def beyond_knot(n, carry):
        knot = refs.knots[n]
        far = jnp.where(of.x > knot, d_bias, 0)
        amounts = far.sum(), (far * (of.x - knot)).sum()
        return [at(n, total, amount) for total, amount in zip(carry, amounts, strict=True)]

    beyond, beyond_x = jax.lax.fori_loop(of.first, of.last, beyond_knot, [beyond, beyond_x])
    below, below_x = (
        at(of.first, total, amount)
        for total, amount in ((below, d_bias.sum()), (below_x, (d_bias * of.x).sum()))
    )
    d_x = d_bias * of.slope
    d_rate = d_x * jnp.abs(tile.distance()).astype(jnp.float32) * jnp.exp(-of.logs)
    return Totals(
        [below, below_x, beyond, beyond_x],
        so_far.of_x + (d_x * of.x).sum(1, keepdims=True),
        so_far.of_rate + d_rate.sum(1, keepdims=True),
    )


def gradients(x: Any, sums: jax.Array, of_rows: jax.Array) -> dict[str, jax.Array]:
    """The gradients by the names of `Arrays`, [B, H, …].

    Args:
      x: the kernels' `Arrays`.
      sums: those of all blocks of queries, [B, H, blocks, SUMS, K].
      of_rows: `of_x` and `of_rate` of each query, [B, H, 2, T].
    """
    below, below_x, beyond, beyond_x = jnp.moveaxis(sums.sum(2), 2, 0)  # [B, H, K] each
    # Of tiles that lie beyond knot k: those with more than k knots below them.
    past, past_x = (y[..., ::-1].cumsum(-1)[..., ::-1] - y for y in (below, below_x))
    knots = jnp.where(jnp.isfinite(x.knots), x.knots, 0)
    of_x, of_rate = of_rows[:, :, 0], of_rows[:, :, 1]
    return {
        "knots": -x.bends * (beyond + past),
        "bends": beyond_x + past_x - knots * past,
        "line": jnp.stack([below_x.sum(-1), below.sum(-1)], axis=-1),
        "scale": of_x / x.scale,
        "rate": (of_rate * x.scale).sum(-1, keepdims=True),
    }
