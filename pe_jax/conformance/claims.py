"""What a config says of a model's positions, as the probes need it.

Properties come from the terms of each layer's encoding: no scheme is known by name. T tokens.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pe_jax import hf
from pe_jax.encodings.base import Dims, Encoding, abstract_terms, adds_to_input
from pe_jax.encodings.registry import parse
from pe_jax.encodings.rope import frequencies
from pe_jax.encodings.terms import Rotation, Scale, Sink, is_absolute, select
from pe_jax.encodings.windowed import Windowed
from pe_jax.hf.layers import LayerEncoding, rotation_of
from pe_jax.validation import refuse

# These keep a relative scheme relative, whatever their values; of other extras nothing is claimed.
HARMLESS = {
    **{"qk_norm": False, "clip_qkv": None, "key_multiplier": 1.0, "qk_scale_factor": 1.0},
    **{"value_norm": False, "output_gate": False, "scaled_latents": False, "mirrored": False},
    **{"text_only": False, "bidirectional": ""},
}


@dataclasses.dataclass(frozen=True)
class Declared:
    """The claims of a config."""

    layers: tuple[LayerEncoding, ...] = ()  # one entry per layer of the decoder
    first_tokens: tuple[int, ...] = ()  # how many first tokens each layer sees beyond its window
    # every layer is softmax attention without extras that positions could hide behind
    plain: bool = False
    absolute: bool = False  # something is added to the input by position
    relative: bool = False  # within a layer the distance alone counts
    sharpened: bool = False  # queries have a factor by position, which is not learned
    # positions are rotated by or looked up, so that `positions` must change something
    reads: bool = False
    # nothing depends on positions, so that `positions` must change nothing
    positionless: bool = False
    sink: bool = False  # rows have a sink
    # q and k are normalised; where that comes after the rotation, a shift shows
    normalised: bool = False
    rotations: tuple[tuple[Any, int], ...] = ()  # what rotates, with the head's width
    only: bool = False  # and nothing else depends on positions
    # length from which on frequencies depend on the length; None: they do not
    limit: int | None = None

    def visible(self, length: int) -> list[np.ndarray]:
        """What the states after each layer may depend on: bool [T, T], of a token and another."""
        distance = np.arange(length)[:, None] - np.arange(length)
        seen, reached = [], np.eye(length, dtype=bool)
        for layer, first in zip(self.layers, self.first_tokens, strict=True):
            own = distance >= 0 if layer.causal else np.ones_like(distance, bool)
            near = np.abs(distance) < (layer.window or length)
            chunk = np.arange(length) // (layer.chunk or length)
            own &= (near | (np.arange(length) < first)) & (chunk[:, None] == chunk)
            reached = own @ reached
            seen.append(reached)
        return seen


NOTHING = Declared()


def declared(config: Any, head_dim: int | None) -> Declared:
    """The claims of a config, of layers, or of encodings; None claims nothing, of no layer.

    Raises:
      ValueError: a config that `pe_jax.hf.encodings` refuses; encodings without `head_dim`.
      TypeError: none of these.
    """
    if config is None:
        return NOTHING
    both = _layers(config, head_dim)
    decoder = [x for x in both if x[0].stack == "decoder"]
    layers, first_tokens = zip(*(decoder or both), strict=True)
    some = [(x, x.encoding) for x in layers if x.encoding is not None]
    dims = [Dims(4 * x.head_dim, 4, 4, x.head_dim) for x, _ in some]
    terms = [abstract_terms(e, d) for (_, e), d in zip(some, dims, strict=True)]
    bound = [e.claims.absolute_rotation for _, e in some]
    rotations = [(r, x.head_dim) for x, _ in some if (r := rotation_of(x)) is not None]
    waiting = [r.scaling for r, _ in rotations if r.valid_length() == 0]
    kinds = [term for layer in terms for term in layer]
    extras = [dataclasses.replace(x.extras, **HARMLESS) for x in layers]
    adds = any(adds_to_input(e, d) for (_, e), d in zip(some, dims, strict=True))
    learned = any(x.extras.learned_positions or x.extras.conv_positions for x in layers)
    return Declared(
        layers=layers,
        first_tokens=first_tokens,
        plain=len(some) == len(layers) and all(x == hf.Extras() for x in extras),
        absolute=adds or learned,
        relative=not any(map(is_absolute, terms, bound)),
        sharpened=any(b and not jax.tree.leaves(t) for b, t in zip(bound, terms, strict=True)),
        reads=bool(select(tuple(kinds), Rotation)) or adds,
        positionless=not (adds or learned or any(bound))
        and all(isinstance(t, Sink | Scale) for t in kinds),
        sink=bool(select(tuple(kinds), Sink)),
        normalised=any(x.extras.qk_norm for x in layers),
        rotations=tuple(dict.fromkeys(rotations)),
        only=bool(rotations) and all(isinstance(t, Rotation | Sink) for t in kinds),
        limit=min((getattr(s, "original_length", None) or 1 for s in waiting), default=None),
    )


def _layers(config: Any, head_dim: int | None) -> list[tuple[LayerEncoding, int]]:
    """The layers, and how many first tokens each sees beyond its window."""
    config = parse(config) if isinstance(config, str) else config
    config = (config,) if isinstance(config, Encoding | LayerEncoding) else config
    config = config if isinstance(config, Sequence) else hf.encodings(config)
    if all(isinstance(x, LayerEncoding) for x in config):
        return [(x, 0) for x in config]
    if not all(isinstance(x, Encoding) for x in config):
        raise TypeError("config: pass a Hugging Face config or its dict, or encodings")
    if head_dim is None:
        refuse("head_dim", head_dim, "encodings do not say it; pass the width of a head")
    own = [x if isinstance(x, Windowed) else Windowed(x) for x in config]
    parts = [(x.encoding, head_dim, x.window, x.chunk) for x in own]
    return [(LayerEncoding(*part), x.sinks) for part, x in zip(parts, own, strict=True)]


def spectrum(rotation: Any, head_dim: int, length: int) -> np.ndarray:
    """The frequencies of a rotation in texts of `length` tokens: float64 [F]."""
    rotation = rotation.at_length(length)
    size = rotation.rotary_dim(head_dim)
    return np.asarray(frequencies(size, rotation.base, rotation.scaling), np.float64)
