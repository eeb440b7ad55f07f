"""Configs of several parts: which is for text, and what its defaults are."""

import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

from pe_jax.hf.keys import HEADS, LAYERS, WIDTH

TEXT = ("text_config", "llm_config", "language_config", "thinker_config", "vlm_config")
BIDIRECTIONAL = {  # which tokens see both ways by the mask of a parent
    "gemma3": "images",
    "shieldgemma2": "images",
    "paligemma": "prefix",
    "colpali": "prefix",
}
OWN = ("_text", "_text_model", "")  # suffixes of a parent's name in the type of its text
DATA = tomllib.loads((pathlib.Path(__file__).parent / "types.toml").read_text(encoding="utf-8"))


def listed(section: str) -> dict[str, str]:
    """The key of each name in a section of types.toml."""
    return {name: key for key, names in DATA[section].items() for name in names.split()}


TYPES, SIZES = listed("text"), listed("sizes")


def sized(config: Mapping[str, Any], model_type: str) -> Mapping[str, Any]:
    """The config with transformers' defaults of its type for the sizes that it leaves out."""
    for names, size in zip((LAYERS, WIDTH, HEADS), SIZES.get(model_type, "").split(), strict=False):
        if all(config.get(name) is None for name in names):
            config = {**config, names[0]: int(size)}
    return config


def text(config: Mapping[str, Any], as_dict: Any, families: Any) -> Mapping[str, Any]:
    """The part for text with its type and sizes, or the config itself where it has no parts."""
    inner = next((config[name] for name in TEXT if config.get(name) is not None), None)
    parent = str(config.get("model_type"))
    named = [parent + end for end in OWN if parent + end in families]
    model_type = TYPES.get(parent) or next(iter(named), None)
    if inner is None:  # some have the text's keys next to their own
        flat = model_type and parent not in families and any(name in config for name in LAYERS)
        return {**config, "model_type": model_type} if flat else config
    inner = as_dict(inner)
    if inner.get("model_type") in (None, parent):
        inner = {**inner, "model_type": model_type or parent}
    if getattr(families.get(inner["model_type"]), "sections", None) is not None:
        inner = {"mrope_section": config.get("mrope_section"), **inner}  # Ling 3.0 VL
    return text(sized(inner, str(inner.get("model_type"))), as_dict, families)
