"""Names and numbers of a GGUF file as those of transformers, by architecture.

llama.cpp stores some weights changed, which is undone here: q and k of llama-like models have
rotated pairs next to each other (transformers: in halves of the head), Gemma's norms have 1 added,
a fused projection has all of q, then k, then v (BLOOM, GPT-NeoX: q, k, v of each head; Falcon: of
each group), GPT-2's matrices are transposed. What a file does not hold is the architecture's.

H heads, K key and value heads, E head width, D model width.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pe_jax.encodings.rope import frequencies
from pe_jax.encodings.rope_scaling import Llama3
from pe_jax.released.checkpoint import Stored
from pe_jax.validation import ConfigError, nearest, require, shown

KEYS = {  # of the most; an architecture's own come before them
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "rope.freq_base": "rope_theta",
}
# Keys that are checked or used below, or have no effect on what a model computes.
USED = {"vocab_size", "attention.key_length", "attention.value_length", "rope.dimension_count"}
USED |= {"tensor_data_layout"}
SCALING, FREQS = "rope.scaling.", "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
WINDOW = {"attention.sliding_window": "sliding_window"}

ATTENTION = {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"} | {
    "attn_output": "self_attn.o_proj"
}
MLP = {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
QK_NORMS = {f"attn_{x}_norm": f"self_attn.{x}_norm" for x in "qk"}
AROUND = {  # norms before and after each sublayer
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
LLAMA = ATTENTION | MLP | NORMS
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCKS = {  # of BLOOM's kind
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
FALCON = {name: full for name, full in BLOCKS.items() if name != "ffn_norm"}
FALCON_NORMS = {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}  # of those that have two


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How a file of `general.architecture` becomes a checkpoint of `model_type`."""

    model_type: str  # of the config
    layer: Mapping[str, str]  # names of a layer's tensors here, and in transformers below `layers`
    # the same for tensors outside of the layers
    outside: Mapping[str, str] = dataclasses.field(default_factory=lambda: OUTSIDE)
    layers: str = "model.layers"  # where transformers has layers
    # of its config, in addition to `KEYS`
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # of its config, whatever the file says
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # what undoes a change of a tensor, by its name here: (array, heads, file's config)
    changed: Mapping[str, Callable] = dataclasses.field(default_factory=dict)
    wide: bool = False  # whether the config says head_dim, which need not be D / H
    fraction: str = ""  # the config's key of the rotated share of a head; "" if all of it rotates


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of heads, which say how weights are laid out: H and K."""

    heads: int
    kv_heads: int


def halves(x: np.ndarray, heads: int) -> np.ndarray:
    """Rows [H·E, …] whose pairs are neighbours, with pairs in the halves of each head."""
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def q_halves(x: np.ndarray, sizes: Sizes) -> np.ndarray:
    """`halves` of queries."""
    return halves(x, sizes.heads)


def k_halves(x: np.ndarray, sizes: Sizes) -> np.ndarray:
    """`halves` of keys."""
    return halves(x, sizes.kv_heads)


def less_one(x: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Gemma's norms multiply by 1 + w: w."""
    return x - np.float32(1)


def transposed(x: np.ndarray, sizes: Sizes) -> np.ndarray:
    """GPT-2's [inputs, outputs]; a bias as it is."""
    return x.T


