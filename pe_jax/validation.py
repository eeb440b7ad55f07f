"""Checks of settings: errors that name the field, its value and what would be right."""

import dataclasses
import difflib
import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable)


class ConfigError(ValueError):
    """An error that the user can fix: a setting, a file, a folder. Programs show it on one line.

    Other ValueErrors are faults of the code, and keep their traceback.
    """


def shown(value: Any, width: int = 160) -> str:
    """`repr(value)` on one line; what is longer than `width` loses its middle."""
    text = " ".join(repr(value).split())
    return text if len(text) <= width else f"{text[: width - 20]} … {text[-15:]}"


def require(ok: bool, field: str, value: Any, fix: str) -> None:
    """Raises ConfigError naming the field, its value and what would be right."""
    if not ok:
        refuse(field, value, fix)


def refuse(field: str, value: Any, fix: str) -> NoReturn:
    """The same where the check has failed, so that `fix` is written only then."""
    raise ConfigError(f"{field}={shown(value)}: {fix}")


def is_int(value: Any, low: int) -> bool:
    """Whether `value` is an integer, Python's or NumPy's (not a bool), of at least `low`."""
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return number and int(value) >= low


def is_real(value: Any) -> bool:
    """Whether `value` is a finite number, Python's or NumPy's (not a bool)."""
    value = value.item() if isinstance(value, np.generic) else value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max  # also for an integer too large to convert


def divisors(number: int) -> list[int]:
    """All numbers that divide this one, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


def plain(value: Any) -> Any:
    """Sequences as tuples, NumPy's numbers and arrays as Python's: hashable and serialisable."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


class PlainFields:
    """Base of frozen dataclasses: fields are made `plain`, and checked, before `__post_init__`.

    NumPy's integers overflow (8 · np.uint8(32) is 0), and specs and checkpoints cannot hold them.
    `config_fields` has the fields that say what is checked.
    """

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if check := cls.__dict__.get("__post_init__"):

            @functools.wraps(check)
            def plain_first(self):
                PlainFields.__post_init__(self)
                check(self)

            cls.__post_init__ = plain_first

    def __post_init__(self):
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value, check = plain(getattr(self, field.name)), field.metadata
            object.__setattr__(self, field.name, value)
            if "ok" in check:
                fix = check["fix"] if "fix" in check else f"pass {check['need']}"
                require(check["ok"](value), field.name, value, fix)


def python_ints(function: F) -> F:
    """The function, with Python's integers for NumPy's, which overflow, also within tuples."""

    def python(x: Any) -> Any:
        if type(x) in (tuple, list):
            return type(x)(map(python, x))
        return int(x) if isinstance(x, np.integer) else x

    @functools.wraps(function)
    def call(*args, **options):
        return function(*map(python, args), **{name: python(x) for name, x in options.items()})

    return call  # pyright: ignore[reportReturnType]


def require_bool(field: str, value: Any) -> None:
    """Raises ConfigError unless `value` is True or False: a string such as "no" is truthy."""
    if not isinstance(value, bool):
        refuse(field, value, "pass True or False")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.0) -> str:
    """The most similar of those that begin with `name`, else of all, for "did you mean".

    Args:
      name: what was given.
      known: what could have been meant.
      cutoff: similarity in [0, 1] below which nothing is suggested: "" then.
    """
    known = list(known)
    longer = [candidate for candidate in known if name and candidate.startswith(name)]
    matches = difflib.get_close_matches(name, longer or known, 1, 0.0 if longer else cutoff)
    return "".join(matches)
