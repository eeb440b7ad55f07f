"""FIRE's network as lines and knots, which the kernels read instead of a bias of pairs.

For keys up to the query FIRE (Li et al., arXiv 2310.04418) is piecewise linear in one number x of
each pair, which lies in [0, 1] and is `growth([|c|], distance)` times a rate of the query. Where
distances of tokens are known, a tile needs one line and the few knots within it (`pieces`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.fire import EPSILON, FIRE


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
    it has |b1| < |w1|, so that its knot is as exact as its weights. One that is on before its knot
    is its line, plus what takes this away again.
    """
    if isinstance(fn, kinds.OfSomeHeads):
        return jax.tree.map(lambda x: fn.share(x, 0), pieces(fn.fn, arrays, q_pos))
    w1, b1, w2, numbers = arrays["w1"], arrays["b1"], arrays["w2"], jnp.abs(arrays["c"])[None]
    threshold = jnp.abs(arrays["multiplier"] * fn.owner.length)
    longest = jnp.maximum(q_pos.astype(jnp.float32), threshold)
    bends = (w1 * b1 < 0) & (jnp.abs(b1) < jnp.abs(w1))
    on = jnp.where(bends, w1 < 0, w1 / 2 + b1 > 0)[:, None]  # before its knot, or everywhere
    knots = jnp.where(bends, -b1 / jnp.where(bends, w1, 1), 1e30)  # or none
    return Pieces(
        numbers=numbers[None],
        rates=1 / (growth(numbers, longest) + EPSILON)[None],
        start=arrays["b2"] + jnp.where(on, b1[:, None] * w2, 0).sum(0),
        slope=jnp.where(on, w1[:, None] * w2, 0).sum(0),
        knots=knots[None],
        bends=(jnp.where(bends, jnp.abs(w1), 0)[:, None] * w2).T,
    )
