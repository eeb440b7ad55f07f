"""Encodings instead of the RoPE of a trained run, by layer, from a spec with names in braces."""

import dataclasses
import math
from typing import NamedTuple

from experiments.running.configs.extend import ExtendConfig
from experiments.running.run_names import short_names
from pe_jax.encodings import Encoding, Sum, parse
from pe_jax.encodings.base import Dims, abstract_terms, adds_to_input
from pe_jax.encodings.lerope import LeRoPE
from pe_jax.encodings.registry import format_encoding
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.terms import Rotation
from pe_jax.encodings.windowed import Windowed, without_window
from pe_jax.training.config import Config
from pe_jax.validation import ConfigError


class Placeholders(NamedTuple):
    """Values of the names in braces in the encodings of a config, for one layer's RoPE.

    Attributes:
      factor: the target length over the trained length.
      length: the trained length.
      window: half of the trained length.
      group: the least group with which Self-Extend, with that window, reaches the target.
      chunk: three quarters of the trained length, dual chunk attention's chunk size.
      local: a sixteenth of it, at least 1, its local size.
      ones: one 1.0 per frequency.
      searched: the factors of LongRoPE's search; ones before it.
    """

    factor: float
    length: int
    window: int
    group: int
    chunk: int
    local: int
    ones: tuple[float, ...]
    searched: tuple[float, ...]

    @classmethod
    def of(
        cls, rope: RoPE, config: ExtendConfig, base: Config, searched: tuple[float, ...] | None
    ) -> "Placeholders":
        """The values for a layer of a trained run."""
        window = max(base.length // 2, 1)
        beyond_window = config.factor * base.length - window
        group = math.ceil(beyond_window / max(base.length - window, 1))
        ones = (1.0,) * rope.frequencies(base.model.dims.head_dim).size
        chunk, local = max(base.length * 3 // 4, 2), max(base.length // 16, 1)
        sizes = config.factor, base.length, window, group, chunk, local
        return cls(*sizes, ones, searched or ones)

    def fill(self, spec: str) -> str:
        """The spec with the values filled in."""
        for name, value in self._asdict().items():
            spec = spec.replace(f"{{{name}}}", repr(value))
        return spec


def replacement(spec: str, rope: RoPE, placeholders: Placeholders, dims: Dims) -> Encoding:
    """The encoding instead of `rope`: fields that the spec leaves at their defaults are its.

    It is `Windowed` where the spec has a window or chunks.

    Raises:
      ConfigError: the spec cannot be read, or adds anything but rotations.
    """
    spec = placeholders.fill(spec)
    layer, *more = parse(spec)
    encoding = without_window(layer)
    rotates = all(isinstance(term, Rotation) for term in abstract_terms(encoding, dims))
    if more or not rotates or adds_to_input(encoding, dims):
        fix = "pass nope or what rotates, as rope(…), dual_chunk(…) or rope+temperature"
        raise ConfigError(f"encodings: {spec!r} is not for a trained RoPE; {fix}")
    keeps = any(isinstance(part, LeRoPE) for part in parts_of(encoding))
    if isinstance(rope, LeRoPE) and not keeps:
        fix = "the run's frequencies are learned; pass lerope(…)"
        raise ConfigError(f"encodings: {spec!r} drops parameters: {fix}")
    parts = [
        _with_fields_of(rope, part) if isinstance(part, RoPE) else part
        for part in parts_of(encoding)
    ]
    return _in_layer(layer, parts[0] if len(parts) == 1 else Sum(tuple(parts)))


def _in_layer(layer: Encoding, new: Encoding) -> Encoding:
    """The new encoding with the window or chunks of a layer, unless it has its own."""
    own = isinstance(new, Windowed) or not isinstance(layer, Windowed)
    return new if own else dataclasses.replace(layer, encoding=new)


def _with_fields_of(rope: RoPE, part: RoPE) -> RoPE:
    """The part with RoPE's fields, where it has their defaults, from `rope`."""
    fields = dataclasses.fields(RoPE)
    unset = [f.name for f in fields if getattr(part, f.name) == f.default]
    return dataclasses.replace(part, **{name: getattr(rope, name) for name in unset})


def parts_of(encoding: Encoding) -> tuple[Encoding, ...]:
    """The parts of a sum, or the encoding alone."""
    return encoding.parts if isinstance(encoding, Sum) else (encoding,)


def drops_rope(pattern: str) -> bool:
    """Whether no layer has RoPE any more: DroPE (Gelberg et al., arXiv 2512.12167)."""
    parts = [part for layer in parse(pattern) for part in parts_of(without_window(layer))]
    return not any(isinstance(part, RoPE) for part in parts)


def extended(
    spec: str, config: ExtendConfig, base: Config, searched: tuple[float, ...] | None = None
) -> str:
    """The run's encodings, all layers, with the method instead of each RoPE.

    A layer keeps its window or chunks, unless the method has its own.
    """

    def extend(layer: Encoding) -> Encoding:
        rope = without_window(layer)
        if not isinstance(rope, RoPE):
            return layer
        values = Placeholders.of(rope, config, base, searched)
        return _in_layer(layer, replacement(spec, rope, values, base.model.dims))

    return ",".join(format_encoding(extend(layer)) for layer in parse(base.model.encoding))


def names(config: ExtendConfig) -> dict[str, str]:
    """Short name → spec; `rope` alone is the unchanged model."""
    short = short_names(["rope", *config.encodings])
    return {short[spec]: spec for spec in config.encodings}
