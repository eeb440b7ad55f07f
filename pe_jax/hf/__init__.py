"""Hugging Face configs as patterns of our encodings, and back; no transformers is needed.

    layers = pe_jax.hf.encodings(config)        # a config of transformers 4 or 5, or its dict
    layers[0].encoding, layers[0].window        # what `pe_jax.attention` takes, layer by layer
    pe_jax.hf.pattern(layers)                   # "rope*3,nope"
    pe_jax.hf.to_hf(layers, "smollm3")          # the keys that were read
    pe_jax.hf.params(config, state, layer=3)    # the position weights of a state dict, as `Params`

`families` lists the model types. What is not understood is an error that names the key: a partial
rotation is never read as a full one. Where a config says something that transformers leaves unread
(`rotary_dim` of MiniMax, `partial_rotary_factor` of Llama, `alibi_bias_max` of MPT), the config is
believed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pe_jax.encodings.base import Params
from pe_jax.hf import parents, weights
from pe_jax.hf.families import FAMILIES, NEAREST
from pe_jax.hf.keys import LAYERS, Keys
from pe_jax.hf.layers import Family, LayerEncoding, checked, pattern
from pe_jax.validation import is_int, nearest, require, shown

__all__ = ["FAMILIES", "LayerEncoding", "encodings", "params", "pattern", "to_hf"]

VISION = {  # of Qwen2-VL and 2.5-VL, whose parts for images say no type
    "qwen2_vl_vision": {"depth", "embed_dim", "spatial_merge_size"},
    "qwen2_5_vl_vision": {"depth", "fullatt_block_indexes", "spatial_merge_size"},
}
OWN_MASKS = ("gpt_neo", "openai-gpt", "xlnet")  # which leave `is_causal` unread


def encodings(config: Any, like: str | None = None) -> tuple[LayerEncoding, ...]:
    """The encoding of each layer as a Hugging Face config describes it.

    Args:
      config: an object with `to_dict()`, or the dict (a `config.json`), of transformers 4 or 5. Of
        one with a part for text, that part is read: pass `config.vision_config` for the other.
      like: read it as a config of this model type, whatever its own is.

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
        raise ValueError(_one_line(error)) from None


def to_hf(layers: Sequence[LayerEncoding], model_type: str) -> dict[str, Any]:
    """The keys of a config (transformers 5) of this type from which `encodings` reads these layers.

    Sizes that positions do not depend on are left out, as width and number of heads.

    Args:
      layers: all of the model's.
      model_type: as in configs: "llama".

    Raises:
      ValueError: an unknown type; what its configs cannot say.
      TypeError: an argument that is not a sequence of `LayerEncoding`.
    """
    try:
        family, layers = _family(model_type), checked(layers)
        if not layers:
            raise ValueError("layers=(): pass at least one")
        both = any(map(_sees_ahead, layers)) and not family.bidirectional
        own = [_one_way(layer) for layer in layers] if both else layers
        config = {"model_type": model_type, **family.write(own)}
        config |= {"is_causal": False} if both else {}
        if not family.checked:
            return config
        widths = {"hidden_size": layers[0].head_dim, "num_attention_heads": 1}
        again = _read({**widths, **config})
        for index, (layer, other) in enumerate(zip(layers, again, strict=True)):
            if layer != other:
                raise ValueError(f"layer {index}: {model_type!r} would be read as {shown(other)}")
    except ValueError as error:
        raise ValueError(_one_line(error)) from None
    return config


def params(config: Any, state: Mapping[str, Any], layer: int = 0) -> Params:
    """The position weights of a released model, as `pe_jax.attention` takes them.

    Args:
      config: as for `encodings`.
      state: arrays by name, those of PyTorch on the CPU or as NumPy has them, of a whole model or
        of its stack of layers: `model.state_dict()`, the tensors of a file.
      layer: which one, counted as by `encodings`.

    Returns:
      Float32 arrays; nothing for rotations, ALiBi and sinusoids. DeBERTa's table is one column
      wider than the model: call `attention` with `dims` of that width.

    Raises:
      ValueError: what `encodings` raises; a layer that is not there or has no attention; names
        that are missing, more than one, or not known here.
      TypeError: `state` is not a mapping from names to arrays.
    """
    settings = _as_dict(config)
    layers = encodings(settings)
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise TypeError(f"state={shown(state)}: pass arrays by name, as model.state_dict()")
    ok = is_int(layer, 0) and layer < len(layers)
    require(ok, "layer", layer, f"the model has {len(layers)}")
    own = layers[layer]
    require(own.encoding is not None, "layer", layer, "it has no attention")
    index, count = (sum(x.stack == own.stack for x in some) for some in (layers[:layer], layers))
    return weights.load(own, index, count, _text(settings), state)


