"""Types of layers, and which of them rotate, of models whose code decides both."""

from collections.abc import Callable

from pe_jax.hf.keys import Keys
from pe_jax.validation import is_int, require

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
OTHERS = ("linear_attention", "conv")  # layers without softmax attention


def every(count: int, key: str = "sliding_window_pattern") -> Callable[[Keys, int], list[str]]:
    """Layer types of which every `count`-th is full and the others slide."""

    def kinds(keys: Keys, layers: int) -> list[str]:
        each = keys.integer(key, f"_{key}", default=count)
        return [SLIDING if (i + 1) % each else FULL for i in range(layers)]

    return kinds


def first_of(count: int) -> Callable[[Keys, int], list[str]]:
    """The first of every `count` layers is full, the others slide."""

    def kinds(keys: Keys, layers: int) -> list[str]:
        return [SLIDING if i % count else FULL for i in range(layers)]

    return kinds


def mimo_layers(keys: Keys, layers: int) -> list[str]:
    """The first layer is full, and every sixth; or those that the Hub's config lists as 0."""
    flags = {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    for key, known in flags.items():
        given = keys.flag(key, default=known)
        require(given == known, key, given, f"only {known} is known here")
    width, narrow = keys.head_dim(192), keys.get("swa_head_dim")
    require(narrow in (None, width), "swa_head_dim", narrow, f"only head_dim={width} is known here")
    keys.get("attention_chunk_size")  # nobody reads it
    given = keys.get("hybrid_layer_pattern")
    if given is None:
        return [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(layers)]
    ok = isinstance(given, list | tuple) and len(given) == layers
    ok = ok and all(x in (0, 1) for x in given)
    fix = f"pass 1 (a window) or 0 for each of {layers} layers"
    require(ok, "hybrid_layer_pattern", given, fix)
    return [SLIDING if x else FULL for x in given]


def lfm3_layers(keys: Keys, layers: int) -> list[str]:
    """Of four layers the third is full, the first slides unless it is the model's, two convolve."""
    fours = SLIDING, "conv", FULL, "conv"
    return [fours[i % 4] if i else "conv" for i in range(layers)]


def listed_rope(keys: Keys, kinds: list[str]) -> list[bool]:
    """`no_rope_layers`, which lists 1 for layers WITH RoPE, or every n-th without (Llama 4)."""
    interval = keys.integer("no_rope_layer_interval", default=4)
    given = keys.get("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(len(kinds))]
    ok = isinstance(given, list | tuple) and len(given) >= len(kinds)
    fix = f"pass 1 (RoPE) or 0 for each of {len(kinds)} layers"
    require(ok and all(x in (0, 1) for x in given), "no_rope_layers", given, fix)
    return [bool(x) for x in given[: len(kinds)]]


def only_sliding(keys: Keys, kinds: list[str]) -> list[bool]:
    """RoPE on the layers with a window alone (Cohere 2)."""
    return [kind == SLIDING for kind in kinds]


def sliding_if_any(keys: Keys, kinds: list[str]) -> list[bool]:
    """The same, where there is a window; else on all (EXAONE 4)."""
    return [kind == SLIDING or keys.has_none("sliding_window") for kind in kinds]


def qwen_layers(keys: Keys, layers: int) -> list[str]:
    """The layers from `max_window_layers` on have a window, if there is one."""
    on, first = (
        keys.flag("use_sliding_window"),
        keys.integer("max_window_layers", default=28, low=0),
    )
    on = on and not keys.has_none("sliding_window")
    return [SLIDING if on and i >= first else FULL for i in range(layers)]


def qwen_moe_layers(keys: Keys, layers: int) -> list[str]:
    """Every other layer below `max_window_layers` has a window, if there is one."""
    on, end = keys.flag("use_sliding_window"), keys.integer("max_window_layers", default=28, low=0)
    return [SLIDING if on and (i + 1) % 2 and i < end else FULL for i in range(layers)]


def llama4_layers(keys: Keys, layers: int) -> list[str]:
    """Chunks where there is RoPE."""
    return [CHUNKED if rotated else FULL for rotated in listed_rope(keys, [FULL] * layers)]


def smollm3_layers(keys: Keys, layers: int) -> list[str]:
    """A window, if there is one, where there is no RoPE."""
    on = keys.flag("use_sliding_window") and keys.get("sliding_window") is not None
    return [SLIDING if on and not x else FULL for x in listed_rope(keys, [FULL] * layers)]


def exaone4_layers(keys: Keys, layers: int) -> list[str]:
    """Every fourth layer is full, if there is a window."""
    name = "sliding_window_pattern"
    letters = keys.get(name)  # LLLG: three local layers, a global one
    if isinstance(letters, str):
        fix = "write a number, or letters such as LLLG"
        require(letters[-1:] == "G" and set(letters[:-1]) == {"L"}, name, letters, fix)
        each = len(letters)
    else:
        each = keys.integer(name, default=4, low=0)
    on = each and not keys.has_none("sliding_window")
    return [SLIDING if on and (i + 1) % each else FULL for i in range(layers)]


def modernbert_layers(keys: Keys, layers: int) -> list[str]:
    """Every third layer from the first on is full."""
    each = keys.integer("global_attn_every_n_layers", default=3)
    return [SLIDING if i % each else FULL for i in range(layers)]


def gemma4_layers(keys: Keys, layers: int) -> list[str]:
    """Every sixth layer is full, and the last."""
    return [FULL if (i + 1) % 6 == 0 or i == layers - 1 else SLIDING for i in range(layers)]


def linear_but(default: int) -> Callable[[Keys, int], list[str]]:
    """Every `full_attention_interval`-th layer attends, the others are linear (Qwen3-Next)."""

    def kinds(keys: Keys, layers: int) -> list[str]:
        each = keys.integer("full_attention_interval", default=default)
        return [OTHERS[0] if (i + 1) % each else FULL for i in range(layers)]

    return kinds


def listed_attention(keys: Keys, layers: int) -> list[str]:
    """Layers that `attn_type_list` lists as 1 attend, others are linear; all without it."""
    if keys.get("attn_type_list") is None:
        return [FULL] * layers
    return minimax_layers(keys, layers)


def minimax_layers(keys: Keys, layers: int) -> list[str]:
    """Every other layer is linear; MiniMax-Text-01 lists 1 for those that attend."""
    given = keys.get("attn_type_list")
    if given is None:
        return [FULL if (i + 1) % 2 else OTHERS[0] for i in range(layers)]
    ok = (
        isinstance(given, list | tuple) and len(given) == layers and all(x in (0, 1) for x in given)
    )
    require(ok, "attn_type_list", given, f"pass 1 (attention) or 0 for each of {layers} layers")
    return [FULL if x else OTHERS[0] for x in given]


def conv_layers(keys: Keys, layers: int) -> list[str]:
    """The layers of `full_attn_idxs` attend (LFM2); all without it."""
    given = keys.get("full_attn_idxs", default=list(range(layers)))
    ok = isinstance(given, list | tuple) and all(is_int(i, 0) and i < layers for i in given)
    require(ok, "full_attn_idxs", given, f"pass numbers below {layers}")
    return [FULL if i in given else "conv" for i in range(layers)]
