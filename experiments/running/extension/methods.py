"""Encodings instead of the RoPE of a trained run, by layer, from a spec with names in braces."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from experiments.running.configs.extend import ExtendConfig
from experiments.running.files.run_names import short_names
from pe_jax.encodings import Encoding, Sum
from pe_jax.encodings.base import Dims, abstract_terms, adds_to_input
from pe_jax.encodings.lerope import LeRoPE
from pe_jax.encodings.registry import Spec
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.terms import Rotation
from pe_jax.encodings.windowed import Windowed, without_window
from pe_jax.training.config import Config
from pe_jax.validation import ConfigError


def placeholders(
    rope: RoPE, config: ExtendConfig, base: Config, searched: Sequence[float] | None
) -> dict[str, Any]:
    """The values of the names in braces that `ExtendConfig` lists, for one layer of a run."""
    window = max(base.length // 2, 1)
    beyond_window = config.factor * base.length - window
    ones = (1.0,) * rope.frequencies(base.model.dims.head_dim).size
    return {
        "factor": config.factor,
        "length": base.length,
        "window": window,
        "group": math.ceil(beyond_window / max(base.length - window, 1)),
        "chunk": max(base.length * 3 // 4, 2),
        "local": max(base.length // 16, 1),
        "ones": ones,
        "searched": searched or ones,
    }


def replacement(spec: Spec, rope: RoPE, dims: Dims) -> Encoding:
    """The encoding instead of `rope`: fields that the spec leaves at their defaults are its.

    It is `Windowed` where the spec has a window or chunks.

    Raises:
      ConfigError: the spec cannot be read, or adds anything but rotations.
    """
    layer, *more = spec.layers
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
    parts = [part for layer in Spec(pattern).layers for part in parts_of(without_window(layer))]
    return not any(isinstance(part, RoPE) for part in parts)


def extended(
    spec: str, config: ExtendConfig, base: Config, searched: Sequence[float] | None = None
) -> Spec:
    """The run's encodings, all layers, with the method instead of each RoPE.

    A layer keeps its window or chunks, unless the method has its own.
    """

    def extend(layer: Encoding) -> Encoding:
        rope = without_window(layer)
        if not isinstance(rope, RoPE):
            return layer
        filled = Spec(spec).filled(**placeholders(rope, config, base, searched))
        return _in_layer(layer, replacement(filled, rope, base.model.dims))

    return Spec.of([extend(layer) for layer in Spec(base.model.encoding).layers])


def names(config: ExtendConfig) -> dict[str, str]:
    """Short name → spec; `rope` alone is the unchanged model."""
    short = short_names(["rope", *config.encodings])
    return {short[spec]: spec for spec in config.encodings}
