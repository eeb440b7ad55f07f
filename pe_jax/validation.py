"""Checks of settings: ValueErrors that name the field, its value and what would be right."""

import sys
from typing import Any


def require(ok: bool, field: str, value: Any, fix: str) -> None:
    """Raises ValueError naming the field, its value and what would be right."""
    if not ok:
        raise ValueError(f"{field}={value!r}: {fix}")


def is_int(value: Any, low: int) -> bool:
    """Whether `value` is an integer (not a bool) of at least `low`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def is_real(value: Any) -> bool:
    """Whether `value` is a finite number (not a bool)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max  # also for an integer too large to convert


def require_bool(field: str, value: Any) -> None:
    """Raises ValueError unless `value` is True or False: "no" would count as True."""
    require(isinstance(value, bool), field, value, "pass True or False")
