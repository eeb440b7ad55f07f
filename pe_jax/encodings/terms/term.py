"""What every kind of term is, the protocols of what it does, and what it reads.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.core
import jax.numpy as jnp

from pe_jax.validation import is_real, require, shown


def static(**options: Any) -> Any:
    """A field that is not an array: part of a term's structure."""
    return dataclasses.field(metadata={"static": True}, **options)


T = TypeVar("T")


class Tokens(NamedTuple):
    """Positions and mask of queries or keys; nothing here has a gradient.

    Attributes:
      positions: [B or 1, T], with a trailing axis A if a position has several.
      index: counted along the row, for the mask: [B or 1, T].
      segments: ids of documents [B or 1, T]; a token with a negative id sees nothing; or None.
      rank: the index within the segment, if there are segments, and attention sinks or terms that
        hide pairs count by it; None: `index`.
      row: the place in the array where `index` leaves padding out (a cache); None: `index`.
    """

    positions: jax.Array
    index: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    segments: jax.Array | None = None
    rank: jax.Array | None = None
    row: jax.Array | None = None


class Side(NamedTuple):
    """Queries or keys, heads first.

    Attributes:
      x: the vectors after rotations: [B, H or K, T, E].
      raw: the same before rotations, or None if no term reads them.
      states: one per term, float32 [B or 1, H, T, C], or None for a term without a state.
      tokens: positions, and what the mask is made of; None where they are kept apart, as they have
        no gradients.
    """

    x: jax.Array
    raw: Any
    states: tuple[Any, ...]
    tokens: Tokens = None  # pyright: ignore[reportAssignmentType]


@dataclasses.dataclass(frozen=True)
class Method:
    """A bound method that compares by value; Python's own compare their owners by identity."""

    function: Callable
    owner: Any

    def __call__(self, *args):
        return self.function(self.owner, *args)


class Term:
    """One thing that an encoding adds to attention.

    What it does follows from the class that it derives from, its protocol; engines ask for that and
    not for the kind. To add a kind, derive one under `@kind` and define its methods:

    * `ScoreTerm` adds scores to pairs; `DistanceScores` scores that depend on the distance alone;
    * `RowTerm` carries something along a row; `ProductTerm` replaces q·k;
    * `Rotates` maps vectors by positions; `ResultTerm` changes the output.

    `Mask`, `PairRescore` and `RelativeValues` are kinds that take any function. Kernels support
    only the kinds of this package; engines refuse a term without a protocol.
    """

    along_rows: ClassVar[bool] = False  # a score depends on other keys of its row
    by_head: ClassVar[bool] = True  # axis 0 of its arrays is heads; a head needs its entry alone
    all_heads: ClassVar[bool] = False  # it reads the scores of all heads of a pair
    costly_near: ClassVar[bool] = False  # far pairs cost little: tiles are then smaller
    has_tile_states: ClassVar[bool] = False  # it has `tile_states`: tiles are then square
    offsets_keys: ClassVar[bool] = False  # it takes a part of each key from the key before it
    cache_step: ClassVar[int | None] = None  # a cache takes at most so many tokens at once
    reads_raw: str = ""  # the side that it reads before rotations: "q" or "k"
    state: "State | None" = None  # for kinds that read each token's state

    @property
    def key_width(self) -> int:
        """How many numbers of a key's state it reads, the last ones; a cache holds them."""
        return 0 if self.state is None else self.state.width

    # What a cache keeps of it: arrays that are `empty` at first, of which those of new tokens are
    # `written` and then all `read`; `offset_new` comes before them, where it `offsets_keys`.

    def empty(self, batch: int, rows: int, width: int, dims: Any) -> Any:
        """What a cache keeps before the first token: arrays with the batch first, or None.

        Those of floats are float32, [B, n, S, C] of each of `rows` tokens or [B, n, 1, C] of the
        last one, from which the next goes on. One of int32, [B], is how many tokens the others
        follow from; `truncate` makes it -1. `width` is that of rotated keys.
        """
        if self.key_width:
            return jnp.zeros((batch, dims.heads, rows, self.key_width), jnp.float32)
        if self.state is not None and self._goes_on:
            return jnp.zeros((batch, dims.heads, 1, self.state.width), jnp.float32)
        return None

    @property
    def _goes_on(self) -> bool:
        """Whether its state is a running sum."""
        return self.state is not None and self.state.after is not None

    def offset_new(self, k: jax.Array, kept: Any, is_token: Any, rank: Any) -> Any:
        """New keys [B, T, K, E] before rotations, offset, and what to write.

        `is_token` and `rank` are [B or 1, T]: which are no padding, and their index in the segment.
        """
        raise NotImplementedError

    def written(self, state: Any) -> Any:
        """What a cache writes of the states of new tokens, [B or 1, H, T, C]; None: nothing."""
        if self.key_width:
            return state[..., -self.key_width :]
        return state[:, :, -1:] if self._goes_on else None

    def read(self, kept: Any, state: Any, k: "Side", new: "Side", length: jax.Array) -> Any:
        """The state of all keys as its other methods take it; and what is kept then, or None.

        None: what was `written`. `kept` is that of all `k` tokens, of which the `new` ones are the
        last; `k.x` has the rotated keys of the `length` [B] tokens before. `state` is of the new.
        """
        return kept if self.key_width else None, None

    def prepare(self, q: "Side", k: "Side", states: Any, scale: float) -> Any:
        """Its states of queries and of keys as its other methods take them, made once per call."""
        return states

    def tile_states(self, q: "Side", k: "Side", states: Any, side: int) -> Any:
        """Its states of queries and of keys in tiles of `side` tokens, from those of `prepare`.

        Made once per group of heads, in both passes. An array has entries of tokens, [B, H, T, …],
        or of the keys' tiles, [B, H, T/side, …].
        """
        return states

    def whole_rows(self, spec: Any) -> bool:
        """Whether a call of this `AttentionSpec` needs all scores of a row at once."""
        return False

    def in_tiles(self, spec: Any) -> Any:
        """The term as the tiled engine evaluates it in calls of this `AttentionSpec`."""
        return self

    def without_state_arrays(self) -> Any:
        """The term without the parameters of its state, which is computed before an engine runs."""
        if self.state is None:
            return self
        state = dataclasses.replace(self.state, arrays=None)
        return dataclasses.replace(self, state=state)  # pyright: ignore[reportArgumentType]

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
                _require_known(f"{type(self).__name__}.{field.name}", function.__self__)
                method = Method(function.__func__, function.__self__)
                object.__setattr__(self, field.name, method)
            elif isinstance(function, functools.partial) or "<" in getattr(
                function, "__qualname__", ""
            ):
                raise TypeError(
                    f"{type(self).__name__}.{field.name}={shown(function, 80)}: jit compiles again"
                    " for every new one; write it at the top level of a module (what it closes over"
                    " goes into `arrays`), or as a method of a frozen dataclass (into its fields)"
                )