def by_group(x: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Rows of all q, all k, all v as H/K of q, one of k, one of v for each of K groups."""
    heads, groups = sizes.heads, sizes.kv_heads
    rows = x.reshape(heads + 2 * groups, -1, *x.shape[1:])
    q = rows[:heads].reshape(groups, heads // groups, *rows.shape[1:])
    k, v = (part[:, None] for part in (rows[heads : heads + groups], rows[heads + groups :]))
    return np.concatenate([q, k, v], axis=1).reshape(x.shape)


GEMMA_NORMS = dict.fromkeys((*AROUND, *QK_NORMS, "output_norm"), less_one)
PAIRS = {"attn_q": q_halves, "attn_k": k_halves}
GPT2 = {"attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj"}
GPT2 |= {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
NEOX_OUT = {"token_embd": "gpt_neox.embed_in", "output": "lm_head"}
BLOOM_OUT = {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f"}
BLOOM_OUT |= {"output": "lm_head"}
COUNTS = {"block_count": "n_layer", "attention.head_count": "n_head"}

ARCHITECTURES = {
    "llama": Architecture("llama", LLAMA, keys=WINDOW, changed=PAIRS, wide=True),
    "smollm3": Architecture("smollm3", LLAMA, changed=PAIRS, wide=True),
    "qwen2": Architecture("qwen2", LLAMA),
    "qwen3": Architecture("qwen3", LLAMA | QK_NORMS, wide=True),
    "gemma": Architecture("gemma", LLAMA, changed=GEMMA_NORMS, wide=True),
    "gemma2": Architecture(
        "gemma2",
        ATTENTION | MLP | AROUND,
        keys=WINDOW | {x: x for x in ("attn_logit_softcapping", "final_logit_softcapping")},
        changed=GEMMA_NORMS,
        wide=True,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        ATTENTION | MLP | AROUND | QK_NORMS,
        keys=WINDOW | {"final_logit_softcapping": "final_logit_softcapping"},
        constants={"rope_local_base_freq": 1e4},
        changed=GEMMA_NORMS,
        wide=True,
    ),
    "olmo2": Architecture(
        "olmo2", ATTENTION | MLP | QK_NORMS | {k: AROUND[k] for k in AROUND if k[:4] == "post"}
    ),
    "phi3": Architecture(
        "phi3",
        NORMS
        | {"attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj"}
        | {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
        keys=WINDOW | {SCALING + "original_context_length": "original_max_position_embeddings"},
        fraction="partial_rotary_factor",
    ),
    "stablelm": Architecture(
        "stablelm",
        LLAMA | {f"attn_{x}_norm": f"self_attn.{x}_layernorm.norms" for x in "qk"},
        keys={"attention.layer_norm_epsilon": "layer_norm_eps"}
        | {"use_parallel_residual": "use_parallel_residual"},
        fraction="partial_rotary_factor",
    ),
    "starcoder2": Architecture(
        "starcoder2",
        ATTENTION | NORMS | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        keys={"attention.layer_norm_epsilon": "norm_epsilon"},
    ),
    "gpt2": Architecture(
        "gpt2",
        GPT2 | {"attn_norm": "ln_1", "ffn_norm": "ln_2"},
        {"token_embd": "transformer.wte", "position_embd": "transformer.wpe"}
        | {"output_norm": "transformer.ln_f", "output": "lm_head"},
        "transformer.h",
        keys=COUNTS
        | {"context_length": "n_positions", "embedding_length": "n_embd"}
        | {"feed_forward_length": "n_inner"},
        changed=dict.fromkeys(GPT2, transposed),
    ),
    "gptneox": Architecture(
        "gpt_neox",
        {name: x.replace("self_attention", "attention") for name, x in BLOCKS.items()},
        NEOX_OUT | {"output_norm": "gpt_neox.final_layer_norm"},
        "gpt_neox.layers",
        keys={"attention.layer_norm_epsilon": "layer_norm_eps"}
        | {"use_parallel_residual": "use_parallel_residual"},
        changed={"attn_qkv": by_group},
        fraction="rotary_pct",
    ),
    "bloom": Architecture(
        "bloom",
        BLOCKS,
        BLOOM_OUT | {"token_embd_norm": "transformer.word_embeddings_layernorm"},
        "transformer.h",
        keys=COUNTS | {"context_length": "seq_length"},
        changed={"attn_qkv": by_group},
    ),
    "falcon": Architecture(
        "falcon",
        FALCON | {"attn_norm_2": FALCON_NORMS["attn_norm_2"]},
        BLOOM_OUT,
        "transformer.h",
        keys={"attention.head_count_kv": "num_kv_heads", "feed_forward_length": "ffn_hidden_size"},
        constants={"alibi": False, "parallel_attn": True},
        changed={"attn_qkv": by_group},
    ),
    "mpt": Architecture(
        "mpt",
        {"attn_norm": "norm_1", "ffn_norm": "norm_2"}
        | {"attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj"}
        | {"ffn_up": "ffn.up_proj", "ffn_down": "ffn.down_proj"},
        {"token_embd": "transformer.wte", "output_norm": "transformer.norm_f"}
        | {"output": "lm_head"},
        "transformer.blocks",
        keys={"context_length": "max_seq_len", "embedding_length": "d_model"}
        | {"block_count": "n_layers", "attention.head_count": "n_heads"},
    ),
}
LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B, whose scale is that of D / H


def convert(
    keys: Mapping[str, Any], raw: Mapping[str, Stored]
) -> tuple[dict[str, Any], dict[str, Stored]]:
    """The config and the tensors of transformers.

    Args:
      keys: of the file.
      raw: its tensors, by llama.cpp's names.

    Raises:
      ConfigError: an architecture, key or tensor that is not understood, or one that is missing.
    """
    name = keys.get("general.architecture")
    if name not in ARCHITECTURES:
        fix = f"read are {', '.join(ARCHITECTURES)}; or pass a folder of the Hub"
        raise ConfigError(f"general.architecture={shown(name)} is not read; {fix}")
    architecture = ARCHITECTURES[name]
    left = {k.removeprefix(f"{name}."): v for k, v in keys.items() if k.startswith(f"{name}.")}
    sizes = _sizes(left)
    config = _config(name, architecture, left, raw, sizes)
    if "rope_theta" in config:  # the config has what they say
        raw = {key: x for key, x in raw.items() if key not in (FREQS, LONG, SHORT)}
    for key in ("bos", "eos", "padding"):
        token = keys.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            config[f"{key[:3]}_token_id"] = token
    return config, _tensors(architecture, raw, sizes)


def _sizes(left: Mapping[str, Any]) -> Sizes:
    numbers = {}
    for name in ("block_count", "embedding_length", "attention.head_count"):
        numbers[name] = left.get(name)
        need = "the architecture needs this key, an integer"
        require(type(numbers[name]) is int and numbers[name] > 0, name, numbers[name], need)
    heads = numbers["attention.head_count"]
    kv_heads = left.get("attention.head_count_kv", heads)
    fix = "a number per layer is not read; it must be one that divides attention.head_count"
    ok = type(kv_heads) is int and kv_heads > 0 and heads % kv_heads == 0
    require(ok, "attention.head_count_kv", kv_heads, fix)
    return Sizes(heads, kv_heads)


def _config(
    name: str,
    architecture: Architecture,
    left: dict[str, Any],
    raw: Mapping[str, Stored],
    sizes: Sizes,
) -> dict[str, Any]:
    """The config; every key of the architecture is used, harmless, or an error."""
    embedding = raw.get("token_embd.weight")
    if embedding is None:
        raise ConfigError("token_embd.weight is missing; the file has no language model")
    config = {"model_type": architecture.model_type, "vocab_size": embedding.shape[0]}
    config["tie_word_embeddings"] = "output.weight" not in raw
    names = {**KEYS, **architecture.keys}
    config |= {names[key]: value for key, value in left.items() if key in names}
    config |= architecture.constants
    head_dim = left.get("attention.key_length", left["embedding_length"] // sizes.heads)
    values = left.get("attention.value_length", head_dim)
    require(values == head_dim, "attention.value_length", values, f"must be {head_dim}, as of keys")
    if architecture.wide:
        config["head_dim"] = head_dim
    else:
        ok = head_dim * sizes.heads == left["embedding_length"]
        require(ok, "attention.key_length", head_dim, "must be embedding_length / head_count")
    if "rope_theta" not in config and name not in ("gpt2", "bloom", "mpt"):
        config["rope_theta"] = 1e4
    rotated = left.get("rope.dimension_count", head_dim)
    if architecture.fraction:
        config[architecture.fraction] = rotated / head_dim
    else:
        require(rotated == head_dim, "rope.dimension_count", rotated, f"must be {head_dim}, all")
    if config.get("sliding_window") == 0:
        del config["sliding_window"]  # Phi-4's
    scaling = _scaling(left, raw, config, rotated) if "rope_theta" in config else None
    if scaling:
        config["rope_scaling"] = scaling
    if name in SPECIAL:
        SPECIAL[name](config, left, raw, sizes)
    for key, value in left.items():
        known = key in names or key in USED or key.startswith(SCALING)
        if not known and value not in (0, False, "", None):
            fix = f"it is not understood, and may change what {name} computes"
            raise ConfigError(f"{name}.{key}={shown(value)}: {fix}")
    return config


def _scaling(
    left: Mapping[str, Any], raw: Mapping[str, Stored], config: dict[str, Any], rotated: int
) -> dict[str, Any] | None:
    """`rope_scaling`, from the keys of scaling and the tensors of factors."""
    scaling = {k.removeprefix(SCALING): v for k, v in left.items() if k.startswith(SCALING)}
    scaling.pop("finetuned", None)
    kind, factor = scaling.pop("type", "none"), scaling.pop("factor", 1.0)
    original, attention = (
        scaling.pop("original_context_length", None),
        scaling.pop("attn_factor", 1),
    )
    if LONG in raw or SHORT in raw:
        for name in (LONG, SHORT):
            require(name in raw, name, None, "the file has one of the two; it needs both")
        factors = {"long_factor": raw[LONG].load().tolist()}
        factors |= {"short_factor": raw[SHORT].load().tolist()}
        return {"rope_type": "longrope", **factors, "attention_factor": attention}
    if FREQS in raw:
        require(kind == "none", SCALING + "type", kind, f"the file has {FREQS} too")
        factors = raw[FREQS].load().astype(np.float64)
        return _of_factors(factors, config["rope_theta"], rotated, original)
    found: dict[str, Any] | None = None
    if kind == "linear":
        found = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        require(
            original is not None, SCALING + "original_context_length", original, "yarn needs it"
        )
        found = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
        for name in ("beta_fast", "beta_slow"):
            if f"yarn_{name}" in scaling:
                found[name] = scaling.pop(f"yarn_{name}")
        if attention != 1:  # llama.cpp multiplies YaRN's own by it
            found["attention_factor"] = attention * (0.1 * float(np.log(factor)) + 1)
        neutral = {"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_log_multiplier": 0.0}
        for name, value in neutral.items():
            require(scaling.pop(name, value) == value, SCALING + name, value, f"only {value}")
    else:
        require(kind == "none", SCALING + "type", kind, "read are none, linear, yarn")
    for name, value in scaling.items():
        require(value in (0, None), SCALING + name, value, "it is not understood")
    return found


def _of_factors(
    factors: np.ndarray, base: float, rotated: int, original: int | None
) -> dict[str, Any]:
    """Llama 3's scaling, kept as a divisor [pairs] of each frequency; or else LongRoPE's."""
    require(len(factors) == rotated // 2, FREQS, factors.shape, "one per pair of channels")
    scaling = Llama3(float(factors.max()))
    theta = np.asarray(frequencies(rotated, base), np.float64)
    if np.allclose(theta / scaling(theta), factors, rtol=1e-4):
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_length,
        }
    named = {f"{which}_factor": factors.tolist() for which in ("long", "short")}
    length = {} if original is None else {"original_max_position_embeddings": original}
    return {"rope_type": "longrope", **named, **length, "attention_factor": 1.0}


def _llama(config: dict, left: Mapping, raw: Mapping[str, Stored], sizes: Sizes) -> None:
    if "sliding_window" in config:  # of the architecture "llama" alone
        config["model_type"] = "mistral"
    if "blk.0.attn_q.bias" in raw:
        config["attention_bias"] = True
    if "blk.0.ffn_up.bias" in raw:
        config["mlp_bias"] = True


def _gemma(config: dict, left: dict, raw: Mapping[str, Stored], sizes: Sizes) -> None:
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    largest = LARGEST[config["model_type"].removesuffix("_text")] == layers
    config["query_pre_attn_scalar"] = width // sizes.heads if largest else config["head_dim"]
    every = left.pop("attention.sliding_window_pattern", None)
    if isinstance(every, int):
        every = [(layer + 1) % every > 0 for layer in range(layers)]
    if every is not None:
        names = ("full_attention", "sliding_attention")
        config["layer_types"] = [names[bool(sliding)] for sliding in every]
    local = left.pop("rope.freq_base_swa", None)
    if local is not None:
        config["rope_local_base_freq"] = local


def _stablelm(config: dict, left: Mapping, raw: Mapping[str, Stored], sizes: Sizes) -> None:
    config["use_qkv_bias"] = "blk.0.attn_q.bias" in raw
    config["qk_layernorm"] = "blk.0.attn_q_norm.weight" in raw


def _falcon(config: dict, left: Mapping, raw: Mapping[str, Stored], sizes: Sizes) -> None:
    two = "blk.0.attn_norm_2.weight" in raw
    config["num_kv_heads"] = sizes.kv_heads
    new = config["new_decoder_architecture"] = two or 1 < sizes.kv_heads < sizes.heads
    config["multi_query"] = new or sizes.kv_heads == 1
    if new:
        config["num_ln_in_parallel_attn"] = 2 if two else 1
    config["bias"] = "blk.0.attn_qkv.bias" in raw


def _mpt(config: dict, left: dict, raw: Mapping[str, Stored], sizes: Sizes) -> None:
    slope, clip = (left.pop(f"attention.{name}", 0) for name in ("max_alibi_bias", "clamp_kqv"))
    require(slope > 0, "attention.max_alibi_bias", slope, "MPT without ALiBi is not read")
    require(sizes.kv_heads == sizes.heads, "attention.head_count_kv", sizes.kv_heads, "as heads")
    config["attn_config"] = {"alibi": True, "alibi_bias_max": slope, "clip_qkv": clip or None}
    config["expansion_ratio"] = config.pop("intermediate_size") // config["d_model"]
    config["no_bias"] = not any(name.endswith(".bias") for name in raw)


SPECIAL = {"llama": _llama, "smollm3": _llama, "qwen3": _llama, "gemma2": _gemma, "gemma3": _gemma}
SPECIAL |= {"stablelm": _stablelm, "falcon": _falcon, "mpt": _mpt}


def _tensors(
    architecture: Architecture, raw: Mapping[str, Stored], sizes: Sizes
) -> dict[str, Stored]:
    """The tensors by transformers' names."""
    stored: dict[str, Stored] = {}
    layer_names = dict(architecture.layer)
    if "blk.0.attn_norm_2.weight" in raw:
        layer_names |= FALCON_NORMS
    for name, tensor in raw.items():
        if name.endswith("attn_rot_embd.weight"):
            continue  # frequencies, which follow from the base
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        layer, part, suffix = match.groups() if match else (None, name, "")
        names = architecture.outside if layer is None else layer_names
        if part not in names:
            close = nearest(part, names, cutoff=0.8)
            fix = f"the nearest that is read is {close}" if close else "it is another model's"
            raise ConfigError(f"tensor {name} is not one of {architecture.model_type}; {fix}")
        place = names[part] if layer is None else f"{architecture.layers}.{layer}.{names[part]}"
        change = architecture.changed.get(part)
        if place.endswith(".norms"):  # one of each head, which transformers has apart
            for head in range(tensor.shape[0]):
                stored[f"{place}.{head}.{suffix}"] = _row(tensor, head)
        else:
            stored[f"{place}.{suffix}"] = (
                tensor if change is None else _changed(tensor, change, sizes)
            )
    return stored


def _changed(tensor: Stored, change: Callable, sizes: Sizes) -> Stored:
    shape = tensor.shape[::-1] if change is transposed else tensor.shape
    return Stored(shape, tensor.kind, lambda: change(tensor.load(), sizes))


def _row(tensor: Stored, row: int) -> Stored:
    return Stored(tensor.shape[1:], tensor.kind, lambda: tensor.load()[row])
