"""Schemes that change the positions themselves, by the names that `config.positions` takes.

`contiguous`, `randomized(maximum=2048)`, `pose(maximum=2048)`, `random_floats(trained_length=512)`,
`shape(maximum=500)`, `cape(local_shift=0.5)`, `bilevel(separators=(46, 10))`. What they draw in
training is a function of the step's key, so that a resumed run is bitwise the same. Tests follow
the papers: `randomized` draws in tests too, `random_floats` spaces test positions evenly; `pose`,
`shape` and `cape` leave them contiguous.

Packed documents: positions restart with each segment of a row, and are then drawn per row. A
segment gets what it would get alone (`randomized`, `random_floats`: a separate set; `pose`:
separate pieces; `shape`, `cape`: the row's shift and scale). Segments do not attend to each other,
so a draw shared by a row has no effect on the outputs. B batch, T tokens.
"""

import dataclasses
import math
from typing import ClassVar

import jax

from pe_jax import positions as pos
from pe_jax import spec_strings as specs
from pe_jax.config_fields import int_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.windowed import attention_layers, without_window
from pe_jax.validation import ConfigError, PlainFields, require


@dataclasses.dataclass(frozen=True)
class Contiguous(PlainFields):
    """0, 1, 2, … in each segment: the fast path of every engine. Base class of all schemes."""

    axes: ClassVar[int] = 1
    real: ClassVar[bool] = False  # float32 positions
    in_tests: ClassVar[bool] = False  # test positions are drawn too; else they are contiguous

    def bound(self, length: int, testing: bool = False) -> int | None:
        """Exclusive upper bound of the positions of `length` tokens; None if they are too many."""
        return length

    def fits(self, length: int, limit: int | None, testing: bool = False) -> bool:
        """Whether `length` tokens have positions, all below `limit` (None: no limit)."""
        bound = self.bound(length, testing)
        return bound is not None and (limit is None or bound <= limit)

    def check_trained_on(self, length: int, spec: str) -> None:
        """Raises ConfigError where the fields of `spec` do not fit training rows of `length`."""

    def training_positions(
        self, key: jax.Array, tokens: jax.Array, segments: jax.Array
    ) -> jax.Array | None:
        """Positions [B, T(, axes)] of tokens and segments [B, T]; None means contiguous."""
        return None

    def test_positions(
        self, key: jax.Array, tokens: jax.Array, segments: jax.Array
    ) -> jax.Array | None:
        """The same for evaluation."""
        return self.training_positions(key, tokens, segments) if self.in_tests else None


class Drawn(Contiguous):
    """Positions that are drawn row by row."""

    def draw(self, key: jax.Array, segments: jax.Array) -> jax.Array:
        """Positions of one row, [T], from its key and segments [T]."""
        raise NotImplementedError

    def training_positions(self, key, tokens, segments):
        return jax.vmap(self.draw)(jax.random.split(key, len(segments)), segments)


@dataclasses.dataclass(frozen=True)
class Randomized(Drawn):
    """`positions.randomized`: T of `maximum` positions, in order, in training and in tests."""

    maximum: int = int_field(2048, 1)

    in_tests = True

    def bound(self, length, testing=False):
        return self.maximum if length <= self.maximum else None

    def draw(self, key, segments):
        return pos.randomized(key, len(segments), self.maximum, segments)


@dataclasses.dataclass(frozen=True)
class Pose(Drawn):
    """`positions.pose`: pieces of each document skip ahead, below `maximum`, in training only."""

    maximum: int = int_field(2048, 1)
    chunks: int = int_field(2, 2)

    def bound(self, length, testing=False):
        if testing:
            return length
        return self.maximum if length <= self.maximum else None

    def draw(self, key, segments):
        return pos.pose(key, segments, self.maximum, self.chunks)


