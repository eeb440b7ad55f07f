"""Writes the keys of models that rotate, which `rotary.Rotary` reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from pe_jax.encodings import rope_scaling
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.mrope import MRoPE
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.temperature import Temperature
from pe_jax.hf.kinds import (
    CHUNKED,
    FULL,
    INDEXED,
    LINEAR,
    SLIDING,
    Hybrid,
    Switch,
    conv_layers,
    lfm3_layers,
    listed_rope,
)
from pe_jax.hf.layers import Extras, LayerEncoding, parts
from pe_jax.validation import require


def write(family: Any, layers: Sequence[LayerEncoding]) -> dict[str, Any]:
    """The keys from which a family (`rotary.Rotary`) reads these layers."""
    kinds = [kind_of(family, layer) for layer in layers]
    config: dict[str, Any] = {"num_hidden_layers": len(layers)}
    widths = {kind: layer.head_dim for kind, layer in zip(kinds, layers, strict=True)}
    config["head_dim"] = widths.get(SLIDING, layers[0].head_dim)
    if family.global_head_dim is not None:
        config["global_head_dim"] = widths.get(FULL, family.global_head_dim)
    if family.typed:
        name = "layer_types" if family.typed is True else family.typed
        config[name] = [family.labels.get(kind, kind) for kind in kinds]
    if isinstance(family.kinds, Hybrid):
        config |= family.kinds.write(kinds)
    if isinstance(family.rotates, Switch):
        on = any(rope_of(layer) is not None for layer in layers)
        off = False if family.rotates.on is True else None
        config[family.rotates.key] = family.rotates.on if on else off
    config |= _mask(family, layers)
    if family.rotates is listed_rope:
        config["no_rope_layers"] = [int(rope_of(layer) is not None) for layer in layers]
    attending = [layer for layer in layers if layer.encoding is not None]
    if family.scale is not None and attending:
        name = family.scale[0]
        value = attending[0].scale or attending[0].head_dim ** -0.5
        config[name] = _inverse_square(value) if name == "query_pre_attn_scalar" else value
    if family.cap is not None and attending:
        config[family.cap[0]] = attending[0].logit_cap
    for name in ("clip_qkv", "key_multiplier", "qk_scale_factor") if attending else ():
        value = getattr(attending[0].extras, name)
        config |= {} if value == getattr(Extras, name) else {name: value}
    if isinstance(family.qk_norm, tuple):
        config[family.qk_norm[0]] = any(layer.extras.qk_norm for layer in layers)
    if family.global_head_dim is not None and family.causal:
        images = any(layer.extras.bidirectional == "images" for layer in layers)
        kind = None if layers[-1].causal else "all"
        config["use_bidirectional_attention"] = "vision" if images else kind
    if family.timed and layers[0].tokens_per_second is not None:
        config["vision_config"] = {"tokens_per_second": layers[0].tokens_per_second}
    if family.tempered:
        config |= _temperature(layers)
    if family.layer_bases:
        ropes = map(rope_of, layers)
        config["layer_rope_theta"] = [0 if rope is None else rope.base for rope in ropes]
    return config | _parameters(family, dict(zip(kinds, layers, strict=True)), kinds, layers)


def kind_of(family: Any, layer: LayerEncoding) -> str:
    """The layer's entry in `layer_types`."""
    if layer.encoding is None:
        return "conv" if family.kinds in (conv_layers, lfm3_layers) else LINEAR
    if layer.extras.indexer:
        return INDEXED
    if layer.chunk is not None:
        return CHUNKED
    return FULL if layer.window is None or family.window_on_full else SLIDING


