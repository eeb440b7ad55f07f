"""Schemes that change the positions of a run, as `config.positions` names them.

`contiguous`, `randomized(maximum=2048)`, `shape(maximum=500)`, `cape(local_shift=0.5)`,
`bilevel(separators=(46, 10))`. What they draw in training is a function of the step's key, so that
a run that was stopped resumes bitwise. Tests go as in the papers: `randomized` draws there too;
`shape` and `cape` do not move anything.

Packed documents: positions restart with each segment of a row, and are then drawn by row. A segment
gets what it would get alone (`randomized`: a set of its own; `shape`, `cape`: the row's one shift
and scale), and no segment sees another, so that the row's draw is shared does not show.
B batch, T tokens.
"""

import ast
import dataclasses
import difflib
from typing import ClassVar

import jax

from pe_jax import positions as pos
from pe_jax.encodings.base import Encoding
from pe_jax.validation import is_int, require


@dataclasses.dataclass(frozen=True)
class Contiguous:
    """0, 1, 2, … in each segment: the fast path of every engine. The base of the others."""

    axes: ClassVar[int] = 1
    real: ClassVar[bool] = False  # float32 positions

    def reach(self, length: int, testing: bool = False) -> int | None:
        """Positions stay below this; None where there are none for so many tokens."""
        return length

    def fits(self, length: int, limit: int | None, testing: bool = False) -> bool:
        """Whether so many tokens have positions, and all are below `limit` (None: no limit)."""
        reach = self.reach(length, testing)
        return reach is not None and (limit is None or reach <= limit)

    def train(self, key: jax.Array, tokens: jax.Array, segments: jax.Array) -> jax.Array | None:
        """Positions [B, T(, axes)] of tokens and segments [B, T], or None: contiguous."""
        return None

    def test(self, key: jax.Array, tokens: jax.Array, segments: jax.Array) -> jax.Array | None:
        """Likewise where nothing is trained."""
        return None


def _by_row(draw, key: jax.Array, segments: jax.Array) -> jax.Array:
    """draw(key, segments [T]) of each row: [B, T]."""
    return jax.vmap(draw)(jax.random.split(key, len(segments)), segments)


@dataclasses.dataclass(frozen=True)
class Randomized(Contiguous):
    """`positions.randomized`: T of `maximum` positions, in order, in training and in tests."""

    maximum: int = 2048

    def __post_init__(self):
        require(is_int(self.maximum, 1), "maximum", self.maximum, "pass an integer of at least 1")

    def reach(self, length, testing=False):
        """`maximum`, whatever the length."""
        return self.maximum if length <= self.maximum else None

    def train(self, key, tokens, segments):
        """A set for each segment."""
        draw = lambda k, ids: pos.randomized(k, len(ids), self.maximum, ids)  # noqa: E731
        return _by_row(draw, key, segments)

    def test(self, key, tokens, segments):
        """As in training."""
        return self.train(key, tokens, segments)


@dataclasses.dataclass(frozen=True)
class Shape(Contiguous):
    """`positions.shifted`: one shift of up to `maximum` a row, in training alone."""

    maximum: int = 500

    def __post_init__(self):
        require(is_int(self.maximum, 0), "maximum", self.maximum, "pass an integer of at least 0")

    def reach(self, length, testing=False):
        """The farthest shift, in training."""
        return length + (0 if testing else self.maximum)

    def train(self, key, tokens, segments):
        """A shift for each row."""
        draw = lambda k, ids: pos.shifted(k, pos.per_segment(ids), self.maximum)  # noqa: E731
        return _by_row(draw, key, segments)


@dataclasses.dataclass(frozen=True)
class Cape(Contiguous):
    """`positions.cape`: shifts and a scale, in training alone; for schemes that take float32."""

    global_shift: float = 5.0
    local_shift: float = 0.5
    scaling: float = 1.03

    real = True

    def __post_init__(self):
        pos.check_cape(**dataclasses.asdict(self))

    def train(self, key, tokens, segments):
        """A shift and a scale for each row, a shift for each token."""
        fields = dataclasses.asdict(self)
        return _by_row(lambda k, ids: pos.cape(k, pos.per_segment(ids), **fields), key, segments)


@dataclasses.dataclass(frozen=True)
class Bilevel(Contiguous):
    """`positions.bilevel`, in training and in tests; bytes 46 and 10 end a sentence, a line."""

    separators: tuple[int, ...] = (46, 10)
    longest: int | None = None

    axes = 2

    def __post_init__(self):
        pos.check_bilevel(self.separators, self.longest)

    def reach(self, length, testing=False):
        """The places end at `longest`; without one, a row may be a single piece."""
        return self.longest or length

    def train(self, key, tokens, segments):
        """Index of the piece, and place."""
        return pos.bilevel(tokens, self.separators, segments, self.longest)

    def test(self, key, tokens, segments):
        """As in training."""
        return self.train(key, tokens, segments)


SCHEMES = {
    "contiguous": Contiguous,
    "randomized": Randomized,
    "shape": Shape,
    "cape": Cape,
    "bilevel": Bilevel,
}


def limit(pattern: tuple[Encoding, ...]) -> int | None:
    """The first position that the encodings do not define, on any axis; None if they define all."""
    return min((n for e in pattern if (n := e.limit()) is not None), default=None)


def parse(spec: str) -> Contiguous:
    """Reads `randomized(maximum=2048)`: a name, and fields that are literals.

    Raises:
      ValueError: what cannot be read, an unknown name or field (naming the nearest), a value out of
        range.
    """
    try:
        match ast.parse(spec.strip(), mode="eval").body:
            case ast.Name(id=name):
                fields = {}
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
                given = {str(k.arg): ast.literal_eval(k.value) for k in keywords}
                fields = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
            case _:
                raise ValueError
    except (SyntaxError, ValueError):
        raise ValueError(f"positions={spec!r}: write name, or name(field=value)") from None
    known = [f.name for f in dataclasses.fields(SCHEMES[name])] if name in SCHEMES else SCHEMES
    for given in [name] if name not in SCHEMES else fields:
        if given not in known:
            near = difflib.get_close_matches(given, [*known, ""], 1, 0)[0]
            hint = f"did you mean {near!r}?" if near else "it has none"
            raise ValueError(f"positions={spec!r}: {given!r} is unknown; {hint}")
    try:
        return SCHEMES[name](**fields)
    except (ValueError, TypeError) as error:
        raise ValueError(f"positions={spec!r}: {error}") from error


def choose(spec: str, pattern: tuple[Encoding, ...]) -> Contiguous:
    """The scheme, if the encodings take what it gives; contiguous if they look at no position.

    Raises:
      ValueError: as `parse`; an encoding with another number of axes, or that takes integers alone.
    """
    found = parse(spec)
    if all(type(encoding) is Encoding for encoding in pattern):
        return Contiguous()
    for encoding in pattern:
        name = type(encoding).__name__
        if encoding.axes != found.axes:
            raise ValueError(
                f"positions={spec!r}: gives positions of {found.axes} axes, {name} takes"
                f" {encoding.axes}: bipe needs bilevel(separators=…), images configs/images.py"
            )
        if found.real and not encoding.real_positions:
            raise ValueError(
                f"positions={spec!r}: gives float32, {name} takes integers; use another encoding"
            )
    return found
