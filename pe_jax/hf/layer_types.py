"""Types of layers, and which of them rotate, for models whose code decides both."""

import dataclasses
from typing import Any

from pe_jax.hf.keys import Keys
from pe_jax.validation import is_int, require

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
INDEXED = "indexed_attention"  # of keys that an indexer selects
LINEAR = "linear_attention"
OTHERS = (LINEAR, "conv", "moe", "mlp")  # layers without softmax attention
RENAMED = {  # by transformers, too
    "attention": FULL,
    "hybrid": FULL,
    "hybrid_sliding": SLIDING,
    "mamba": LINEAR,
    "recurrent": LINEAR,
    "deepseek_sparse_attention": INDEXED,
    "qwen_sparse_attention": INDEXED,
    "minimax_m3_sparse": INDEXED,
    **{"M": LINEAR, "*": FULL, "E": "moe", "-": "mlp"},  # Nemotron-H
}


@dataclasses.dataclass(frozen=True)
class Each:
    """Of every `count` layers one is full."""

    count: int  # default of the key
    key: str = "sliding_window_pattern"  # the key that sets it; "": none
    first: bool = False  # whether it is the first of them, not the last
    others: str = SLIDING  # the type of the others
    last: bool = False  # whether the model's last is full, too
    back: bool = False  # whether they are counted from the last
    full: str = FULL  # the type of the full ones

    def __call__(self, keys: Keys, layers: int) -> list[str]:
        period = keys.integer(self.key, f"_{self.key}", default=self.count)
        shift = (1 - layers) if self.back else not self.first
        types = [self.others if (i + shift) % period else self.full for i in range(layers)]
        return [*types[:-1], self.full if self.last else types[-1]]


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """Which layers attend, by whichever key of hybrid models is present."""

    period: int = 0  # without a key, layers `offset`, `offset` + `period`, … attend; 0: none does
    offset: int = 0  # index of the first
    # whether the layers of `cross_attention_layers`, which attend to an image, do not
    crossed: bool = False

    def __call__(self, keys: Keys, layers: int) -> list[str]:
        period = keys.integer("attn_layer_period", default=self.period, low=0)
        offset = keys.integer("attn_layer_offset", default=self.offset, low=0)
        chosen = list(range(offset, layers, period)) if period else []
        name, block = "block_types", keys.get("block_types")
        if isinstance(block, list | tuple) and block:
            chosen = [i for i in range(layers) if block[i % len(block)] == "attention"]
        linear = keys.mapping("linear_attn_config") or {}  # the rest is of linear layers
        if keys.get("attn_layer_indices") is not None:
            name, chosen = "attn_layer_indices", keys.get("attn_layer_indices")
        if "full_attn_layers" in linear:
            name, given = "full_attn_layers", linear["full_attn_layers"]  # counted from 1
            listed = isinstance(given, list | tuple)
            chosen = [is_int(i, 1) and i - 1 for i in given] if listed else given
        if self.crossed:
            name = "cross_attention_layers"
            given = keys.get(name, default=list(range(3, layers, 5)))
            listed = isinstance(given, list | tuple)
            chosen = [i for i in range(layers) if i not in given] if listed else given
        ok = isinstance(chosen, list | tuple) and all(x in range(layers) for x in chosen)
        require(ok, name, chosen, f"pass numbers of the {layers} layers")
        return [FULL if i in chosen else LINEAR for i in range(layers)]


def zamba_layers(keys: Keys, layers: int) -> list[str]:
    """The third layer attends, and every sixth from the eighth on."""
    period = keys.integer("attn_layer_period", default=6)
    offset = keys.integer("attn_layer_offset", default=4, low=0)
    return [
        FULL if i == 2 or (i > 2 and (i - 3) % period == offset) else LINEAR for i in range(layers)
    ]


def zamba2_layers(keys: Keys, layers: int) -> list[str]:
    """Every sixth layer attends, or nearly so, as in the released models."""
    keys.skip("hybrid_layer_ids")  # follows from the list
    attending = (6, 12, 18, 24, 30, 36, 42, 47, 51)
    return [FULL if i in attending else LINEAR for i in range(layers)]


@dataclasses.dataclass(frozen=True)
class Switch:
    """All layers rotate if a key has that value, else none does."""

    key: str
    on: Any = True

    def __call__(self, keys: Keys, types: list[str]) -> list[bool]:
        value = keys.get(self.key)
        known = (None, False, self.on, "nope")
        require(any(value is x or value == x for x in known), self.key, value, f"choose of {known}")
        return [value == self.on] * len(types)


def never(keys: Keys, types: list[str]) -> list[bool]:
    """No RoPE on any layer."""
    return [False] * len(types)


def with_a_base(keys: Keys, types: list[str]) -> list[bool]:
    """RoPE unless its base is None (OLMo Hybrid)."""
    parameters = keys.mapping("rope_parameters") or {}
    return [parameters.get("rope_theta", 1) is not None] * len(types)


