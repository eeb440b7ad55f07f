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

from collections.abc import Mapping, Sequence
from typing import Any

from pe_jax.encodings.base import Params
from pe_jax.hf import weights
from pe_jax.hf.families import FAMILIES, NEAREST
from pe_jax.hf.keys import Keys
from pe_jax.hf.layers import LayerEncoding, checked, pattern
from pe_jax.validation import is_int, nearest, require, shown

__all__ = ["FAMILIES", "LayerEncoding", "encodings", "params", "pattern", "to_hf"]

TEXT = ("text_config", "llm_config", "language_config")


def encodings(config: Any) -> tuple[LayerEncoding, ...]:
    """The encoding of each layer as a Hugging Face config describes it.

    Args:
      config: an object with `to_dict()`, or the dict (a `config.json`), of transformers 4 or 5. Of
        one with a part for text, that part is read: pass `config.vision_config` for the other.

    Returns:
      One entry per layer; an encoder's before its decoder's.

    Raises:
      ValueError: an unknown model type; a key that is missing, out of range or not understood. One
        line below 500 characters, with the key and its value.
      TypeError: neither a dict nor an object with `to_dict()`.
    """
    try:
        return _read(_as_dict(config))
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
        config = {"model_type": model_type, **family.write(layers)}
        if not getattr(family, "checked", True):
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
    return dict(dictionary)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its part for text, or itself."""
    inner = next((config[name] for name in TEXT if config.get(name) is not None), None)
    return config if inner is None else _text(_as_dict(inner))


def _read(config: Mapping[str, Any]) -> tuple[LayerEncoding, ...]:
    vision, config = config.get("vision_config"), _text(config)
    rate = None if vision is None else _as_dict(vision).get("tokens_per_second")
    if rate is not None:  # of the positions in the text model
        config = {**config, "tokens_per_second": rate}
    model_type = config.get("model_type")
    family = _family(model_type)
    keys = Keys(str(model_type), config)
    layers = family.read(keys)
    keys.check_rest()
    return tuple(layers)


def _family(model_type: Any):
    if not isinstance(model_type, str) or not model_type:
        raise ValueError(f"model_type={shown(model_type)}: pass one, such as 'llama'")
    if model_type in NEAREST:
        raise ValueError(f"model_type={model_type!r}: {NEAREST[model_type]}")
    if model_type not in FAMILIES:
        close = nearest(model_type[:40], FAMILIES, cutoff=0.4)
        hint = f"the nearest is {close}" if close else "see pe_jax.hf.FAMILIES"
        fix = "for its rotation alone, pe_jax.encodings.rope_scaling.from_hf"
        raise ValueError(f"model_type={shown(model_type)} is not known here; {hint}; {fix}")
    return FAMILIES[model_type]


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) < 500 else f"{text[:450]} … {text[-40:]}"