@dataclasses.dataclass(frozen=True)
class RandomFloats(Drawn):
    """`positions.random_floats` in training, `positions.evenly_spaced` in tests.

    `trained_length` is that of the longest document in training: above it, tests would keep to the
    beginning of the range.
    """

    trained_length: int = int_field(512, 1)
    maximum: float = 512.0

    real = True
    in_tests = True

    def __post_init__(self):
        pos.check_range(self.maximum)

    def bound(self, length, testing=False):
        return math.ceil(self.maximum)

    def check_trained_on(self, length, spec):
        trained = self.trained_length
        fix = f"no document has trained_length={trained} tokens; pass at most length={length}"
        require(trained <= length, "positions", spec, fix)

    def draw(self, key, segments):
        return pos.random_floats(key, len(segments), self.maximum, segments)

    def test_positions(self, key, tokens, segments):
        return pos.evenly_spaced(segments, self.trained_length, self.maximum)


@dataclasses.dataclass(frozen=True)
class Shape(Drawn):
    """`positions.shifted`: one shift of up to `maximum` per row, in training only."""

    maximum: int = int_field(500, 0)

    def bound(self, length, testing=False):
        return length + (0 if testing else self.maximum)

    def draw(self, key, segments):
        return pos.shifted(key, pos.per_segment(segments), self.maximum)


@dataclasses.dataclass(frozen=True)
class Cape(Drawn):
    """`positions.cape`: shifts and a scale, in training only; for schemes that take float32."""

    global_shift: float = 5.0
    local_shift: float = 0.5
    scaling: float = 1.03

    real = True

    def __post_init__(self):
        pos.check_cape(**dataclasses.asdict(self))

    def bound(self, length, testing=False):
        shifts = 0 if testing else self.global_shift + self.local_shift
        return math.floor((length - 1 + shifts) * (1 if testing else self.scaling)) + 1

    def draw(self, key, segments):
        return pos.cape(key, pos.per_segment(segments), **dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Bilevel(Contiguous):
    """`positions.bilevel`, in training and in tests; bytes 46 and 10 end a sentence, a line."""

    separators: tuple[int, ...] = (46, 10)
    longest: int | None = None

    axes = 2
    in_tests = True

    def __post_init__(self):
        pos.check_bilevel(self.separators, self.longest)

    def bound(self, length, testing=False):
        return self.longest or length  # without `longest`, a row may be a single piece

    def training_positions(self, key, tokens, segments):
        return pos.bilevel(tokens, self.separators, segments, self.longest)


SCHEMES = {
    "contiguous": Contiguous,
    "randomized": Randomized,
    "pose": Pose,
    "random_floats": RandomFloats,
    "shape": Shape,
    "cape": Cape,
    "bilevel": Bilevel,
}


def position_limit(pattern: tuple[Encoding, ...]) -> int | None:
    """The first position that the encodings do not define, on any axis; None if they define all."""
    return min((n for e in pattern if (n := e.limit()) is not None), default=None)


def parse(spec: str) -> Contiguous:
    """Reads `randomized(maximum=2048)`: a name, and fields that are literals.

    Raises:
      ConfigError: a spec that cannot be read, an unknown name or field (naming the nearest), or a
        value out of range.
    """
    try:
        name, fields = specs.parse_call(spec)
        return specs.build("scheme", SCHEMES, name, fields)
    except ValueError as error:
        raise ConfigError(f"positions={spec!r}: {error}") from error


def choose(spec: str, pattern: tuple[Encoding, ...]) -> Contiguous:
    """The scheme of a spec, checked against the encodings; contiguous if all of them are NoPE.

    Raises:
      ConfigError: as `parse`; an encoding with another number of axes, or that takes only integers.
    """
    scheme = parse(spec)
    pattern = tuple(without_window(pattern[n]) for n in attention_layers(pattern))
    if all(type(encoding) is Encoding for encoding in pattern):
        return Contiguous()
    for encoding in pattern:
        name = type(encoding).__name__
        if encoding.claims.axes != scheme.axes:
            settable = f"pass {name}(axes={scheme.axes}); " if "axes" in vars(encoding) else ""
            raise ConfigError(
                f"positions={spec!r}: gives positions of {scheme.axes} axes, {name} takes"
                f" {encoding.claims.axes}: {settable}bipe needs bilevel(separators=…), images"
                " configs/images.py"
            )
        fix = f"gives float32, {name} takes integers; use another encoding"
        require(encoding.claims.real_positions or not scheme.real, "positions", spec, fix)
    return scheme
