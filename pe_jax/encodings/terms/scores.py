"""Kinds with a formula for every pair, from positions or from two tokens' states.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp

from pe_jax.encodings.terms.distances import DistanceScores
from pe_jax.encodings.terms.term import (
    OfSomeHeads,
    ProductTerm,
    ScoreTerm,
    Side,
    State,
    Term,
    halves,
    kind,
    pair_distance,
    static,
)
from pe_jax.numerics import fading, turns
from pe_jax.numerics.arrays import repeat_heads, varying_like
from pe_jax.numerics.products import einsum
from pe_jax.numerics.running_sums import between, exactly, pieces


@kind
class ChannelDecay(ProductTerm):
    """Replaces q·k: Σ_n q_n k_n exp(-|P_n - P'_n|), of q and k after rotations.

    P and P' are the sums of E channels at the query and at the key. The state has them as
    `running_sums.totals` does: the rounded sums, then what they rounded off, 2E numbers; no step of
    a sum is positive. Not with several views.

    Attributes:
      in_order: as many queries as keys are the same tokens in order, or all later than the keys.
    """

    state: State  # pyright: ignore[reportIncompatibleVariableOverride]
    in_order: bool = static(default=False)

    @jax.jit  # its branches are compiled once
    def products(self, q: Side, k: Side, states: Any) -> jax.Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The decayed products of all pairs: float32 [B, H, T, S], in O(T·S) memory."""
        operands = q.x, repeat_heads(k.x, q.x.shape[1]), *states
        operands = [x.astype(jnp.float32) for x in operands]
        if q.tokens.index.shape[1] == 1:
            return _faded(*operands)
        rows, columns = q.tokens.index, k.tokens.index
        first = rows[:, :1]
        behind = jnp.all(rows >= first) & jnp.all(columns <= first)
        length, near = rows.shape[1], _faded
        if not jax.export.is_symbolic_dim(length) and columns.shape[1] == length > fading.FEW:
            near = fading.past
            if not self.in_order:
                same = jnp.all(rows == columns) & jnp.all(rows[:, 1:] > rows[:, :-1])
                near = functools.partial(jax.lax.cond, same, fading.in_order, _faded)
        return jax.lax.cond(behind, fading.before, near, *operands)

    def in_tiles(self, spec):
        return dataclasses.replace(self, in_order=spec.causal and spec.aligned)


def _faded(q: jax.Array, k: jax.Array, q_state: jax.Array, k_state: jax.Array) -> jax.Array:
    """`ChannelDecay.products`, channel by channel."""
    rows = [q, *jnp.split(q_state, 2, axis=-1)]
    columns = [k, *jnp.split(k_state, 2, axis=-1)]
    if q.shape[2] == 1:
        return fade(*rows, *columns).sum(-1)[:, :, None]

    start = jnp.zeros((*q.shape[:3], k.shape[2]), jnp.float32)
    per_row, per_column = (jnp.ones(n, jnp.float32) for n in start.shape[2:])

    @jax.checkpoint
    def add(total, channel):
        # Products with ones, not broadcasts: so the gradients of the six are products too, where
        # each would have a loop that computes the exponential again.
        rows = (einsum("bhr,c->bhrc", x, per_column) for x in channel[:3])
        columns = (einsum("bhc,r->bhrc", x, per_row) for x in channel[3:])
        return total + fade(*rows, *columns), None

    channels = [jnp.moveaxis(x, -1, 0) for x in (*rows, *columns)]
    return jax.lax.scan(add, varying_like(start, channels), channels)[0]


def fade(q, q_sum, q_rest, k, k_sum, k_rest) -> jax.Array:
    """A product of channels times exp(-|P - P'|), of shapes that broadcast."""
    return q * k * jnp.exp(-between([q_sum, q_rest], [k_sum, k_rest]))


@kind
class PhaseProduct(ProductTerm):
    """Replaces q·k: a·cos(2π |distance|^power p/sqrt(P)), for products a and p of two parts.

    a is q·k of the first `amplitude` channels, p that of the P others, after rotations.
    """

    amplitude: int = static()
    power: float = static()

    def products(self, q, k, states):
        products = functools.partial(_of_key_heads, q.x.shape[:3])
        a = products(q.x[..., : self.amplitude], k.x[..., : self.amplitude])
        phase = products(q.x[..., self.amplitude :], k.x[..., self.amplitude :])
        distance = jnp.abs(pair_distance(q, k))[:, None].astype(jnp.float32)
        slope = self.size(q.x.shape[-1]) / math.tau * distance**self.power
        return a * turns.cosine(slope * phase)

    def size(self, width: int) -> float:
        """What the angle is multiplied by, 2π/sqrt(P), for heads of this width."""
        return 2 * math.pi * (width - self.amplitude) ** -0.5


def _of_key_heads(shape: tuple[int, ...], q: jax.Array, k: jax.Array) -> jax.Array:
    """q·k of queries [B, H, T, E] and keys [B, K, S, E], each read once: float32 [B, H, T, S]."""
    rows = q.reshape(shape[0], k.shape[1], -1, q.shape[-1])
    products = einsum("bkre,bkse->bkrs", rows, k, preferred_element_type=jnp.float32)
    return products.reshape(*shape, k.shape[2])


@kind
class DistanceFormula(DistanceScores):
    """A bias that is plain arithmetic on the distance: `fn([C arrays], distance)`.

    Engines compute it where they need it, at any positions, and hold no table. The arrays are the
    columns of `numbers` [H, C], of any shapes that broadcast with distances.

    Attributes:
      fn: the function.
      numbers: C numbers for each head, float32 [H, C].
      decays: whether the bias never rises with |distance|. Engines then skip tiles in which it
        makes every key negligible.
      linear: whether it is the distance times constants that are not learned, at distances ≥ 0.
    """

    by_head = True

    fn: Callable = static()
    numbers: jax.Array
    decays: bool = static(default=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    linear: bool = static(default=False)

    @property
    def is_key_bias(self):
        return self.linear

    def at(self, distance):
        columns = jnp.moveaxis(self.numbers, 1, 0)
        columns = columns.reshape(*columns.shape, *(1,) * distance.ndim)
        return self.fn(list(columns), distance[None])

    def bound(self, distance, states):
        return (self.at(distance) - self.at(jnp.zeros_like(distance)))[None]

    def key_bias(self, side, state):
        """Minus the slope times the position: 8 bits of the slope at a time, to be exact."""
        slopes = pieces(-self.at(jnp.ones(1, jnp.int32)), 3)
        positions = side.tokens.positions[:, None].astype(jnp.float32)
        first, second, third = (slope[None] * positions for slope in slopes)
        high, rest = exactly(first, second)
        return exactly(high, rest + third)

    def for_heads(self, share):
        return dataclasses.replace(self, numbers=share(self.numbers, 0))


@kind
class PairBias(ScoreTerm):
    """A bias of two positions: `fn(arrays, q_pos, k_pos)`, float32 [*B, H, T, S].

    Use it last: every tile evaluates it pair by pair.

    Attributes:
      fn: the function.
      arrays: what it reads.
      pieces: the same function as `Pieces`, `pieces(arrays, q_pos)`, which kernels evaluate in
        place; None: it has none.
    """

    positions_alone = True
    all_heads = True

    fn: Callable = static()
    arrays: Any = None
    pieces: Callable | None = static(default=None)

    def scores(self, q, k, states):
        return self.fn(self.arrays, q.tokens.positions, k.tokens.positions)

    def for_heads(self, share):
        pieces = self.pieces and OfSomeHeads(self.pieces, share, 0)
        return dataclasses.replace(self, fn=OfSomeHeads(self.fn, share, -3), pieces=pieces)


class Pieces(NamedTuple):
    """A function of a normalised distance that is linear between K knots, the same for all heads.

        x_ij    = ln(1 + rate·|distance|)·scale_i
        bias_ij = slope·x + constant + Σ_k bends_k·max(x - knots_k, 0)

    Attributes:
      rate: not negative, float32 [1, 1].
      scale: of each query, float32 [1, B or 1, T].
      knots: in increasing order, float32 [1, K]; infinity for none.
      bends: by how much the slope changes at each knot, float32 [H, K].
      line: slope and constant on the left of all knots, float32 [H, 2].
    """

    rate: jax.Array
    scale: jax.Array
    knots: jax.Array
    bends: jax.Array
    line: jax.Array


@kind
class TokenBias(ScoreTerm):
    """A bias that is arithmetic on two tokens' states: `fn([C of the query], [C of the key])`.

    The entries have shapes that broadcast. Every visible pair must be finite.

    Attributes:
      fn: the function.
      state: of each token.
      decays: whether the bias is 0 for a token and itself and never rises as more tokens of the row
        come between. Engines then skip tiles in which it makes every key negligible.
      of_token: for a bias that decays and is, for keys that are not later, u of the key minus u of
        the query: `of_token([C of the token])` gives u as two numbers that add up to it.
    """

    by_head = True

    fn: Callable = static()
    state: State  # pyright: ignore[reportIncompatibleVariableOverride]
    decays: bool = static(default=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    of_token: Callable | None = static(default=None)

    @property
    def is_key_bias(self):
        return self.of_token is not None and self.decays

    def scores(self, q, k, states):
        numbers, (rows, columns) = range(self.state.width), states
        return self.fn(
            [rows[..., :, None, n] for n in numbers], [columns[..., None, :, n] for n in numbers]
        )

    def bound(self, distance, states):
        return self.scores(None, None, states)  # pyright: ignore[reportArgumentType]

    def key_bias(self, side, state):
        numbers = [state[..., n] for n in range(self.state.width)]
        return exactly(*self.of_token(numbers))  # pyright: ignore[reportOptionalCall]


@kind
class TokenProduct(ScoreTerm):
    """A bias that is a dot product: half the query's state · the other half of the key's."""

    by_head = True

    state: State  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def key_width(self):
        return self.state.width // 2

    def prepare(self, q, k, states, scale):
        return halves(self.state, states)

    def scores(self, q, k, states):
        rows, columns = halves(self.state, states)
        return einsum("...tc,...sc->...ts", rows, columns)


@kind
class PairRescore(Term):
    """Added to the scores of a pair, computed from those of all its heads.

    `fn(arrays, scores, bias)` gives float32 [B, H, T, S] from the scaled products without biases
    and the sum of all biases (which is added too) or None, both [B, H, T, S]; pair by pair, as a
    tile has some pairs only.
    """

    all_heads = True

    fn: Callable = static()
    arrays: Any = None

    def rescore(self, scores: jax.Array, bias: Any) -> jax.Array:
        """What it adds to scores [B, H, T, S], from them and the sum of all biases or None."""
        bias = None if bias is None else jnp.broadcast_to(bias, scores.shape)
        return self.fn(self.arrays, scores, bias)
