"""Random settings of RoPE as configs write them, and transformers' frequencies of them."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

LENGTHS = (24, 300)  # contexts are of 32 … 200 tokens
TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
FLAT = {  # and the name that older configs have for the fraction that is rotated
    "llama": None,
    "qwen2": None,
    "granite": None,
    "phi": "partial_rotary_factor",
    "stablelm": "partial_rotary_factor",
    "gpt_neox": "rotary_pct",
    "glm4": "partial_rotary_factor",
}
NESTED = ("gemma3_text", "olmo3", "gemma4_text")
YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")
SIZES = {"hidden_size": 96, "num_attention_heads": 2, "num_hidden_layers": 2}
TWO = ("sliding_attention", "full_attention")


def draw(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """A model type, and the config's keys without it."""
    head_dim = 4 * int(rng.integers(4, 25))
    settings = {**SIZES, "hidden_size": 2 * head_dim, "head_dim": head_dim}
    settings["max_position_embeddings"] = int(rng.integers(32, 200))
    if rng.random() < 0.3:
        kind = str(rng.choice(NESTED))
        settings |= {"layer_types": list(TWO), "sliding_window": 16}
        if kind == "gemma4_text":
            settings["global_head_dim"] = head_dim
        types = TYPES if kind == "gemma4_text" else TYPES[:-1]
        parts = {name: _parameters(rng, head_dim, types) for name in TWO}
        for own in parts.values():  # where types are nested, 5.23 leaves it unread
            own.pop("truncate", None)
        return kind, settings | {"rope_parameters": parts}
    kind = str(rng.choice(list(FLAT)))
    if kind in ("gpt_neox", "phi", "stablelm"):
        del settings["head_dim"]
    own = _parameters(rng, head_dim, TYPES[:-1], partial=FLAT[kind] is not None)
    if rng.random() < 0.5:
        return kind, settings | {"rope_parameters": own}
    base = "rotary_emb_base" if kind == "gpt_neox" else "rope_theta"
    older = {base: own.pop("rope_theta")}
    if FLAT[kind] is not None:
        older[FLAT[kind]] = own.pop("partial_rotary_factor")
    return kind, settings | older | {"rope_scaling": own}


def _parameters(rng, head_dim: int, types, partial: bool = False) -> dict[str, Any]:
    """`rope_parameters` of one layer type, each optional key in half of the cases."""
    name = str(rng.choice(types))
    own: dict[str, Any] = {"rope_type": name, "rope_theta": float(10 ** rng.uniform(2, 7))}
    turned = head_dim
    if partial:
        turned = 2 * int(rng.integers(2, head_dim // 2 + 1))
        own["partial_rotary_factor"] = (
            float((turned + 0.5) / head_dim) if turned < head_dim else 1.0
        )
    if name == "proportional":
        own["partial_rotary_factor"] = float(rng.uniform(0.1, 1))
    if name not in ("default", "longrope", "proportional"):
        own["factor"] = float(rng.uniform(1, 40))
    if name in ("yarn", "longrope", "llama3"):
        own["original_max_position_embeddings"] = int(rng.integers(26, 200))
    if name == "yarn":
        drawn = {
            "beta_fast": float(rng.uniform(8, 64)),
            "beta_slow": float(rng.uniform(0.5, 8)),
            "mscale": float(rng.uniform(0.1, 2)),
            "mscale_all_dim": float(rng.uniform(0.1, 2)),
            "attention_factor": float(rng.uniform(0.5, 2)),
            "truncate": bool(rng.random() < 0.5),
        }
        own |= {key: x for key, x in drawn.items() if rng.random() < 0.5}
    if name == "longrope":
        both = rng.uniform(1, 20, (2, turned // 2)).round(3).tolist()
        own["short_factor"], own["long_factor"] = both
        own |= {"factor": float(rng.uniform(1, 40))} if rng.random() < 0.5 else {}
        own |= {"attention_factor": float(rng.uniform(0.5, 2))} if rng.random() < 0.3 else {}
    if name == "llama3":
        own["low_freq_factor"] = float(rng.uniform(0.5, 2))
        own["high_freq_factor"] = own["low_freq_factor"] + float(rng.uniform(0.5, 6))
    return own


def parts(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parameters of each layer type, or the ones that there are."""
    own = settings.get("rope_parameters", settings.get("rope_scaling"))
    yield from (own[name] for name in TWO) if TWO[0] in own else (own,)


def theirs(kind: str, settings: dict[str, Any]) -> list[Callable]:
    """For each layer, transformers' frequencies and attention factor at a length."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = AutoConfig.for_model(kind, **copy.deepcopy(settings))  # it adds keys to dicts

    def of(layer: str | None) -> Callable:
        own = config.rope_parameters if layer is None else config.rope_parameters[layer]
        if own["rope_type"] == "default":
            head_dim = settings["hidden_size"] // 2
            turned = int(head_dim * own.get("partial_rotary_factor", 1.0))
            plain = own["rope_theta"] ** -(np.arange(0, turned, 2) / turned)
            return lambda length: (plain, 1.0)

        def frequencies(length: int):
            init = ROPE_INIT_FUNCTIONS[own["rope_type"]]
            more = {} if layer is None else {"layer_type": layer}
            found, factor = init(config, seq_len=length, **more)
            return found.double().numpy(), factor

        return frequencies

    return [of(name) for name in (TWO if kind in NESTED else (None,) * 2)]
