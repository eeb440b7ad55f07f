"""Fields of configs and encodings: a default, and what a value must be in words and as a test.

Both are frozen dataclasses. The docstring of the class says what a field means; its range is given
here, once, for checks, error messages and `--help`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from pe_jax.validation import ConfigError, is_int, is_real, nearest, shown


def ranged(default: Any, need: str, ok: Callable[[Any], bool]) -> Any:
    """A field whose values must be `ok`; `need` says so in words."""
    return dataclasses.field(default=default, metadata={"need": need, "ok": ok})


def int_field(default: int, low: int) -> Any:
    """A field for integers of at least `low`."""
    return ranged(default, f"an integer of at least {low}", lambda v: is_int(v, low))


def real_field(default: float, low: float, high: float, open_low: bool = False) -> Any:
    """A field for numbers from `low` (exclusive if `open_low`) to `high`."""
    brackets = f"{'(' if open_low else '['}{low:g}, {high:g}]"
    above = (lambda v: v > low) if open_low else (lambda v: v >= low)
    return ranged(
        default, f"a number in {brackets}", lambda v: math.isfinite(v) and above(v) and v <= high
    )


def seed_field() -> Any:
    """A field for a seed, 0 by default."""
    return ranged(0, "an integer in [0, 2^31)", lambda v: is_int(v, 0) and v < 2**31)


def bool_field(default: bool) -> Any:
    """A field that is True or False: a string such as "no" would count as true."""
    return ranged(default, "true or false", lambda v: isinstance(v, bool))


def choice_field(default: str, choices: Iterable[str]) -> Any:
    """A field for one of a few names."""
    *most, last = choices
    known = (*most, last)
    need = f"{', '.join(most)} or {last}"
    return dataclasses.field(
        default=default, metadata={"need": need, "ok": known.__contains__, "choices": known}
    )


def checked(default: Any, fix: str, ok: Callable[[Any], bool]) -> Any:
    """A field of an encoding whose values must be `ok`; `fix` is what an error says to do."""
    return dataclasses.field(default=default, metadata={"fix": fix, "ok": ok})


REQUIRED: Any = dataclasses.MISSING  # as a default: there is none


def above_field(default: Any, low: float) -> Any:
    """A field for finite numbers above `low`."""
    return checked(default, f"pass a number above {low}", lambda v: is_real(v) and v > low)


def flag_field(default: bool) -> Any:
    """A field of an encoding that is True or False: a string such as "no" is truthy."""
    return checked(default, "pass True or False", lambda v: isinstance(v, bool))


def one_of_field(default: str, choices: tuple[str, ...]) -> Any:
    """A field of an encoding for one of a few names."""
    return checked(default, f"choose one of {choices}", choices.__contains__)


def stddev_field(default: float = 0.02) -> Any:
    """A field for the standard deviation of initial parameters."""
    return checked(default, "pass >= 0", lambda v: is_real(v) and v >= 0)


def different(values: Any) -> bool:
    """Whether there is at least one value and all are different."""
    return 0 < len(values) == len({*values})


def ascending(values: Any, low: int) -> bool:
    """Whether these are strictly ascending integers of at least `low`."""
    return all(is_int(n, low) for n in values) and list(values) == sorted({*values})


def check_fields(config: Any, path: str) -> None:
    """Raises ConfigError where a field of a config, or of a nested one, is out of range."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_fields(value, f"{path}{field.name}.")
        elif "ok" in field.metadata:
            try:
                ok = field.metadata["ok"](value)
            except (TypeError, ValueError, OverflowError):
                ok = False
            if not ok:
                fix = f"pass {field.metadata['need']}"
                if near := nearest(str(value), field.metadata.get("choices", ()), cutoff=0.4):
                    fix += f"; did you mean {near!r}?"
                raise ConfigError(f"{path}{field.name}={shown(value)}: {fix}")


def find(config: Any, path: str) -> dataclasses.Field | None:
    """The field at a dotted path such as `optimizer.warmup`; None if there is none."""
    *parents, name = path.split(".")
    for parent in parents:
        config = getattr(config, parent, None)
    fields = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
    return next((f for f in fields if f.name == name), None)


def paths(config: Any, prefix: str = "") -> list[str]:
    """The dotted paths of all leaf fields."""
    leaves = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        path = f"{prefix}{field.name}"
        leaves += paths(value, path + ".") if dataclasses.is_dataclass(value) else [path]
    return leaves
