"""What every kind of term is, and what it reads: tokens, vectors, states.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import jax

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
    """One thing that an encoding adds to attention: engines call these methods, whatever the kind.

    To add a kind, derive a class from `ScoreTerm` under `@kind` and define `scores`, and also
    `for_heads` if its arrays have an axis of heads. Kernels support only the kinds of this package.
    Kinds of distances also have `at` (`DistanceTerm`), sums along rows `row_bias`, `settled` and
    `bias_of` (`RowSum`). Methods that a kind does not use return None, as here.

    `reads` says how much of a row of scores a kind needs: "outside" (it acts before or after an
    engine), "pairs", "later keys" (sums along a row), "rows" (whole rows: dense engine only).
    Engines refuse a kind with "".
    """

    reads: ClassVar[str] = ""
    scaled: ClassVar[bool] = False  # its scores are multiplied by the scale, as q·k is
    distances: ClassVar[str] = ""  # by distance alone: a "formula", a "bias" or "vectors"
    by_head: ClassVar[bool] = False  # axis 0 of its arrays is heads; a head needs its entry alone
    hides: ClassVar[bool] = False  # it hides pairs: `visible`
    slow_on_diagonal: ClassVar[bool] = False  # a pair costs more unless its key is far behind
    reads_keys: bool = False  # it reads the states of keys too, not only of queries
    halved: ClassVar[bool] = False  # one half of its state is of queries, the other of keys
    by_length: bool = False  # its rotations take the length of each token's document
    reads_raw: str = ""  # the side that it reads before rotations: "q" or "k"
    decays: bool = False  # it never rises as two tokens get farther apart: see `bound`
    of_keys: bool = False  # before a query, it is u of the key - u of the query: `key_bias`
    constant: bool = False  # its arrays are constants of the scheme and need no gradient
    horizon: tuple[int, int] | None = None  # beyond it, it is constant
    state: "State | None" = None  # for kinds that read each token's state

    @property
    def in_tables(self) -> bool:
        """Whether engines hold its values by distance in a table."""
        return self.distances in ("bias", "vectors")

    # Outside engines.

    def shift(self, q: jax.Array) -> jax.Array:
        """Queries [*B, T, H, E] before any rotation."""
        return q

    def rotate(
        self, side: str, x: jax.Array, positions: jax.Array, state: Any = None, lengths: Any = None
    ) -> jax.Array:
        """Queries (`side` "q") or keys ("k"), rotated before their products."""
        return x

    def rotate_values(self, v: jax.Array, positions: jax.Array, lengths: Any = None) -> jax.Array:
        """Values [*B, S, K, F], rotated before they are averaged."""
        return v

    def rotate_output(self, out: jax.Array, positions: jax.Array, lengths: Any = None) -> jax.Array:
        """The output [*B, T, H, F] with the rotation of values undone."""
        return out

    def rescale(self, out: jax.Array, lse: Any, state: Any) -> tuple[jax.Array, Any]:
        """The output [B, H, T, F] and the logarithm of the sum of each row, [B, H, T, 1]."""
        return out, lse

    # In engines.

    def scores(self, q: "Side", k: "Side", states: Any) -> Any:
        """What it adds to the scores of a block, by its definition, or None.

        Float32 [B or 1, H or 1, T, S]; `states` are the term's of queries and keys.
        """
        return None

    def along(self, line: Any, q: "Side", k: "Side", states: Any) -> Any:
        """The same at contiguous positions, from its values along the diagonals (a `Line`)."""
        return None

    def dotted_with(self, q: "Side", k: "Side", states: Any) -> Any:
        """What its vectors of distances are dotted with: "q" or "k", and numbers of that side.

        Float32 [B or 1, H or K, T or S, width of a vector].
        """
        return None

    def prepare(self, q: "Side", k: "Side", states: Any, scale: float) -> Any:
        """Its states of queries and of keys as `scores` takes them, made once per call."""
        return states

    def products(self, q: "Side", k: "Side", states: Any) -> Any:
        """What replaces q·k, float32 [B, H, T, S], or None."""
        return None

    def rescore(self, scores: Any, bias: Any, q: "Side", scale: float, pairs: Any) -> Any:
        """What it adds to whole rows of scores, from them and the biases, or None."""
        return None

    def values(self, weights: jax.Array, q: "Side", k: "Side") -> Any:
        """What weights [B, H, T, S] add to the output, float32 [B, H, T, F], or None."""
        return None

    def values_along(self, line: Any, weights: jax.Array) -> Any:
        """The same at contiguous positions."""
        return None

    def bound(self, distance: jax.Array, states: Any) -> Any:
        """Upper bound of a bias that `decays`, minus its value for a token and itself.

        float32 [B or 1, H or 1, *n] for the nearest two tokens of blocks, which are `distance` [*n]
        apart and have `states`.
        """
        return None

    def key_bias(self, side: "Side", state: Any) -> Any:
        """u of a kind that is `of_keys`: keys that are not later get u of the key - u of the query.

        The softmax ignores the query's part. Two float32 arrays [B or 1, H, T] whose sum is u, for
        positions in the order of the tokens.
        """
        return None

    def visible(self, q: "Tokens", k: "Tokens") -> Any:
        """Which pairs it leaves visible: bool [B or 1, 1, T, S]; None: all."""
        return None

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
    """A kind with a formula for every pair, `scores`: every engine but kernels accepts these."""

    reads = "pairs"
    positions_alone: ClassVar[bool] = False  # `scores` reads positions, and nothing else of a token

    def scores(self, q: Side, k: Side, states: Any) -> jax.Array:
        """Float32 [B or 1, H or 1, T, S]; `states` are the term's states of queries and keys."""
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
