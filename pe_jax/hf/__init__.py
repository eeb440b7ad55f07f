"""Hugging Face configs as patterns of our encodings; no transformers is needed.

    layers = pe_jax.hf.encodings(config)        # a config of transformers 4 or 5, or its dict
    layers[0].encoding, layers[0].window        # what `pe_jax.attention` takes, layer by layer
    pe_jax.hf.pattern(layers)                   # "rope*3,nope"
    pe_jax.hf.with_scaling(config, YaRN(4.0, 4096))  # the config of the extended model
    pe_jax.hf.params(config, state, layer=3)    # the position weights of a state dict, as `Params`

`families` lists the model types. A key that is not understood is an error that names it: a partial
rotation is never read as a full one. Where a config has a setting that transformers does not read
(`rotary_dim` of MiniMax, `partial_rotary_factor` of Llama, `alibi_bias_max` of MPT), it is read
here.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from pe_jax.encodings import rope_scaling
from pe_jax.encodings.base import Params
from pe_jax.encodings.mrope import MRoPE
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.scaling.base import Scaling
from pe_jax.encodings.sums import Sum
from pe_jax.hf import parents, weights
from pe_jax.hf.families import FAMILIES, NEAREST
from pe_jax.hf.keys import ACT_OFF, ELSEWHERE, LAYERS, LENGTHS, SUSPECT, TOWERS, Keys, concerned
from pe_jax.hf.layer_types import FULL
from pe_jax.hf.layers import Extras, Family, Indexer, LayerEncoding, pattern, rotation_of
from pe_jax.validation import is_int, nearest, require, shown

__all__ = ["FAMILIES", "Extras", "Indexer", "LayerEncoding"]
__all__ += ["encodings", "params", "pattern", "with_scaling"]

VISION = {  # of Qwen2-VL and 2.5-VL, whose vision configs have no model_type
    "qwen2_vl_vision": {"depth", "embed_dim", "spatial_merge_size"},
    "qwen2_5_vl_vision": {"depth", "fullatt_block_indexes", "spatial_merge_size"},
}
BESIDE = ("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor")
BESIDE_ONLY = re.compile(  # keys of what joins towers to the text, or detects objects
    r"token|depth|per_seconds$|^window_size$|^positional_\w+_temperature$"
    r"|^seconds_per_chunk$"
)
UNSCALED = ("mrope_section", "mrope_interleaved", "llama_4_scaling_beta")  # kept beside a scaling
OWN_MASKS = ("gpt_neo", "openai-gpt", "xlnet")  # these do not read `is_causal`


def encodings(config: Any, like: str | None = None) -> tuple[LayerEncoding, ...]:
    """The encoding of each layer as a Hugging Face config describes it.

    Args:
      config: an object with `to_dict()`, or the dict (a `config.json`), of transformers 4 or 5. If
        it has a text part, that part is read: pass `config.vision_config` for images.
      like: read it as a config of this model type, whatever type it has.

    Returns:
      One entry per layer; an encoder's before its decoder's.

    Raises:
      ValueError: an unknown model type; a key that is missing, out of range or not understood. One
        line below 500 characters, with the key and its value.
      TypeError: neither a dict nor an object with `to_dict()`.
    """
    try:
        return _read(_as_dict(config), like)
    except ValueError as error:
        text = " ".join(str(error).split())
        text = text if len(text) < 500 else f"{text[:450]} … {text[-40:]}"
        raise ValueError(text) from None


def with_scaling(config: Any, scaling: Scaling | None) -> dict[str, Any]:
    """The config with this scaling of RoPE in all layers that rotate, as a dict; None: unscaled.

    Where the layers without a window have settings of their own (Gemma 3), these alone are scaled.
    Its other keys stay, `max_position_embeddings` too, except where "dynamic" scales from it.

    Args:
      config: as for `encodings`.
      scaling: of `pe_jax.encodings.rope_scaling`.

    Raises:
      ValueError: what `encodings` raises; no layer rotates; a scaling that configs have no name
        for, or that the model's would not be read with (a scale of scores that follows it).
    """
    whole = _as_dict(config)
    part = next((name for name in parents.TEXT if whole.get(name) is not None), None)
    keys = whole if part is None else _as_dict(whole[part])
    by_type = isinstance((keys.get("rope_parameters") or {}).get(FULL), Mapping)
    layers = encodings(whole)
    apart = by_type or len({rotation.base for x in layers if (rotation := rotation_of(x))}) > 1
    scales = [bool(rotation_of(x)) and not (apart and x.window) for x in layers]
    if True not in scales:
        raise ValueError(f"model_type={shown(whole.get('model_type'))}: no layer has RoPE")

    family = FAMILIES.get(str(keys.get("model_type")))
    if getattr(family, "longrope", ()) and not isinstance(scaling, rope_scaling.LongRoPE | None):
        fix = "transformers reads no other scaling in such a model; pass a LongRoPE"
        raise ValueError(f"model_type={shown(keys['model_type'])}: {fix}")

    def scaled(layer: LayerEncoding) -> LayerEncoding:
        index = layer.indexer
        index = index and dataclasses.replace(index, encoding=_scaled(index.encoding, scaling))
        return dataclasses.replace(layer, encoding=_scaled(layer.encoding, scaling), indexer=index)

    wanted = [scaled(x) if scale else x for x, scale in zip(layers, scales, strict=True)]
    rotating = layers[scales.index(True)]
    rotation: Any = rotation_of(rotating)
    rope = RoPE(rotation.base, rotation.fraction, scaling=scaling)
    written = rope_scaling.to_hf(rope, head_dim=rotating.head_dim)
    name = "rope_scaling" if keys.get("rope_scaling") is not None else "rope_parameters"
    name = "rope_scaling" if apart and not by_type else name  # of the layers without a window
    old = keys.get(name) or {}
    old_layer = old[FULL] if by_type else old
    written = {**{key: old_layer[key] for key in UNSCALED if key in old_layer}, **written}
    keys = {**keys, name: {**old, FULL: written} if by_type else written}
    length = getattr(scaling, "original_length", None)
    if written["rope_type"] == "dynamic":
        keys["max_position_embeddings"] = length
    elif keys.get("original_max_position_embeddings") is not None:  # takes precedence
        keys["original_max_position_embeddings"] = length
    whole = keys if part is None else {**whole, part: keys}
    for index, (want, got) in enumerate(zip(wanted, encodings(whole), strict=True)):
        if got != want:
            fix = "write rope_parameters with pe_jax.encodings.rope_scaling.to_hf"
            raise ValueError(f"layer {index} would be read as {shown(got)}; {fix}")
    return whole


def _scaled(encoding: Any, scaling: Scaling | None) -> Any:
    if isinstance(encoding, Sum):
        return Sum(tuple(_scaled(part, scaling) for part in encoding.parts))
    rotates = isinstance(encoding, RoPE | MRoPE)
    return dataclasses.replace(encoding, scaling=scaling) if rotates else encoding


def params(
    config: Any, state: Mapping[str, Any], layer: int = 0, *, like: str | None = None
) -> Params:
    """The position weights of a released model, as `pe_jax.attention` takes them.

    Args:
      config: as for `encodings`.
      state: arrays by name, of PyTorch on the CPU or of NumPy, for a whole model or its stack of
        layers: `model.state_dict()`, the tensors of a file.
      layer: its index in the result of `encodings`.
      like: as for `encodings`.

    Returns:
      Float32 arrays; nothing for rotations, ALiBi and sinusoids. DeBERTa's table is one column
      wider than the model: call `attention` with `dims` of that width.

    Raises:
      ValueError: what `encodings` raises; a layer that does not exist or has no attention; names
        that are missing, ambiguous, or not known here.
      TypeError: `state` is not a mapping from names to arrays.
    """
    settings = _as_dict(config)
    layers = encodings(settings, like=like)
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise TypeError(f"state={shown(state)}: pass arrays by name, as model.state_dict()")
    ok = is_int(layer, 0) and layer < len(layers)
    require(ok, "layer", layer, f"the model has {len(layers)}")
    chosen = layers[layer]
    require(chosen.encoding is not None, "layer", layer, "it has no attention")
    index, count = (sum(x.stack == chosen.stack for x in some) for some in (layers[:layer], layers))
    return weights.load(chosen, index, count, _text(settings), state)


def _as_dict(config: Any) -> dict[str, Any]:
    dictionary = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(dictionary, Mapping):
        raise TypeError(f"config={shown(config)}: pass a config or its dict")
    if dictionary is config:
        return dict(config)
    inner = {name: getattr(config, name, None) for name in parents.TEXT}
    inner = {name: part for name, part in inner.items() if part is not None}
    return {"per_layer_config": None, **dictionary, **inner}  # to_dict() leaves out what is None


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return parents.text(config, _as_dict, FAMILIES)


def _read(config: Mapping[str, Any], like: str | None = None) -> tuple[LayerEncoding, ...]:
    parent, vision, text = config, config.get("vision_config"), _text(config)
    config = text
    parent_type = None if parent is config else parent.get("model_type")
    bidirectional = parents.BIDIRECTIONAL.get(str(parent_type), "")
    if bidirectional == "prefix":  # the parent's mask says it
        config = {k: v for k, v in config.items() if k != "use_bidirectional_attention"}
    vision_types = [x for x, names in VISION.items() if names <= config.keys()]
    model_type = config.get("model_type") or next(iter(vision_types), None)
    model_type = model_type if like is None else like
    family: Any = _family(model_type, config)
    rate = None if vision is None else _as_dict(vision).get("tokens_per_second")
    part = parent if parent.get("thinker_config") is None else _as_dict(parent["thinker_config"])
    rate = part.get("position_id_per_seconds") if rate is None else rate  # Qwen's Omni models
    if rate is not None and getattr(family, "sections", None):  # of the positions in the text
        config = {**config, "tokens_per_second": rate}
    beside = _check_beside(parent, text)
    keys = Keys(str(model_type), config)
    if keys.drafts() and getattr(family, "sections", ()) is None:
        parameters = keys.mapping("rope_scaling") or keys.mapping("rope_parameters") or {}
        if parameters.get("mrope_section") is not None:  # of the model that it drafts for
            order = parameters.get("mrope_interleaved") is True
            family = dataclasses.replace(family, sections=(1, 1, 1), interleaved=order)
    layers = family.read(keys)
    causal = keys.flag("is_causal", default=True) or model_type in OWN_MASKS
    fix = "whether this family's layers see later tokens is not read here"
    require(causal or family.both_ways, "is_causal", causal, fix)
    told = config.get("causal") is True and "causal" not in keys.known
    fix = "this family's layers see later tokens; its code on the Hub may read the key"
    require(not told or any(layer.causal for layer in layers), "causal", True, fix)
    keys.check_switches(any(rotation_of(layer) is not None for layer in layers))
    unread = (*keys.check_rest(), *beside)
    layers = layers if causal else map(_both_ways, layers)
    if unread:
        layers = [x.with_extras(unread=unread) if x.encoding is not None else x for x in layers]
    if bidirectional:
        layers = [x.with_extras(bidirectional=bidirectional) if x.encoding else x for x in layers]
    return tuple(layers)


def _check_beside(parent: Mapping[str, Any], text: Mapping[str, Any]) -> list[str]:
    """Raises ValueError if a config of several parts has keys of positions that its text lacks.

    Returns those of its other parts, but for those of other towers. What lies between the config
    and its text is a config of several parts as well.
    """
    inside = text.get("rope_parameters") or text.get("rope_scaling") or {}
    parts: list[str] = []
    for name, value in parent.items() if parent is not text else ():
        concerns = SUSPECT.search(name) or name in ("is_causal", "causal")
        read = text.get(name, inside.get(name))
        other = name in ELSEWHERE or TOWERS.search(name) or BESIDE_ONLY.search(name)
        if name in parents.TEXT and value is not None:
            parts += _check_beside(_as_dict(value), text)
        elif value != read and not concerns:
            parts += concerned(name, value)
        if value == read or not concerns or other:
            continue
        off = value in (None, {}, False) and not (value is False and ACT_OFF.search(name))
        off = off if name != "is_causal" else value in (None, True)
        off = off or (name == "position_embedding_type" and value == "sine")  # of a detector
        fix = f"it stands beside the part for text, which has {shown(read)} and is what is read"
        require(off, name, value, fix)
    return parts


def _both_ways(layer: LayerEncoding) -> LayerEncoding:
    """A decoder's layer under `is_causal: false`, where windows do not count the query's token."""
    if not layer.causal or layer.chunk is not None or layer.encoding is None:
        return layer
    window = None if layer.window is None else layer.window + 1
    return dataclasses.replace(layer, causal=False, window=window)


def _family(model_type: Any, config: Mapping[str, Any] | None = None) -> Family:
    """The family of that name; the config is for the suggestion if there is none."""
    if not isinstance(model_type, str) or not model_type:
        raise ValueError(f"model_type={shown(model_type)}: pass one, such as 'llama'")
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    if model_type in NEAREST:
        raise ValueError(f"model_type={model_type!r} is not read: {NEAREST[model_type]}")
    alike = _alike(config or {})
    if alike:
        hint = f"its keys are read like={alike!r}, if its attention is that model's"
    else:
        close = nearest(model_type[:40], FAMILIES, cutoff=0.8)
        hint = f"the nearest is {close}" if close else "see pe_jax.hf.FAMILIES for like="
    fix = "for its rotation alone, pe_jax.encodings.rope_scaling.from_hf"
    raise ValueError(f"model_type={shown(model_type)} is not known here; {hint}; {fix}")


def _alike(config: Mapping[str, Any]) -> str:
    """The family that reads all of a config's keys of positions, and most of the others.

    Of several the first of `FAMILIES`, the plainest; none whose defaults are one model's scaling.
    """
    counts: dict[str, int] = {}
    told = any(config.get(name) is not None for name in BESIDE)
    for model_type, family in FAMILIES.items() if not config.keys().isdisjoint(LAYERS) else ():
        keys = Keys(model_type, config)
        try:
            layers = family.read(keys)
            keys.check_rest()
        except ValueError:
            continue
        rotates = any(rotation_of(layer) is not None for layer in layers)
        if getattr(family, "parameters", None) or (told and not rotates):
            continue
        counts[model_type] = sum(
            config.get(name) is not None for name in {*keys.known} - {*LENGTHS}
        )
    return max(counts, key=lambda model_type: counts[model_type], default="")
