"""Encodings instead of the RoPE of a trained model, by layer, from a spec with names in braces."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.running.configs.extend import ExtendConfig
from experiments.running.files.run_names import short_names
from pe_jax.encodings import Encoding
from pe_jax.encodings.base import Recurrent, abstract_terms, adds_to_input
from pe_jax.encodings.lerope import LeRoPE
from pe_jax.encodings.registry import Spec, shortest
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.sums import parts_of
from pe_jax.encodings.terms import Rotation
from pe_jax.encodings.windowed import Windowed, without_window
from pe_jax.models import surgery
from pe_jax.models.config import ModelConfig
from pe_jax.validation import ConfigError


class Trained(NamedTuple):
    """What a method is applied to.

    Attributes:
      model: its layers.
      length: that it was trained on.
      factor: the target length over that.
      released: whether it is a released model. There a method may be a pattern over layers, and
        leaves alone those with a window within the trained length, which see nothing new.
    """

    model: ModelConfig
    length: int
    factor: float
    released: bool = False

    def extends(self, layer: Encoding) -> bool:
        """Whether methods replace the RoPE of this layer."""
        near = isinstance(layer, Windowed) and layer.span is not None and layer.span <= self.length
        return isinstance(without_window(layer), RoPE) and not (self.released and near)

    @property
    def rope(self) -> RoPE:
        """The RoPE of the first layer that is extended."""
        layers = Spec(self.model.encoding).layers
        rope: Any = without_window(next(layer for layer in layers if self.extends(layer)))
        return rope

    @property
    def target(self) -> int:
        """The target length, in tokens."""
        return round(self.factor * self.length)


def placeholders(
    rope: RoPE, trained: Trained, searched: Sequence[float] | None = None
) -> dict[str, Any]:
    """The values of the names in braces that the configs list, for one layer."""
    length = trained.length
    window = max(length // 2, 1)
    beyond_window = trained.factor * length - window
    ones = (1.0,) * rope.frequencies(trained.model.dims.head_dim).size
    return {
        "factor": trained.factor,
        "length": length,
        "window": window,
        "group": math.ceil(beyond_window / max(length - window, 1)),
        "chunk": max(length * 3 // 4, 2),
        "local": max(length // 16, 1),
        "larger_base": 10 * rope.base,
        "ones": ones,
        "searched": searched or ones,
    }


def replacement(spec: Spec, index: int, rope: RoPE, trained: Trained) -> Encoding:
    """The encoding instead of `rope` in a layer: fields that the spec leaves at defaults are its.

    It is `Windowed` where the spec has a window or chunks.

    Raises:
      ConfigError: the spec cannot be read, or adds anything but rotations.
    """
    layer, dims = spec.layers[index % len(spec.layers)], trained.model.dims
    encoding = without_window(layer)
    rotates = not isinstance(encoding, Recurrent) and all(
        isinstance(term, Rotation) for term in abstract_terms(encoding, dims)
    )
    is_pattern = len(spec.layers) > 1 and not trained.released
    if is_pattern or not rotates or adds_to_input(encoding, dims):
        fix = "pass nope or what rotates, as rope(…), dual_chunk(…) or rope+temperature"
        raise ConfigError(f"encodings: {spec!r} is not for a trained RoPE; {fix}")
    surgery.require_same_heads(trained.model, rope, encoding)
    keeps = any(isinstance(part, LeRoPE) for part in parts_of(encoding))
    if isinstance(rope, LeRoPE) and not keeps:
        fix = "the run's frequencies are learned; pass lerope(…)"
        raise ConfigError(f"encodings: {spec!r} drops parameters: {fix}")
    return surgery.with_fields_of(rope, layer)


def drops_rope(pattern: str) -> bool:
    """Whether no layer has RoPE any more: DroPE (Gelberg et al., arXiv 2512.12167)."""
    parts = [part for layer in Spec(pattern).layers for part in parts_of(without_window(layer))]
    return not any(isinstance(part, RoPE) for part in parts)


def extended(spec: str, trained: Trained, searched: Sequence[float] | None = None) -> Spec:
    """The model's encodings, in the shortest pattern, with the method instead of each RoPE.

    A layer keeps its window or chunks, unless the method has its own.
    """

    def extend(index: int, layer: Encoding) -> Encoding:
        if not trained.extends(layer):
            return layer
        rope: Any = without_window(layer)
        filled = Spec(spec).filled(**placeholders(rope, trained, searched))
        return surgery.in_layer(layer, replacement(filled, index, rope, trained))

    layers = Spec(trained.model.encoding).layers
    if trained.released:  # a method's pattern need not fit the model's
        layers = layers * (trained.model.layers // len(layers))
    layers = [extend(index, layer) for index, layer in enumerate(layers)]
    return Spec.of(shortest(layers) if trained.released else layers)


def filled(spec: str, trained: Trained) -> Spec:
    """The spec with the values of the first layer that is extended, in place of names in braces."""
    return Spec(spec).filled(**placeholders(trained.rope, trained))


def names(config: ExtendConfig) -> dict[str, str]:
    """Short name → spec; `rope` alone is the unchanged model."""
    short = short_names(["rope", *config.encodings])
    return {short[spec]: spec for spec in config.encodings}