def _require_known(name: str, owner: Any) -> None:
    """Raises ValueError if the owner of a method has traced fields, which would get no gradient."""
    known = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
    for field in known:
        leaves = jax.tree.leaves(getattr(owner, field.name))
        if any(isinstance(x, jax.core.Tracer) for x in leaves):
            held = f"{type(owner).__name__}.{field.name}"
            fix = "pass it in the term's `arrays`, which its function is given"
            raise ValueError(f"{name}: {held} is traced, and a part of the program: {fix}")


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
      after: for running sums: `after(before, state)` continues a state that began at zero from
        tokens whose last state is `before`. Devices then sum their own tokens in parallel.
      of: "x", "positions", or "both" where the function is `fn(arrays, x, positions)`.
    """

    fn: Callable = static()
    arrays: Any
    width: int = static()
    after: Callable | None = static(default=None)
    of: str = static(default="x")

    def __call__(self, x, positions, before=None):
        arguments = {"x": (x, before), "positions": (positions,), "both": (x, positions)}
        return self.fn(self.arrays, *arguments[self.of])


class ScoreTerm(Term):
    """Adds a score to each pair, by the formula `scores`.

    Attributes:
      scaled: its scores are multiplied by the scale, as q·k is.
      positions_alone: `scores` reads positions, and nothing else of a token.
      decays: it never rises as two tokens get farther apart; it then has a `bound`.
    """

    scaled: ClassVar[bool] = False
    by_head: ClassVar[bool] = False
    positions_alone: ClassVar[bool] = False
    decays: bool = False

    @property
    def is_key_bias(self) -> bool:
        """Whether it is, before a query, u of the key - u of the query: it has a `key_bias`."""
        return False

    def scores(self, q: Side, k: Side, states: Any) -> jax.Array:
        """Float32 [B or 1, H or 1, T, S]; `states` are the term's states of queries and keys."""
        raise NotImplementedError

    def bound(self, distance: jax.Array, states: Any) -> jax.Array:
        """Upper bound of a bias that `decays`, minus its value for a token and itself.

        float32 [B or 1, H or 1, *n] for the nearest two tokens of blocks, which are `distance` [*n]
        apart and have `states`.
        """
        raise NotImplementedError

    def key_bias(self, side: Side, state: Any) -> tuple[jax.Array, jax.Array]:
        """u of a key bias: keys that are not later get u of the key - u of the query.

        The softmax ignores the query's part. Two float32 arrays [B or 1, H, T] whose sum is u, for
        positions in the order of the tokens.
        """
        raise NotImplementedError


