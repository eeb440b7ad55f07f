"""Which encodings a baseline and a reference name; the first is the default."""

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar

from experiments.running import run_names

REFERENCES = ("baseline", "reference")  # fields of configs that name one of the encodings
AnyConfig = TypeVar("AnyConfig")


def with_references(config: AnyConfig, specs: Sequence[str]) -> AnyConfig:
    """The config with the specs of its baseline and reference instead of their names.

    Raises:
      ConfigError: one of them names none of the encodings.
    """
    references = {
        name: run_names.find(name, getattr(config, name), specs)
        for name in REFERENCES
        if hasattr(config, name)
    }
    return dataclasses.replace(config, **references)  # pyright: ignore[reportArgumentType]


def with_values(
    config: AnyConfig, given: Mapping[str, tuple[str, ...]], chosen: Container[str]
) -> AnyConfig:
    """The config with values of fields that are tuples.

    Where other encodings are given, a baseline or reference of the file that is not among
    them becomes the first, unless it was `chosen` on the command line too.
    """
    changed: Any = dataclasses.replace(config, **given)  # pyright: ignore[reportArgumentType]
    specs = changed.specs() if hasattr(changed, "specs") else given.get("encodings", ())
    valid = {*specs, *run_names.short_names(specs).values()}
    lost = [
        name
        for name in REFERENCES
        if "encodings" in given and name not in chosen and getattr(changed, name, "") not in valid
    ]
    return dataclasses.replace(changed, **{n: "" for n in lost if hasattr(changed, n)})