def _as_dict(config: Any) -> dict[str, Any]:
    dictionary = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(dictionary, Mapping):
        raise TypeError(f"config={shown(config)}: pass a config or its dict")
    if dictionary is config:
        return dict(config)
    inner = {name: getattr(config, name, None) for name in parents.TEXT}
    inner = {name: part for name, part in inner.items() if part is not None}
    return {"per_layer_config": None, **dictionary, **inner}  # an object leaves out what is None


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return parents.text(config, _as_dict, FAMILIES)


def _read(config: Mapping[str, Any], like: str | None = None) -> tuple[LayerEncoding, ...]:
    parent, vision, config = config, config.get("vision_config"), _text(config)
    also = () if parent is config else (parents.ALSO.get(str(parent.get("model_type"))),)
    if also == ("bidirectional_prefix",):  # this is how the parent says it
        config = {k: v for k, v in config.items() if k != "use_bidirectional_attention"}
    kinds = [kind for kind, names in VISION.items() if names <= config.keys()]
    model_type = config.get("model_type") or next(iter(kinds), None)
    model_type = model_type if like is None else like
    family: Any = _family(model_type, config)
    rate = None if vision is None else _as_dict(vision).get("tokens_per_second")
    if rate is not None and getattr(family, "sections", None):  # of the positions in the text
        config = {**config, "tokens_per_second": rate}
    keys = Keys(str(model_type), config)
    if keys.drafts() and getattr(family, "sections", ()) is None:
        own = keys.mapping("rope_scaling") or keys.mapping("rope_parameters") or {}
        if own.get("mrope_section") is not None:  # of the model that it drafts for
            order = own.get("mrope_interleaved") is True
            family = dataclasses.replace(family, sections=(1, 1, 1), interleaved=order)
    layers = family.read(keys)
    causal = keys.flag("is_causal", default=True) or model_type in OWN_MASKS
    fix = "what this family's layers see of later tokens is not read here"
    require(causal or family.both_ways, "is_causal", causal, fix)
    keys.check_rest()
    layers = layers if causal else map(_both_ways, layers)
    if also and also[0]:
        layers = [dataclasses.replace(x, also=x.also + also) if x.encoding else x for x in layers]
    return tuple(layers)


def _both_ways(layer: LayerEncoding) -> LayerEncoding:
    """As `is_causal: false` changes a decoder's layer; a window counts besides the query's own."""
    if not layer.causal or layer.chunk is not None or layer.encoding is None:
        return layer
    window = None if layer.window is None else layer.window + 1
    return dataclasses.replace(layer, causal=False, window=window)


def _one_way(layer: LayerEncoding) -> LayerEncoding:
    """What `_both_ways` made this layer of."""
    window = None if layer.window is None else layer.window - 1
    return dataclasses.replace(layer, causal=True, window=window) if _sees_ahead(layer) else layer


def _sees_ahead(layer: LayerEncoding) -> bool:
    return layer.stack == "decoder" and not layer.causal and layer.encoding is not None


def _family(model_type: Any, config: Mapping[str, Any] | None = None) -> Family:
    """Of that name; the config is for the suggestion where there is none."""
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
    """The family that reads all of a config's keys of positions, and most of the others."""
    found: dict[str, int] = {}
    for kind, family in FAMILIES.items() if not config.keys().isdisjoint(LAYERS) else ():
        keys = Keys(kind, config)
        try:
            family.read(keys)
            keys.check_rest()
        except ValueError:
            continue
        found[kind] = sum(config.get(name) is not None for name in keys.known)
    return max(found, key=lambda kind: found[kind], default="")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) < 500 else f"{text[:450]} … {text[-40:]}"