def _mask(family: Any, layers: Sequence[LayerEncoding]) -> dict[str, Any]:
    """Windows, chunks and causality."""
    config: dict[str, Any] = {}
    causal = layers[0].causal
    window = next((layer.window for layer in layers if layer.window is not None), None)
    if family.half_window is not None and window is not None:
        window = 2 * (window - family.half_window)
    elif not family.causal and window is not None:
        window -= 1
    if family.bidirectional:
        config["use_bidirectional_attention"] = not causal
        window = window if causal or window is None else 2 * (window - family.bidirectional)
    if family.window != 0 and (family.nested is None or window is not None):
        config[family.window_key] = window
    if family.use_window:
        config["use_sliding_window"] = window is not None
    chunk = next((layer.chunk for layer in layers if layer.chunk is not None), None)
    return config | ({"attention_chunk_size": chunk} if chunk is not None else {})


def _temperature(layers: Sequence[LayerEncoding]) -> dict[str, Any]:
    """The keys of Llama 4's temperature, on the layers that do not rotate."""
    temperatures = [layer.encoding for layer in layers if isinstance(layer.encoding, Temperature)]
    if not temperatures:
        return {"attn_temperature_tuning": False}
    scales = {"attn_scale": temperatures[0].attn_scale, "floor_scale": temperatures[0].floor_scale}
    return {"attn_temperature_tuning": True, **scales}


def _parameters(
    family: Any,
    by_kind: Mapping[str, LayerEncoding],
    kinds: Sequence[str],
    layers: Sequence[LayerEncoding],
) -> dict[str, Any]:
    """`rope_parameters`, by layer type where they differ, and the lengths next to them."""
    config: dict[str, Any] = {}
    by_type: dict[str, Any] = {}
    for kind in by_kind:
        pairs = zip(kinds, layers, strict=True)
        rotated = [layer for k, layer in pairs if k == kind and rope_of(layer) is not None]
        if not rotated:
            continue
        rope, head_dim = rope_of(rotated[0]), rotated[0].head_dim
        if family.rotary_dim is not None:
            config["rotary_dim"] = rope.rotary_dim(head_dim)
            require(rope.base == family.base, "base", rope.base, f"it is always {family.base:g}")
            return config
        scaling = rope.scaling
        if isinstance(scaling, rope_scaling.DynamicNTK):
            config["max_position_embeddings"] = scaling.original_length
        if family.original is not None and isinstance(scaling, rope_scaling.LongRoPE):
            config["original_max_position_embeddings"] = scaling.original_length
        whole = {"partial_rotary_factor": 1.0} if family.partial != 1 else {}
        by_type[kind] = whole | settings(rotated[0].encoding, rope, head_dim)
    if family.layer_bases:
        by_type = dict(list(by_type.items())[:1])  # the base of each layer is in a list
    same = all(entry == next(iter(by_type.values())) for entry in by_type.values())
    if by_type and same and family.nested is None:
        by_type = next(iter(by_type.values()))
    elif family.nested is not None:
        absent = {"rope_type": "default"}
        by_type = {x: by_type.get(x, None if x in by_kind else absent) for x in family.nested}
        by_type = {family.labels.get(x, x): value for x, value in by_type.items()}
    return config | ({"rope_parameters": by_type} if by_type else {})


def rope_of(layer: LayerEncoding) -> Any:
    """What rotates in a layer, as a RoPE, or None."""
    for part in parts(layer.encoding or Encoding()):
        if isinstance(part, RoPE):
            return part
        if isinstance(part, MRoPE):
            return RoPE(part.base, part.fraction, scaling=part.scaling)
    return None


def settings(encoding: Any, rope: RoPE, head_dim: int) -> dict[str, Any]:
    """`rope_parameters` of one layer type."""
    parameters = rope_scaling.to_hf(rope, head_dim=head_dim)
    for part in parts(encoding):
        if isinstance(part, MRoPE) and part.sections is not None:
            parameters["mrope_section"] = list(part.sections)
        if isinstance(part, Temperature):
            parameters["llama_4_scaling_beta"] = part.attn_scale
            parameters.setdefault("original_max_position_embeddings", part.floor_scale)
    return parameters


def _inverse_square(scale: float) -> float:
    """A number x with x^-½ = scale; whole if possible."""
    whole = round(scale**-2)
    return whole if whole and whole**-0.5 == scale else scale**-2
