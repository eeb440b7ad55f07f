"""Where a position can enter attention: the kinds of terms, each defined by its formula for a pair.

    x      + Input                                                    (once, before the first layer)
    q', k' = Rotation(q + QueryBias), Rotation(k);    v' = ValueRotation(v)
    score  = scale·(q'·k' + (q + u)·RelativeKeys + k·RelativeQueries)
             + DistanceFormula + DistanceBias + PairBias                      (from positions)
             + TokenBias + TokenProduct + state·RelativeState         (from each token's state)
             + RowSum                                    (from sums of gates along the row)
             + RowRescore                                             (from whole rows of scores)
    score  = LogitCap(score), where every Mask shows the pair
    out    = Dropout(weights)·v' + Σ weights·RelativeValues, times σ(lse - Sink) or Unnormalized
    out    = ValueRotation(out), by the query's position

`encoding.terms(params, dims)` is a tuple of these: what it adds, and where. NoPE is the empty
tuple, a sum of encodings is concatenation, and the order does not matter except among rotations. A
term is a pytree. Its leaves are float arrays, gathered from the parameters and not computed; all
else is static and compares by value: functions are module functions or methods of frozen
dataclasses, so that jit does not trace them again. Costly maps belong in the function: engines
evaluate it once for the distances that occur (`tabled`). Scores, biases and states are float32.
`scale` is 1/sqrt(E) unless a `Scale` says otherwise; engines apply it to q·k and the scaled kinds.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

from pe_jax.numerics.arrays import align, varying_like
from pe_jax.numerics.running_sums import difference
from pe_jax.validation import is_real, require, shown


def static(**options: Any) -> Any:
    """A field that is not an array: part of a term's structure."""
    return dataclasses.field(metadata={"static": True}, **options)


T = TypeVar("T")


class Tokens(NamedTuple):
    """Positions and mask of queries or keys; nothing here has a gradient.

    Attributes:
      positions: [B or 1, T], with a trailing axis A if a position has several.
      index: the place in the row, for the mask: [B or 1, T].
      segments: ids of documents [B or 1, T]; a token with a negative id sees nothing; or None.
      rank: the place within the segment, by which attention sinks are counted; None: `index`.
    """

    positions: jax.Array
    index: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    segments: jax.Array | None = None
    rank: jax.Array | None = None


class Side(NamedTuple):
    """Queries or keys, heads first.

    Attributes:
      x: the vectors after rotations: [B, H or K, T, E].
      raw: the same before rotations, or None if no term reads them.
      states: one per term, float32 [B or 1, H, T, C], or None for a term without a state.
      tokens: positions, and what the mask is made of.
    """

    x: jax.Array
    raw: Any
    states: tuple[Any, ...]
    tokens: Tokens


@dataclasses.dataclass(frozen=True)
class Method:
    """A bound method that compares by value; Python's own compare their owners by identity."""

    function: Callable
    owner: Any

    def __call__(self, *args):
        return self.function(self.owner, *args)