def mimo_layers(keys: Keys, layers: int) -> list[str]:
    """The first layer is full, and every sixth; or those that the Hub's config lists as 0."""
    flags = {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    for key, known in flags.items():
        given = keys.flag(key, default=known)
        require(given == known, key, given, f"only {known} is known here")
    width, narrow = keys.head_dim(192), keys.get("swa_head_dim")
    require(narrow in (None, width), "swa_head_dim", narrow, f"only head_dim={width} is known here")
    keys.skip("attention_chunk_size")  # nobody reads it
    default = [int(i and (i + 1) % 6 != 0) for i in range(layers)]
    windowed = keys.per_layer("hybrid_layer_pattern", layers, (0, 1), default)  # 1: a window
    return [SLIDING if x else FULL for x in windowed]


def lfm3_layers(keys: Keys, layers: int) -> list[str]:
    """Of four layers the third is full, the first slides (layer 0 convolves), two convolve."""
    fours = SLIDING, "conv", FULL, "conv"
    return [fours[i % 4] if i else "conv" for i in range(layers)]


def listed_rope(keys: Keys, types: list[str]) -> list[bool]:
    """`no_rope_layers`, which lists 1 for layers WITH RoPE, or every n-th without (Llama 4)."""
    interval = keys.integer("no_rope_layer_interval", default=4)
    rotates = [int((i + 1) % interval != 0) for i in range(len(types))]
    if keys.get("no_rope_layers"):  # an empty list is none
        rotates = keys.per_layer("no_rope_layers", len(types), (0, 1))
    return [bool(x) for x in rotates]


def listed_bases(keys: Keys, types: list[str]) -> list[bool]:
    """All with `layer_rope_theta`; without it all but every fourth, counted from the last."""
    if keys.get("layer_rope_theta") is not None:
        return [True] * len(types)
    return [(len(types) - 1 - i) % 4 != 0 for i in range(len(types))]


def only_sliding(keys: Keys, types: list[str]) -> list[bool]:
    """RoPE only on the layers with a window (Cohere 2)."""
    return [layer_type == SLIDING for layer_type in types]


def sliding_if_any(keys: Keys, types: list[str]) -> list[bool]:
    """RoPE only on the layers with a window, if there is one; else on all (EXAONE 4)."""
    return [layer_type == SLIDING or keys.has_none("sliding_window") for layer_type in types]


def qwen_layers(keys: Keys, layers: int) -> list[str]:
    """The layers from `max_window_layers` on have a window, if there is one."""
    on = keys.flag("use_sliding_window") and not keys.has_none("sliding_window")
    first = keys.integer("max_window_layers", default=28, low=0)
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
        period = len(letters)
    else:
        period = keys.integer(name, default=4, low=0)
    on = period and not keys.has_none("sliding_window")
    return [SLIDING if on and (i + 1) % period else FULL for i in range(layers)]


def all_indexed(keys: Keys, layers: int) -> list[str]:
    """An indexer in all layers (DeepSeek-V3.2)."""
    return [INDEXED] * layers


def m3_layers(keys: Keys, layers: int) -> list[str]:
    """The layers that `sparse_attention_freq` lists as 1 have an indexer (MiniMax-M3)."""
    inner = keys.part("sparse_attention_config")
    indexed = inner.per_layer("sparse_attention_freq", layers, (0, 1), [0] * layers)
    return [INDEXED if x else FULL for x in indexed]


def flint_layers(keys: Keys, layers: int) -> list[str]:
    """The first layer is full, the second and every fourth from there on, and the last."""
    full = [i == 0 or i % 4 == 1 or i == layers - 1 for i in range(layers)]
    return [FULL if x else SLIDING for x in full]


def doubled(keys: Keys, layers: int) -> list[str]:
    """Two attentions in each of `num_layers` (LongCat)."""
    return [FULL] * 2 * layers


def nas_layers(keys: Keys, layers: int) -> list[str]:
    """Layers whose block says that attention is a no-op, or linear, do not attend (DeciLM)."""
    blocks = keys.get("block_configs", default=[{}] * layers)
    ok = isinstance(blocks, list | tuple) and len(blocks) >= layers
    ok = ok and all(isinstance(block, dict) for block in blocks)
    require(ok, "block_configs", blocks, f"pass a dict for each of {layers} layers")
    specs = [block.get("attention") or {} for block in blocks[:layers]]
    for key in ("window_length", "num_sink_tokens", "sparsify"):
        given = next((x[key] for x in specs if isinstance(x, dict) and x.get(key)), None)
        require(given is None, f"block_configs: {key}", given, "such blocks are not read here")
    off = [isinstance(x, dict) and (x.get("no_op") or x.get("replace_with_linear")) for x in specs]
    return [LINEAR if x else FULL for x in off]


def late_layers(keys: Keys, layers: int) -> list[str]:
    """The layers from `max_window_layers` on have a window (dots.llm1)."""
    start = keys.integer("max_window_layers", default=62, low=0)
    on = not keys.has_none("sliding_window")
    return [SLIDING if on and i >= start else FULL for i in range(layers)]


def cohere2_moe_layers(keys: Keys, layers: int) -> list[str]:
    """Every fourth layer is full, counted anew after the first ones that have no experts."""
    first = keys.integer("first_k_dense_replace", default=0, low=0)
    dense = keys.integer("prefix_dense_sliding_window_pattern", default=1)
    period = keys.integer("sliding_window_pattern", default=4)
    counts = [(i + 1, dense) if i < first else (i - first + 1, period) for i in range(layers)]
    return [SLIDING if i % n else FULL for i, n in counts]


def listed_attention(keys: Keys, layers: int) -> list[str]:
    """Layers that `attn_type_list` lists as 1 attend, others are linear; all without it."""
    attends = keys.per_layer("attn_type_list", layers, (0, 1), [1] * layers)
    return [FULL if x else LINEAR for x in attends]


def minimax_layers(keys: Keys, layers: int) -> list[str]:
    """Every other layer is linear; MiniMax-Text-01 lists 1 for those that attend."""
    default = [(i + 1) % 2 for i in range(layers)]
    attends = keys.per_layer("attn_type_list", layers, (0, 1), default)
    return [FULL if x else LINEAR for x in attends]


def conv_layers(keys: Keys, layers: int) -> list[str]:
    """The layers of `full_attn_idxs` attend (LFM2); all without it."""
    attending = keys.numbers("full_attn_idxs", layers, range(layers))
    return [FULL if i in attending else "conv" for i in range(layers)]