class ProductTerm(Term):
    """Replaces q·k; at most one per call, and no rotation changes the number of channels."""

    def products(self, q: Side, k: Side, states: Any) -> jax.Array:
        """What replaces q·k, before the scale: float32 [B, H, T, S]."""
        raise NotImplementedError


class RowTerm(Term):
    """Adds to a pair, or replaces q·k by, what depends on the keys of its row to the right.

    Engines visit the blocks of a row from the right, and carry `carry` numbers per query from each
    to the next; the last block gets zeros.

    Attributes:
      carry: how many numbers.
      replaces: its scores replace q·k, before the scale; else they are a bias.
      passes_hidden: it carries something past keys that the mask hides, too.
      decays: the bias of a key never exceeds that of the keys to its right, nor 0.
    """

    along_rows = True
    carry: int = 1
    replaces: ClassVar[bool] = False
    passes_hidden: ClassVar[bool] = False
    decays: bool = False

    def row(
        self, q: Side, k: Side, states: Any, products: Any, visible: Any, before: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The scores of a block of a row, and what to carry to the block on its left.

        Args:
          q: the queries.
          k: the keys.
          states: what `prepare` gives, or `tile_states`.
          products: q·k times the scale, float32 [B, H, T, S]; None: it `replaces` them.
          visible: which pairs are visible, bool [B or 1, H or 1, T, S].
          before: what the block on the right carries, [B, H, T, carry].
        """
        raise NotImplementedError

    def settled(self, before: jax.Array) -> jax.Array:
        """Whether all keys farther left have the same bias, [B, H, T, 1]."""
        return jnp.full((*before.shape[:3], 1), False)

    def bias_of(self, states: Any, before: jax.Array) -> jax.Array:
        """Of a kind that `decays` or settles, the bias of the next key: float32 [B, H, T, 1]."""
        raise NotImplementedError


class AroundEngine(Term):
    """Acts before or after an engine, which needs nothing of it."""

    @property
    def key_width(self):
        return 0


class Rotates(AroundEngine):
    """Maps vectors by their positions.

    Its fields `q`, `k`, `v` and `out`, as far as it has them, are functions of those of one side:
    `(arrays, x, positions)`, then the state and the lengths of documents if it reads them.
    """

    arrays: Any = None
    by_length: bool = False  # its functions take the length of each token's document

    def rotate(
        self, side: str, x: jax.Array, positions: Any, state: Any = None, lengths: Any = None
    ) -> jax.Array:
        """Vectors [*B, T, H or K, E] of a side: "q", "k", "v", or "out", outputs rotated back."""
        function = getattr(self, side, None)
        if function is None:
            return x
        more = () if self.state is None else (state,)
        more += (lengths,) if self.by_length else ()
        return function(self.arrays, x, positions, *more)


class ResultTerm(AroundEngine):
    """Changes the output by the sum of each row."""

    def rescale(self, out: jax.Array, lse: jax.Array, state: Any) -> tuple[jax.Array, jax.Array]:
        """The output [B, H, T, F] and the logarithm of the sum of each row, [B, H, T, 1]."""
        raise NotImplementedError


def halves(state: State, states: Any) -> tuple[jax.Array, jax.Array]:
    """The queries' half of a state, [B or 1, H, T, C/2], and the keys', [B or 1, H, S, C/2]."""
    half = state.width // 2
    return states[0][..., :half], states[1][..., -half:]  # a cache holds only that half


@dataclasses.dataclass(frozen=True)
class OfSomeHeads:
    """`fn` for some of the heads: those that `share` selects along `axis` of what it gives."""

    fn: Callable
    share: Callable
    axis: int

    def __call__(self, *args):
        return jax.tree.map(lambda x: self.share(x, self.axis), self.fn(*args))


def pair_distance(q: Side, k: Side) -> jax.Array:
    """`q_pos - k_pos` of all pairs: [B or 1, T, S], with a trailing A if positions have it."""
    return q.tokens.positions[:, :, None] - k.tokens.positions[:, None]


def select(terms: tuple, *kinds: type) -> list:
    """The terms of these kinds."""
    return [term for term in terms if isinstance(term, kinds)]


def require_positive(name: str, value: Any) -> None:
    """Raises ValueError unless the value is a number above 0."""
    require(is_real(value) and value > 0, name, value, "pass a positive number")