class Term:
    """One thing that an encoding adds to attention."""

    state: "State | None" = None  # of the kinds that read each token's state

    def for_heads(self, share: Callable[[jax.Array, int], jax.Array]) -> Any:
        """The term for some of the heads: `share(x, axis)` selects them in arrays of all heads."""
        return self

    def __post_init__(self):
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            function = getattr(self, field.name)
            if field.name == "fn" and not callable(function):
                name = f"{type(self).__name__}.fn"
                raise TypeError(f"{name}={shown(function, 80)}: pass a function")
            if not field.metadata.get("static") or not callable(function):
                continue
            if inspect.ismethod(function):
                method = Method(function.__func__, function.__self__)
                object.__setattr__(self, field.name, method)
            elif isinstance(function, functools.partial) or "<" in getattr(
                function, "__qualname__", ""
            ):
                raise TypeError(
                    f"{type(self).__name__}.{field.name}={function!r}: jit would trace it in every"
                    " call; pass a function of a module or a method of a frozen dataclass"
                )


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def kind(cls: type[T]) -> type[T]:
    """A frozen dataclass, as a pytree: static fields are structure, the others children."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


@kind
class State(Term):
    """Numbers of each token: `fn(arrays, x, before)`, float32 [*B, T, H, width].

    x is the layer's input [*B, T, D] and `before` the state [*B, H, width] of the token before the
    first, or None at the beginning of a row. A state depends on its token and on those before it in
    the row, also those of other documents: a term may use only differences within one document.

    Attributes:
      fn: the function; `fn(arrays, positions)` where the state is `of` positions, and
        `fn(arrays, x, positions)` where it is of both.
      arrays: its parameters.
      width: how many numbers.
      after: for running sums, `after(before, state)`: a state that began at zero, as it is after
        tokens whose last state is `before`. Devices then sum their own tokens side by side.
      of: "x", "positions", or "both" where the function is `fn(arrays, x, positions)`.
    """

    fn: Callable = static()
    arrays: Any
    width: int = static()
    after: Callable | None = static(default=None)
    of: str = static(default="x")

    def __call__(self, x, positions, before=None):
        given = {"x": (x, before), "positions": (positions,), "both": (x, positions)}
        return self.fn(self.arrays, *given[self.of])


# Before the scores.


@kind
class Input(Term):
    """Adds `fn(arrays, positions, width)` [*B, T, D] to the input of the first layer, D = width."""

    fn: Callable = static()
    arrays: Any = None


@kind
class QueryBias(Term):
    """Adds u [H, E] to every query, before any rotation."""

    u: jax.Array

    def for_heads(self, share):
        return QueryBias(share(self.u, 0))


@dataclasses.dataclass(frozen=True)
class Views:
    """Which of several views of the tokens scores a pair, by how many blocks it is apart.

    View n scores what is at least `edges[n - 1]` and below `edges[n]`, the first one the future
    too, the last one all the rest. With edges (512,) and blocks of one position there is a view
    below a distance of 512 and one from there on; with (1, 2) and blocks of 64 one for pairs in a
    block, one for neighbouring blocks and one for others.

    Attributes:
      edges: rising numbers of blocks.
      unit: positions in a block.
      shared_keys: keys have one view, which all views of queries meet.
    """

    edges: tuple[int, ...]
    unit: int = 1
    shared_keys: bool = False

    @property
    def count(self) -> int:
        """How many views queries have."""
        return len(self.edges) + 1

    def block(self, positions: jax.Array) -> jax.Array:
        """In which block positions [*n] are."""
        return positions if self.unit == 1 else jnp.floor_divide(positions, self.unit)

    def of(self, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
        """The view that scores each pair, int32: of positions whose shapes broadcast."""
        apart = self.block(q_positions) - self.block(k_positions)
        return sum(((apart >= edge).astype(jnp.int32) for edge in self.edges), jnp.int32(0))


@kind
class Rotation(Term):
    """Maps each query and each key by its position: `q(arrays, x, positions)`, `k(…)`.

    x is [*B, T, H or K, E]; the result keeps its dtype and may be wider. Keys are mapped once and
    kept so in a cache. In a sum rotations act in order.

    Attributes:
      q: the function of queries; None leaves them unchanged.
      k: the function of keys.
      arrays: their parameters.
      views: q gives several views of each token side by side, [*B, T, H, n·E], and so does k, or
        one for all; each pair is scored by one of them.
      state: a state of the tokens, [*B, T, H, C], passed to the functions as the last argument.
      heads: the axis of the arrays that counts heads; None: they are the same for all.
    """

    q: Callable | None = static()
    k: Callable | None = static()
    arrays: Any = None
    views: Views | None = static(default=None)
    state: State | None = None
    heads: int | None = static(default=None)

    def for_heads(self, share):
        axis = self.heads
        if axis is None:
            return self
        arrays = jax.tree.map(lambda x: share(x, axis), self.arrays)
        return dataclasses.replace(self, arrays=arrays)

    def rotate(self, side: str, x: jax.Array, positions: jax.Array, state: Any = None) -> jax.Array:
        """Queries (`side` "q") or keys ("k")."""
        function = self.q if side == "q" else self.k
        more = () if self.state is None else (state,)
        return x if function is None else function(self.arrays, x, positions, *more)


@kind
class ValueRotation(Term):
    """Maps each value by its position, and each output by the query's, which undoes the former.

    Of what a value adds to an output only the distance is left. Both functions are
    `(arrays, x, positions)` of x [*B, T, K or H, F] and give its shape and dtype; values are mapped
    once and kept so in a cache. In a sum outputs are mapped in the opposite order.

    Attributes:
      v: the function of values.
      out: the function of outputs.
      arrays: their parameters.
    """

    v: Callable = static()
    out: Callable = static()
    arrays: Any = None


# Terms of scores.


@kind
class ChannelDecay(Term):
    """Takes the place of q·k: Σ_n q_n k_n exp(-|P_n - P'_n|), of q and k after rotations.

    P and P' are the sums of E channels at the query and at the key. The state has them as
    `running_sums.totals` does: the rounded sums, then what they rounded off, 2E numbers. At most
    one, and none beside several views.
    """

    state: State  # pyright: ignore[reportIncompatibleVariableOverride]

    def products(self, q: Side, k: Side, states: Any) -> jax.Array:
        """Of all pairs: float32 [B, H, T, S], in O(T·S) memory.

        Raises:
          ValueError: q and k are not of E channels.
        """
        width = self.state.width // 2
        fix = f"{width} fade: leave out the rotation that makes others of them"
        require(q.x.shape[-1] == width, "channels", q.x.shape[-1], fix)
        rows = [q.x.astype(jnp.float32), *jnp.split(states[0], 2, axis=-1)]
        keys = repeat_heads(k.x, q.x.shape[1]).astype(jnp.float32)
        columns = [keys, *jnp.split(states[1], 2, axis=-1)]
        if q.x.shape[2] == 1:
            return fade(*rows, *columns).sum(-1)[:, :, None]

        @jax.checkpoint
        def add(total, channel):
            return total + fade(*channel), None

        channels = (
            *(jnp.moveaxis(x, -1, 0)[..., :, None] for x in rows),
            *(jnp.moveaxis(x, -1, 0)[..., None, :] for x in columns),
        )
        start = jnp.zeros((*q.x.shape[:3], k.x.shape[2]), jnp.float32)
        return jax.lax.scan(add, varying_like(start, channels), channels)[0]


def fade(q, q_sum, q_rest, k, k_sum, k_rest) -> jax.Array:
    """A product of channels times exp(-|P - P'|), of shapes that broadcast."""
    return q * k * jnp.exp(-jnp.abs(difference([q_sum, q_rest], [k_sum, k_rest])))


@kind
class Scale(Term):
    """The factor of q·k and the scaled kinds, instead of 1/sqrt(E); at most one."""

    value: float = static()

    def __post_init__(self):
        require_positive("scale", self.value)


class ScoreTerm(Term):
    """A kind with a formula for every pair. Engines that work pair by pair accept all of these."""

    scaled: ClassVar[bool] = False  # multiplied by the scale, as q·k is

    def scores(self, q: Side, k: Side, states: Any) -> jax.Array:
        """Float32 [B or 1, H or 1, T, S]; `states` are the term's states of queries and keys."""
        raise NotImplementedError


@kind
class DistanceFormula(ScoreTerm):
    """A bias that is plain arithmetic on the distance: `fn([C arrays], distance)`.

    Engines compute it in place, at any positions, and hold no table. The arrays are the columns of
    `numbers` [H, C], of any shapes that broadcast with distances.

    Attributes:
      fn: the function.
      numbers: C numbers for each head, float32 [H, C].
      decays: whether the bias never rises with |distance|. Engines then skip tiles in which it
        makes every key negligible.
    """

    fn: Callable = static()
    numbers: jax.Array
    decays: bool = static(default=False)

    def at(self, distance: jax.Array) -> jax.Array:
        """Of distances [*n]: float32 [H, *n]."""
        columns = jnp.moveaxis(self.numbers, 1, 0)
        columns = columns.reshape(*columns.shape, *(1,) * distance.ndim)
        return self.fn(list(columns), distance[None])

    def scores(self, q, k, states):
        return jnp.moveaxis(self.at(pair_distance(q, k)), 0, 1)

    def for_heads(self, share):
        return dataclasses.replace(self, numbers=share(self.numbers, 0))


@kind
class PairBias(ScoreTerm):
    """A bias of two positions: `fn(arrays, q_pos, k_pos)`, float32 [*B, H, T, S].

    The last resort: it is evaluated pair by pair in every tile.
    """

    fn: Callable = static()
    arrays: Any = None

    def scores(self, q, k, states):
        return self.fn(self.arrays, q.tokens.positions, k.tokens.positions)

    def for_heads(self, share):
        return dataclasses.replace(self, fn=OfSomeHeads(self.fn, share, -3))


@kind
class TokenBias(ScoreTerm):
    """A bias that is arithmetic on two tokens' states: `fn([C of the query], [C of the key])`.

    The entries have shapes that broadcast. Every pair that is seen must be finite.

    Attributes:
      fn: the function.
      state: of each token.
      decays: whether the bias is 0 for a token and itself and never rises as more tokens of the row
        come between. Engines then skip tiles in which it makes every key negligible.
    """

    fn: Callable = static()
    state: State  # pyright: ignore[reportIncompatibleVariableOverride]
    decays: bool = static(default=False)

    def scores(self, q, k, states):
        numbers, (rows, columns) = range(self.state.width), states
        return self.fn(
            [rows[..., :, None, n] for n in numbers], [columns[..., None, :, n] for n in numbers]
        )


@kind
class TokenProduct(ScoreTerm):
    """A bias that is a dot product: half the query's state · the other half of the key's."""

    state: State  # pyright: ignore[reportIncompatibleVariableOverride]

    def factors(self, states: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """[B or 1, H, T, C/2] of queries and [B or 1, H, S, C/2] of keys."""
        return halves(self.state, states)

    def scores(self, q, k, states):
        return state_product(self.state, states)


def halves(state: State, states: Any) -> tuple[jax.Array, jax.Array]:
    """The queries' half of a state, [B or 1, H, T, C/2], and the keys', [B or 1, H, S, C/2]."""
    half = state.width // 2
    return states[0][..., :half], states[1][..., -half:]  # a cache holds only that half


def state_product(state: State, states: Any) -> jax.Array:
    """The dot products of the halves of all pairs: float32 [B or 1, H, T, S]."""
    rows, columns = halves(state, states)
    batch = max(len(rows), len(columns))
    rows = jnp.broadcast_to(rows, (batch, *rows.shape[1:]))
    columns = jnp.broadcast_to(columns, (batch, *columns.shape[1:]))
    exact = jax.lax.Precision.HIGHEST
    return jnp.einsum("bhtc,bhsc->bhts", rows, columns, precision=exact)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Reads a table [H or 1, high - low + 1, …] of the distances low … high."""

    low: int
    high: int

    def __call__(self, table: jax.Array, distance: jax.Array) -> jax.Array:
        return jnp.take(table, jnp.clip(distance, self.low, self.high) - self.low, axis=1)


@dataclasses.dataclass(frozen=True)
class OfSomeHeads:
    """`fn` for some of the heads: those that `share` selects along `axis`."""

    fn: Callable
    share: Callable
    axis: int

    def __call__(self, *args):
        return self.share(self.fn(*args), self.axis)


@kind
class DistanceTerm(Term):
    """A kind whose `fn(arrays, distance)` depends on the distance alone: [H or 1, *n, …].

    Attributes:
      fn: the function, of integer distances [*n] ([*n, A] of several axes).
      arrays: its parameters.
      horizon: (low, high): constant for distances ≤ low and for distances ≥ high, or None. Only
        tiles near the diagonal then pay for it.
    """

    fn: Callable = static()
    arrays: Any = None
    horizon: tuple[int, int] | None = static(default=None, kw_only=True)

    def at(self, distance: jax.Array) -> jax.Array:
        """Of distances [*n]: float32 [H or 1, *n, …]."""
        return self.fn(self.arrays, distance).astype(jnp.float32)

    def tabled(self, low: int, high: int) -> "DistanceTerm":
        """The same term for distances low … high, read from a table: its function runs once."""
        first, last = self.horizon or (low, high)
        last = max(min(last, high), low)
        first = min(max(first, low), last)
        table = self.at(jnp.arange(first, last + 1, dtype=jnp.int32))
        horizon = None if self.horizon is None else (first, last)
        return dataclasses.replace(self, fn=Rows(first, last), arrays=table, horizon=horizon)

    def contract(self, form: str, x: jax.Array, q: Side, k: Side) -> jax.Array:
        """Sums x times the vectors [H or 1, B or 1, T, S, E] of all pairs as `form` says.

        `*` in the form stands for the axes of heads and batch, left out where they are 1.
        """
        vectors = self.at(pair_distance(q, k))
        shared = tuple(axis for axis in (0, 1) if vectors.shape[axis] == 1)
        axes = "".join(name for axis, name in enumerate("hb") if axis not in shared)
        return jnp.einsum(form.replace("*", axes), x.astype(jnp.float32), vectors.squeeze(shared))

    def for_heads(self, share):
        return dataclasses.replace(self, fn=OfSomeHeads(self.fn, share, 0))


@kind
class DistanceBias(DistanceTerm, ScoreTerm):
    """A bias: `fn` gives [H, *n]. With `scaled` it is multiplied by the scale, as q·k is."""

    scaled: bool = static(default=False, kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]

    def scores(self, q, k, states):
        return jnp.moveaxis(self.at(pair_distance(q, k)), 0, 1)


@kind
class RelativeKeys(DistanceTerm, ScoreTerm):
    """Vectors [H or 1, *n, E] dotted with q as it was before rotations (plus `u` [H, E])."""

    scaled = True
    u: jax.Array | None = dataclasses.field(default=None, kw_only=True)

    def queries(self, raw: jax.Array) -> jax.Array:
        """What is dotted with the vectors: float32 [B, H, T, E] for queries before rotations."""
        raw = raw.astype(jnp.float32)
        return raw if self.u is None else raw + align(self.u[:, None], raw)

    def scores(self, q, k, states):
        return self.contract("bhte,*tse->bhts", self.queries(q.raw), q, k)

    def for_heads(self, share):
        term = super().for_heads(share)
        return term if self.u is None else dataclasses.replace(term, u=share(self.u, 0))


@kind
class RelativeQueries(DistanceTerm, ScoreTerm):
    """Vectors [H or 1, *n, E] dotted with k as it was before rotations."""

    scaled = True

    def scores(self, q, k, states):
        return self.contract("bhse,*tse->bhts", repeat_heads(k.raw, q.x.shape[1]), q, k)


@kind
class RelativeState(DistanceTerm, ScoreTerm):
    """Vectors [H or 1, *n, C] dotted with the query's state."""

    state: State = dataclasses.field(kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]

    def scores(self, q, k, states):
        return self.contract("bhte,*tse->bhts", states[0], q, k)


@kind
class RowSum(Term):
    """A bias of how much a row's gates add up to, from the end of the row to each key.

        p_ij    = Σ_l gate(product_il)      over the keys l > j that the mask shows (l ≥ j: `own`)
        bias_ij = fn(numbers_i, p_ij)

    The product is q·k after rotations times the scale, without any other term, or that of two
    halves of a state, as for `TokenProduct`. Keys lie in the order of the array.

    Attributes:
      gate: the function of products, elementwise.
      fn: the function of numbers [B or 1, H, T, C] (None: there are none) and sums [B, H, T, S].
      numbers: of each query, `numbers(arrays, q)`: float32 [B or 1, H, T, C], from the queries
        before rotations times the scale, float32 [B, H, T, E]; or None.
      arrays: parameters, which lead with an axis of heads, H or 1.
      own: whether the sum at a key counts the key itself.
      limit: gates are never negative and `fn` is constant for sums from here on; None: it is not.
        Only tiles in which a sum is below it then pay for the gates.
      decays: gates are never positive, and the bias is 0 for a sum of 0 and never rises as the sum
        falls. Engines then leave a row where all further keys are negligible.
      state: 2C numbers of each token; None: the product is q·k.
    """

    gate: Callable = static()
    fn: Callable = static()
    numbers: Callable | None = static(default=None)
    arrays: Any = None
    own: bool = static(default=False)
    limit: float | None = static(default=None)
    decays: bool = static(default=False)
    state: State | None = None

    def of_queries(self, q: jax.Array | None) -> jax.Array | None:
        """The numbers [B or 1, H, T, C] of queries [B, H, T, E] before rotations, scaled."""
        return None if self.numbers is None else self.numbers(self.arrays, q)

    def sums(self, products: jax.Array, seen: jax.Array) -> jax.Array:
        """p for all keys, of products [B, H, T, S] and the mask [B or 1, H or 1, T, S]."""
        gates = jnp.where(seen, self.gate(products), 0)
        sums = jax.lax.cumsum(gates, axis=gates.ndim - 1, reverse=True)
        after = [(0, 0)] * (gates.ndim - 1) + [(0, 1)]
        return sums if self.own else jnp.pad(sums[..., 1:], after)

    def bias(self, scores: jax.Array, q: Side, scale: float, states: Any, seen: Any) -> jax.Array:
        """The bias of all pairs: float32 [B, H, T, S] for scaled products [B, H, T, S]."""
        numbers = None
        if self.numbers is not None:
            numbers = self.of_queries(scale * q.raw.astype(jnp.float32))
        if self.state is not None:
            scores = jnp.broadcast_to(state_product(self.state, states), scores.shape)
        return self.fn(numbers, self.sums(scores, seen))

    def for_heads(self, share):
        return dataclasses.replace(self, arrays=jax.tree.map(lambda x: share(x, 0), self.arrays))


@kind
class PathProduct(Term):
    """Instead of q·k, what is left of q after the maps of all tokens between, times k: dense alone.

        q_i·k_j  →  q_iᵀ H_i H_{i-1} … H_{j+1} k_j,    H_t = I - u_t w_tᵀ

    For causal attention; maps of other documents are left out. The state has u ‖ w, 2E numbers.
    """

    state: State  # pyright: ignore[reportIncompatibleVariableOverride]

    def products(self, q: Side, k: Side, states: Any) -> jax.Array:
        """Of all pairs whose key is not later: float32 [B, H, T, S] for k.x [B, K, S, E].

        With T the inverse of I + the part of u_s·w_t below the diagonal (the UT transform; Joffrain
        et al., 2006), q_i·k_j loses Σ_{s ≤ i} Σ_{t > j} (q_i·w_s) T_st (u_t·k_j).
        """
        u, w = jnp.split(states[1], 2, axis=-1)
        x, keys = q.x.astype(jnp.float32), repeat_heads(k.x, q.x.shape[1]).astype(jnp.float32)
        einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
        later = _order(k.tokens, k.tokens, 1)
        u_w = jnp.where(later, einsum("bhse,bhte->bhst", u, w), 0)
        u_k = jnp.where(later, einsum("bhte,bhje->bhtj", u, keys), 0)
        q_w = einsum("bhie,bhse->bhis", x, w)
        q_w = jnp.where(_order(q.tokens, k.tokens, 0), q_w, 0)
        u_w = jnp.broadcast_to(u_w + jnp.eye(u_w.shape[-1], dtype=u_w.dtype)[None, None], u_k.shape)
        solved = jax.scipy.linalg.solve_triangular(u_w, u_k, lower=True, unit_diagonal=True)
        lost = einsum("bhis,bhsj->bhij", q_w, solved)
        return einsum("bhie,bhje->bhij", x, keys) - lost


def _order(rows: Tokens, columns: Tokens, least: int) -> jax.Array:
    """Pairs of one document whose row is `least` tokens later or more: bool [B or 1, 1, T, S]."""
    pairs = rows.index[:, :, None] - columns.index[:, None] >= least
    if rows.segments is not None and columns.segments is not None:
        pairs = pairs & (rows.segments[:, :, None] == columns.segments[:, None])
    return pairs[:, None]


@kind
class RowRescore(Term):
    """Added to scores, computed from whole rows of them: O(T·S) memory, dense engine only.

    `fn(arrays, scores, bias, q, seen)` gives float32 [B, H, T, S] from the scaled products without
    biases, the sum of all biases (which is added too), the queries before rotations times the scale
    [B, H, T, E], and what the mask shows (bool [B or 1, H or 1, T, S]).
    """

    fn: Callable = static()
    arrays: Any = None


@kind
class LogitCap(Term):
    """Bounds the scores, with all that is added to them: cap·tanh(score / cap); at most one.

    Gemma 2 (arXiv 2408.00118, §2), before the mask.
    """

    value: float = static()

    def __post_init__(self):
        require_positive("logit_cap", self.value)


@kind
class Mask(Term):
    """Hides pairs that the causal mask, the window and the segments show: `fn(arrays, q, k)`.

    q and k are `Tokens` and the result is bool [B or 1, T, S]. A tile asks for its own tokens, so
    the function reads their indices, segments and positions, and arrays [B or 1, …] that it looks
    up by index (the length of each row's prefix, the subtree of each token).

    Attributes:
      fn: the function.
      arrays: what it looks up.
      length: how many tokens it can tell apart (a tree's); None: any number.
    """

    fn: Callable = static()
    arrays: Any = None
    length: int | None = static(default=None, kw_only=True)

    def shows(self, q: Tokens, k: Tokens) -> jax.Array:
        """Which pairs are seen: bool [B or 1, 1, T, S]."""
        seen = self.fn(self.arrays, q, k)
        pairs = (q.index.shape[-1], k.index.shape[-1])
        if seen.dtype != bool or seen.ndim != 3 or seen.shape[1:] != pairs:
            given = f"its function gives {seen.dtype}{list(seen.shape)}"
            raise ValueError(f"mask: {given}; pass one that gives bool {['B or 1', *pairs]}")
        return seen[:, None]


# Of the output.


@kind
class Dropout(Term):
    """Drops weights and divides those that are kept by 1 - rate; at most one.

    A pair is dropped by a hash of its row's seed and of the two tokens' indices: every engine drops
    the same pairs, and the backward pass draws them again.

    Attributes:
      seeds: uint32 [B, H], drawn for each call.
      rate: the fraction that is dropped.
    """

    seeds: jax.Array
    rate: float = static(kw_only=True)

    def factors(self, q: Tokens, k: Tokens) -> jax.Array:
        """What the weights are multiplied by: 0 or 1 / (1 - rate), float32 [B, H, T, S]."""
        golden, mixed = jnp.uint32(0x9E3779B9), jnp.uint32(0x85EBCA6B)
        rows, columns = (tokens.index.astype(jnp.uint32) for tokens in (q, k))
        bits = self.seeds[..., None] ^ (rows * golden)[:, None]
        bits = mix_bits(bits)[..., None] ^ (columns * mixed)[:, None, None]
        kept = mix_bits(bits) >= jnp.uint32(round(self.rate * 2**32))
        return jnp.where(kept, jnp.float32(1 / (1 - self.rate)), 0)


def mix_bits(x: jax.Array) -> jax.Array:
    """Bits that look random, one to one: the finalizer of MurmurHash3 (Appleby), uint32."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@kind
class RelativeValues(DistanceTerm):
    """Vectors [H or 1, *n, F] averaged with the attention weights, as the values are."""

    def values(self, weights: jax.Array, q: Side, k: Side) -> jax.Array:
        """Float32 [B, H, T, F] for weights [B, H, T, S]."""
        return self.contract("bhts,*tse->bhte", weights, q, k)


@kind
class Sink(Term):
    """One more logit [H] in the softmax of each row, without a value.

    With a `state` of one number, that of the query is added to it.
    """

    logit: jax.Array
    state: State | None = None

    def for_heads(self, share):
        return dataclasses.replace(self, logit=share(self.logit, 0))


@kind
class Unnormalized(Term):
    """Weights are exp(score): no softmax divides them by their sum. At most one, and no `Sink`."""


# Tuples of terms.

# applied before or after an engine, or by all
OUTSIDE = (Input, QueryBias, Rotation, ValueRotation, Scale, Sink, Unnormalized)


def reads_lse(terms: tuple) -> bool:
    """Whether the logarithms of rows' sums change the output."""
    return bool(select(terms, Sink, Unnormalized))


def sums_rows(terms: tuple) -> bool:
    """Whether a score depends on other keys of its row: devices cannot share rows."""
    return bool(select(terms, RowSum, RowRescore, PathProduct))


def check_known(terms: tuple, known: tuple[type, ...], engine: str) -> None:
    """Raises ValueError for a term of another kind, which the engine would ignore."""
    for term in terms:
        if not isinstance(term, OUTSIDE + known):
            raise ValueError(f"{engine} has no {type(term).__name__}")


def pair_distance(q: Side, k: Side) -> jax.Array:
    """`q_pos - k_pos` of all pairs: [B or 1, T, S], with a trailing A if positions have it."""
    return q.tokens.positions[:, :, None] - k.tokens.positions[:, None]


def repeat_heads(x: jax.Array, heads: int) -> jax.Array:
    """[B, K, S, E] → [B, H, S, E]."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def select(terms: tuple, *kinds: type) -> list:
    """The terms of these kinds."""
    return [term for term in terms if isinstance(term, kinds)]


def decay(terms: tuple) -> int | None:
    """The place of the term that stands for q·k; None: q·k itself."""
    places = (i for i, term in enumerate(terms) if isinstance(term, ChannelDecay))
    return next(places, None)


def scale(terms: tuple, head_dim: int) -> float:
    """What dot products are multiplied by."""
    return next((term.value for term in select(terms, Scale)), head_dim**-0.5)


def logit_cap(terms: tuple) -> float | None:
    """What bounds the scores; None: nothing does."""
    return next((term.value for term in select(terms, LogitCap)), None)


def require_positive(name: str, value: Any) -> None:
    """Raises ValueError unless the value is a number above 0."""
    require(is_real(value) and value > 0, name, value, "pass a positive number")


def views(terms: tuple) -> Views | None:
    """The views of queries and keys; None: there is one."""
    return next((t.views for t in select(terms, Rotation) if t.views is not None), None)


def reads_places(terms: tuple) -> bool:
    """Whether an engine reads where two tokens stand, beyond how far apart they are."""
    several = views(terms)
    return bool(select(terms, PairBias)) or (several is not None and several.unit > 1)


def check(terms: tuple) -> None:
    """Raises ValueError where terms cannot be combined."""
    for kind, what in (
        (Scale, "set a scale"),
        (LogitCap, "cap scores"),
        (Dropout, "drop weights"),
        (Unnormalized, "leave weights unnormalized"),
        (ChannelDecay, "fade channels"),
        (PathProduct, "take products along paths"),
    ):
        if (count := len(select(terms, kind))) > 1:
            raise ValueError(f"{count} terms {what}; keep at most one")
    if any(rotation.views is not None for rotation in select(terms, Rotation)[:-1]):
        raise ValueError("a rotation cannot follow one of several views; put that last")
    if views(terms) is not None and select(terms, ChannelDecay):
        raise ValueError("channels of several views cannot fade; leave one of the two out")
    if select(terms, Unnormalized) and (others := select(terms, Sink, LogitCap)):
        name = type(others[0]).__name__
        raise ValueError(f"weights that no softmax normalizes have no {name}; leave one out")
