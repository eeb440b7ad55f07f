"""Checks of settings: errors that name the field, its value and what would be right."""

import difflib
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np


class ConfigError(ValueError):
    """What the user can put right: a setting, a file, a folder. Programs show it on one line.

    Other ValueErrors are faults of the code, and keep their traceback.
    """


def shown(value: Any, width: int = 160) -> str:
    """`repr(value)` on one line; what is longer than `width` loses its middle."""
    text = " ".join(repr(value).split())
    return text if len(text) <= width else f"{text[: width - 20]} … {text[-15:]}"


def require(ok: bool, field: str, value: Any, fix: str) -> None:
    """Raises ConfigError naming the field, its value and what would be right."""
    if not ok:
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


def set_tuple(owner: Any, field: str) -> None:
    """Makes a tuple of Python's numbers of a list or an array in a field of a frozen dataclass."""
    value = getattr(owner, field)
    if isinstance(value, list | np.ndarray):
        object.__setattr__(owner, field, tuple(np.asarray(value).tolist()))


def require_bool(field: str, value: Any) -> None:
    """Raises ConfigError unless `value` is True or False: a string such as "no" is truthy."""
    require(isinstance(value, bool), field, value, "pass True or False")


def require_stddev(value: Any, field: str = "stddev") -> None:
    """Raises ConfigError unless `value` is a standard deviation: a finite number of at least 0."""
    require(is_real(value) and value >= 0, field, value, "pass >= 0")


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
