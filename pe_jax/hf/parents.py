"""Configs of several parts: which is for text, and what its defaults are."""

import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

from pe_jax.hf.keys import HEADS, LAYERS, WIDTH

TEXT = ("text_config", "llm_config", "language_config", "thinker_config", "vlm_config")
ALSO = {  # what a parent's mask lets see both ways
    "gemma3": "bidirectional_images",
    "shieldgemma2": "bidirectional_images",
    "paligemma": "bidirectional_prefix",
    "colpali": "bidirectional_prefix",
}
OWN = ("_text", "_text_model", "")  # what follows a parent's name in that of its text
DATA = tomllib.loads((pathlib.Path(__file__).parent / "types.toml").read_text(encoding="utf-8"))


def listed(section: str) -> dict[str, str]:
    """Of each name in a section of types.toml, what it stands under."""
    return {name: key for key, names in DATA[section].items() for name in names.split()}


TYPES, SIZES = listed("text"), listed("sizes")


def text(config: Mapping[str, Any], as_dict: Any, families: Any) -> Mapping[str, Any]:
    """The part for text with its type and sizes, or the config itself where it has no parts."""
    inner = next((config[name] for name in TEXT if config.get(name) is not None), None)
    if inner is None:
        return config
    inner, parent = as_dict(inner), config.get("model_type")
    if inner.get("model_type") is None and isinstance(parent, str):
        own = [parent + end for end in OWN if parent + end in families]
        inner = {**inner, "model_type": TYPES.get(parent) or next(iter(own), None)}
    sizes = SIZES.get(str(inner.get("model_type")), "").split()
    for names, size in zip((LAYERS, WIDTH, HEADS), sizes, strict=False):
        if all(inner.get(name) is None for name in names):
            inner = {**inner, names[0]: int(size)}
    return text(inner, as_dict, families)
