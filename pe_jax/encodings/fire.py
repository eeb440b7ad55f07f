"""FIRE: Li et al., "Functional Interpolation for Relative Positions", arXiv 2310.04418.

    b(i, j) = f(ψ(|i - j|) / (ψ(max(|L|, i)) + ε)),    ψ(x) = ln(|c|·x + 1),    ε = 1e-6

f is a perceptron from one number to the H heads, through `width` ReLU units; c and the threshold L
are learned. As i ≥ |i - j| under a causal mask, f sees [0, 1] only, at any length. L is a constant,
`length`, times a learned multiplier that begins at 1 (the code in the paper's appendix). Each layer
has its own parameters; with `shared`, all layers share one set (the paper's FIRE-S).

The absolute values make both logarithms finite whatever is learned; a key to the right (no causal
mask) counts by its |distance|, as in the authors' code. Weights begin uniform in ±1/sqrt(fan-in).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from pe_jax.config_fields import checked, flag_field, int_field
from pe_jax.encodings.base import Claims, Shareable
from pe_jax.encodings.terms import PairBias, Pieces
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.numerics.products import einsum
from pe_jax.validation import is_real

EPSILON = 1e-6
TINY = 2.0**-23
FAR = 1e6  # a unit whose kink is beyond it has none


def interpolate(q_pos, k_pos, c, threshold) -> jax.Array:
    """ψ(|i - j|)/(ψ(max(|L|, i)) + ε): float32 [*B, T, S], in [0, 1] where 0 ≤ j ≤ i.

    Args:
      q_pos: positions i of the queries, integer or float32 [*B, T].
      k_pos: positions j of the keys [*B, S].
      c: scale of the logarithm, a scalar; its sign has no effect.
      threshold: L, a scalar; its sign has no effect. Rows before it are normalised as row L.

    Raises:
      TypeError: half-precision positions.
    """
    q_pos, k_pos = (as_positions(x, real=True) for x in (q_pos, k_pos))
    distance = jnp.abs(q_pos[..., :, None] - k_pos[..., None, :]).astype(jnp.float32)
    return jnp.log1p(jnp.abs(c) * distance) / normalizer(q_pos, c, threshold)[..., None]


def normalizer(q_pos: jax.Array, c: jax.Array, threshold: jax.Array) -> jax.Array:
    """ψ(max(|L|, i)) + ε: float32 [*B, T], of positions [*B, T]."""
    longest = jnp.maximum(q_pos.astype(jnp.float32), jnp.abs(threshold))
    return jnp.log1p(jnp.abs(c) * longest) + EPSILON


@dataclasses.dataclass(frozen=True)
class FIRE(Shareable):
    """A learned function of the distance, normalised by the query's position."""

    width: int = int_field(32, 1)
    c: float = checked(0.1, "pass a positive number", lambda v: is_real(v) and v > 0)
    length: float = checked(512.0, "pass a positive number", lambda v: is_real(v) and v > 0)
    shared: bool = flag_field(False)

    claims = Claims(real_positions=True)

    def _init(self, key, dims):
        """c and the multiplier of L; w1, b1 [width]; w2 [width, H], b2 [H]."""

        def uniform(key, fan_in, *shape):
            return jax.random.uniform(key, shape, jnp.float32, -1, 1) * fan_in**-0.5

        keys, width = jax.random.split(key, 4), self.width
        return {
            "c": jnp.float32(self.c),
            "multiplier": jnp.float32(1),
            "w1": uniform(keys[0], 1, width),
            "b1": uniform(keys[1], 1, width),
            "w2": uniform(keys[2], width, width, dims.heads),
            "b2": uniform(keys[3], width, dims.heads),
        }

    def terms(self, params, dims):
        return (PairBias(self.bias, self.arrays(params), self.pieces),)

    def bias(self, arrays, q_pos, k_pos):
        """f(ψ(|i - j|)/ψ(max(L, i))): float32 [*B, H, T, S]."""
        x = interpolate(q_pos, k_pos, arrays["c"], arrays["multiplier"] * self.length)
        out = network(x.reshape(-1), *(arrays[name] for name in ("w1", "b1", "w2", "b2")))
        return jnp.moveaxis(out.reshape(-1, *x.shape), 0, -3)

    def pieces(self, arrays, q_pos):
        """The same function as linear pieces, for kernels; q_pos [*B, T]."""
        rate = jnp.abs(arrays["c"])
        scale = 1 / normalizer(q_pos, rate, arrays["multiplier"] * self.length)
        bent = pieces(*(arrays[name] for name in ("w1", "b1", "w2", "b2")))
        return Pieces(rate[None, None], scale[None], *bent)


def pieces(w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array) -> tuple:
    """Knots [1, width], bends [H, width] and line [H, 2] of `network`, of which x is in [0, 1].

    A unit is bent where it is 0; on the left of it, it is on if its weight is negative. It is off
    at its kink, so that there the knot of such a unit is below.
    """
    w1, b1, w2, b2 = (y.astype(jnp.float32) for y in (w1, b1, w2, b2))
    flat = jnp.abs(w1) * FAR <= jnp.abs(b1)  # it is on for all x, or for none
    on = jnp.where(flat, b1 > 0, w1 < 0).astype(jnp.float32)
    knots = jnp.where(flat, jnp.inf, -b1 / jnp.where(flat, 1, w1))
    knots = jnp.where(w1 < 0, knots - TINY * jnp.maximum(jnp.abs(knots), TINY), knots)
    bends = jnp.where(flat, 0, jnp.abs(w1))[:, None] * w2
    line = jnp.stack([(on * w1) @ w2, (on * b1) @ w2 + b2], axis=1)
    order = jnp.argsort(jax.lax.stop_gradient(knots))
    return knots[order][None], bends[order].T, line


def network(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array) -> jax.Array:
    """W₂ᵀ·ReLU(w1·x + b1) + b2, exactly, by its linear pieces: float32 [H, n] for x [n].

    A unit that is on at the least and at the greatest x is on for all, and one that is off at both
    for none: the former together are a·x + b. Only units with a kink in between are evaluated. A
    tile of attention has few of these; how many are computed is chosen when it runs.
    """
    w1, b1, w2, b2 = (y.astype(jnp.float32) for y in (w1, b1, w2, b2))
    units, ends = len(w1), jax.lax.stop_gradient(jnp.stack([x.min(), x.max()]))
    off_at = jax.lax.stop_gradient(jnp.outer(w1, ends) + b1[:, None]) <= 0
    on_at = ~off_at  # NaN is on, and so is seen
    on, bent = on_at.all(1), on_at[:, 0] != on_at[:, 1]
    order = jnp.argsort(~bent, stable=True)
    counts = [n for n in (0, 4, 12) if n < units] + [units]

    def pieces(count: int, x, w1, b1, w2, b2):
        """With the first units of the order evaluated, and the others on or off for all x."""
        first = order[:count]
        linear = jnp.where(on.at[first].set(False)[None], jnp.stack([w1, b1]), 0)
        slope, constant = einsum("nm,mh->nh", linear, w2)
        out = jnp.outer(slope, x) + (constant + b2)[:, None]
        if count:
            hidden = jax.nn.relu(jnp.outer(w1[first], x) + b1[first, None])
            out = out + einsum("mh,mn->hn", w2[first], hidden)
        return out

    branches = [jax.checkpoint(functools.partial(pieces, count)) for count in counts]
    which = jnp.searchsorted(jnp.array(counts), bent.sum())
    return jax.lax.switch(which, branches, x, w1, b1, w2, b2)
