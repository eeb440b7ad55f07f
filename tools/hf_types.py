"""Every config class of the installed transformers: what `pe_jax.hf` makes of it.

`python -m tools.hf_types [TYPE ...]` prints a line per model type: `read` (its attention compared),
`config` (read; the model is not run here, with what stood in the way), `refused` with the reason,
`differs` with what, `new` (neither read nor with a reason: a newer transformers has added it).

To compare, a tiny model of the type runs twice with its attention replaced by a function that
records queries, keys, scale, cap and mask and gives zeros (so that no layer depends on an earlier
one's): once as it is, once with its rotation switched off. What is read in the config has to turn
the second record into the first.
"""

import contextlib
import inspect
import logging
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import hf
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.sink import SinkLogit
from pe_jax.encodings.sums import parts_of
from pe_jax.encodings.terms import Rotation
from pe_jax.engines.mask import allowed
from pe_jax.hf.families import MLA, NEAREST

LENGTH, TOLERANCE = 23, 2e-5
NORMS = ("q_norm", "q_layernorm", "query_layernorm", "qk_norm", "q_b_norm")
SIZES = {
    0: "num_kv_shared_layers pad_token_id",
    1: """num_experts_per_tok n_group topk_group moe_k moe_topk n_shared_experts n_groups
      moe_num_shared_experts mamba_n_groups mamba_ngroups num_mem_blocks""",
    2: """num_attention_heads num_key_value_heads n_head n_heads num_heads num_experts
      num_local_experts n_routed_experts moe_num_experts index_n_heads linear_num_heads
      encoder_attention_heads decoder_attention_heads linear_num_key_heads
      linear_num_value_heads expert_layer_period""",
    3: "encoder_layers decoder_layers",
    4: "hidden_size_per_layer_input mamba_n_heads mamba_num_heads n_mamba_heads mamba_dt_rank",
    5: "sliding_window attention_window_size",
    6: """num_hidden_layers n_layer n_layers num_layers first_k_dense_replace num_dense_layers
      moe_layer_start_index attention_chunk_size""",
    8: """q_lora_rank kv_lora_rank qk_rope_head_dim linear_key_head_dim linear_value_head_dim
      linear_head_dim mamba_d_state ssm_state_size laurel_rank""",
    10: "local_attention",
    16: """intermediate_size moe_intermediate_size shared_expert_intermediate_size v_head_dim
      shared_intermediate_size qk_nope_head_dim index_head_dim ffn_dim d_ff
      intermediate_size_mlp encoder_ffn_dim decoder_ffn_dim""",
    32: """head_dim kv_channels global_head_dim d_kv vocab_size vocab_size_per_layer_input
      mamba_d_head mamba_head_dim mamba_headdim""",
    64: "hidden_size n_embd d_model lru_width embedding_size",
    128: "mamba_d_ssm",
}
TINY = {name: size for size, names in SIZES.items() for name in names.split()}
SECTIONS = {"qwen3_5_text": [2, 1, 1], "qwen3_5_moe_text": [2, 1, 1], "glm4v_moe_text": [2, 3, 3]}
SECTIONS |= {
    "qwen4_exp_text": [6, 5, 5],
    "ernie4_5_vl_moe_text": [6, 6, 4],
    "hunyuan_vl_text": [4, 4, 4, 4],
}
SECTIONS |= {f"glm{name}_text": [4, 6, 6] for name in ("4v", "_ocr", "_image")}
SOME, FULL, LINEAR = ["mamba", "attention"] * 3, "full_attention", "linear_attention"
INDEXER = {"indexer_budget": 64, "indexer_compress_ratio": 4, "indexer_n_heads": 2}
INDEXER |= {"indexer_kv_heads": 1, "indexer_head_dim": 32}
HALF = {n: TINY[n] for n in "hidden_size num_hidden_layers head_dim intermediate_size".split()}
HALF |= {n: TINY[n] for n in "num_attention_heads num_key_value_heads vocab_size".split()}
HALF |= {"sliding_window": TINY["sliding_window"], "layer_types": ["sliding_attention", FULL] * 3}
# What else these need to be small and to have both types of layer.
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 4]},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] * 6},
    "granitemoehybrid": {"layer_types": SOME, "position_embedding_type": "rope"},
    "glm5_next_text": {"head_dim": 0, "qk_rope_head_dim": 0},
    "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_offset": 0},
    "lfm2_moe": {"layer_types": ["conv", "conv", FULL] * 2},
    "mimo_v2_flash": {"num_key_value_heads": 1, "head_dim": 32},
    "longcat_flash": {"head_dim": 8, "num_experts_per_tok": 2},
    "minimax_m3_vl_text": {"rotary_dim": 32, "layer_types": ["minimax_m3_sparse", FULL] * 3},
    "nemotron_h": {"layers_block_type": [LINEAR, FULL, "moe", FULL, LINEAR, "mlp"]},
    "qwen4_exp_text": INDEXER,
    "step3p5": {"sliding_window": 5, "layer_types": [FULL, "sliding_attention"] * 3}
    | {"rope_theta": [5e6, 1e4] * 3, "partial_rotary_factors": [0.5, 1.0] * 3},
    "t5gemma": {"encoder": HALF, "decoder": HALF, "vocab_size": TINY["vocab_size"]},
    "zamba2": {"num_hidden_layers": 54},
}


def types() -> Any:
    """The config classes of the installed transformers by model type."""
    from transformers.models.auto import configuration_auto  # pyright: ignore[reportMissingImports]

    return configuration_auto.CONFIG_MAPPING


def config_of(model_type: str, **settings: Any) -> Any:
    """A tiny config of a type, and the settings."""
    cls = types()[model_type]
    default = cls()
    if getattr(default, "text_config", None) is not None:
        raise LookupError("its parts are types of their own")
    full, family = default.to_dict(), hf.FAMILIES[model_type]
    sizes: dict[str, Any] = {n: x for n, x in TINY.items() if n in full or n in cls.attribute_map}
    sizes = {n: x for n, x in sizes.items() if not isinstance(full.get(n), list | tuple)}
    if full.get("sliding_window", 0) is None:
        sizes.pop("sliding_window", None)
    if isinstance(family, MLA):
        sizes.pop("head_dim", None)  # it is qk_rope_head_dim
    if getattr(family, "sections", None) or model_type in SECTIONS:
        sections = SECTIONS.get(model_type, [6, 5, 5] if family.interleaved else [4, 6, 6])
        sizes["rope_parameters"] = {**default.rope_parameters, "mrope_section": sections}
    return cls(**{**sizes, **OWN.get(model_type, {}), **settings})


def model_of(config: Any) -> Any:
    """A model of that config with random weights and the recording attention."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    config._attn_implementation = "recorded"
    with contextlib.suppress(ValueError):  # AutoModel does not know each part of a model
        return transformers.AutoModel.from_config(config, attn_implementation="recorded").eval()
    package = getattr(transformers.models, type(config).__module__.split(".")[2])
    classes = [getattr(package, name) for name in dir(package) if name.endswith("Model")]
    classes = [x for x in classes if getattr(x, "config_class", None) is type(config)]
    cls: Any = min(classes, key=lambda x: ("PreTrained" in x.__name__, len(x.__name__)))
    return cls(config).eval()


@contextlib.contextmanager
def recording():
    """A list to which each call of attention is added: module, q, k, mask, the rest."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]
    from transformers import masking_utils  # pyright: ignore[reportMissingImports]

    calls: list[tuple] = []

    def record(module, query, key, value, attention_mask, **kwargs):
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        calls.append((module, query.numpy(), key.numpy(), attention_mask, kwargs))
        shape = (*query.shape[:1], query.shape[2], query.shape[1], value.shape[-1])
        return torch.zeros(shape), None

    transformers.AttentionInterface.register("recorded", record)
    masking_utils.AttentionMaskInterface.register("recorded", masking_utils.eager_mask)
    yield calls


@contextlib.contextmanager
def unrotated(model: Any):
    """A model whose tables of angles are those of position 0."""
    import torch  # pyright: ignore[reportMissingImports]

    def still(module, args, out):
        if isinstance(out, dict):
            return {key: still(module, args, x) for key, x in out.items()}
        if torch.is_tensor(out):
            return torch.ones_like(out)  # complex: 1 + 0i
        return torch.ones_like(out[0]), torch.zeros_like(out[1])

    tables = [m for m in model.modules() if "Rotary" in type(m).__name__]
    hooks = [module.register_forward_hook(still) for module in tables]
    tempered = [m for m in model.modules() if hasattr(m, "attn_temperature_tuning")]
    settings = getattr(model.config, "rope_parameters", None) or {}
    beta = settings.get("llama_4_scaling_beta")
    tuning = [module.attn_temperature_tuning for module in tempered]
    for module in tempered:
        module.attn_temperature_tuning = False
    if beta is not None:
        settings["llama_4_scaling_beta"] = 0.0
    yield
    for hook in hooks:
        hook.remove()
    for module, value in zip(tempered, tuning, strict=True):
        module.attn_temperature_tuning = value
    if beta is not None:
        settings["llama_4_scaling_beta"] = beta


def run(model: Any, calls: list) -> list:
    """The calls of attention in one run over LENGTH tokens."""
    import torch  # pyright: ignore[reportMissingImports]

    calls.clear()
    names = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {"input_ids": torch.arange(1, LENGTH + 1)[None] % 30 + 1}
    options |= {"use_cache": False} if "use_cache" in names else {}
    if "decoder_input_ids" in names:
        options["decoder_input_ids"] = options["input_ids"]
    with torch.no_grad():
        model(**options)
    return list(calls)


def rotated(
    layer: hf.LayerEncoding, x: Any, side: str, positions: Any, sort: bool = False
) -> np.ndarray:
    """Our rotation of x [1, H, T, E]; `sort`: its pairs have been sorted into halves beforehand."""
    heads, width = x.shape[1], x.shape[3]
    dims = pe_jax.Dims(heads * width, heads, heads, width)
    encoding: Any = layer.encoding
    encoding = encoding.at_length(LENGTH)
    params = encoding.init(jax.random.key(0), dims)
    x = jnp.asarray(x.transpose(0, 2, 1, 3))
    if layer.rotary_last:
        rope: Any = parts_of(encoding)[0]  # the second may be a sink
        rotary = rope.rotary_dim(width)
        first, rest = x[..., -rotary:], x[..., :-rotary]
        if sort and rope.layout == "interleaved":
            first = jnp.stack(jnp.split(first, 2, axis=-1), axis=-1).reshape(first.shape)
        x = jnp.concatenate([first, rest], axis=-1)
    if layer.extras.mirrored:
        x = jnp.concatenate(jnp.split(x, 2, axis=-1)[::-1], axis=-1)
    term: Any
    for term in encoding.terms(params, dims):
        rotate = getattr(term, side) if isinstance(term, Rotation) else None
        x = x if rotate is None else rotate(term.arrays, x, positions)
    return np.asarray(x, np.float64).transpose(0, 2, 1, 3)


def seen(layer: hf.LayerEncoding) -> np.ndarray:
    """Which keys each query sees: [T, T]."""
    index: Any = np.arange(LENGTH)
    chunk = index // (layer.chunk or LENGTH)
    same = chunk[:, None] == chunk
    return same & np.asarray(allowed(index, index, causal=layer.causal, window=layer.window))


def difference(model_type: str, **settings: Any) -> str:
    """How the layers that are read differ from what reaches the model's softmax, or ""."""
    config = config_of(model_type, **settings)
    layers = hf.encodings(config)
    with recording() as calls:
        model = model_of(config)
        records = [run(model, calls)]
        with unrotated(model):
            records.append(run(model, calls))
    layers = tuple(layer for layer in layers if layer.encoding is not None)
    stacks = len({layer.stack for layer in layers})
    theirs, plain = ([x for x in some if "Cross" not in type(x[0]).__name__] for some in records)
    if not theirs or (stacks > 1 and len(layers) != len(theirs)):
        raise LookupError("its attention calls are not ours to record, layer by layer")
    if len(layers) != len(theirs):
        return f"{len(layers)} layers attend, theirs {len(theirs)}"
    sort = isinstance(hf.FAMILIES[model_type], MLA) and model_type != "deepseek_v2"
    for index, (layer, call, still) in enumerate(zip(layers, theirs, plain, strict=True)):
        if reason := _layers_differ(layer, call, still, sort):
            return f"layer {index}: {reason}"
    return ""


def _layers_differ(layer: hf.LayerEncoding, call: tuple, still: tuple, sort: bool) -> str:
    module, q, k, mask, options = call
    if q.shape[-1] != layer.head_dim:
        return f"head_dim {layer.head_dim}, theirs {q.shape[-1]}"
    positions, encoding = np.arange(LENGTH), layer.encoding or Encoding()
    axes = encoding.claims.axes
    positions = np.stack([positions] * 3, -1) if axes == 3 else positions
    sides = zip("qk", still[1:3], strict=True)
    ours = np.einsum("bhte,bhse->bhts", *[rotated(layer, x, n, positions, sort) for n, x in sides])
    want = np.einsum("bhte,bhse->bhts", np.float64(q), np.float64(k))
    theirs = options.get("scaling")
    theirs = layer.head_dim**-0.5 if theirs is None else float(theirs)
    scale = layer.head_dim**-0.5 if layer.scale is None else layer.scale
    scale = 1.0 if theirs == 1 and layer.scale is None else scale  # q has been scaled (ESM, OPT)
    error = np.abs(scale * ours - theirs * want).max() / (theirs * np.abs(want).max())
    hidden = np.zeros((LENGTH, LENGTH), bool)
    if mask is not None:
        hidden = mask[0, 0].numpy() < -1 if mask.is_floating_point() else ~mask[0, 0].numpy()
    checks = {
        f"scores by {error:.2g}": error > TOLERANCE,
        "the mask": not np.array_equal(~hidden, seen(layer)),
        f"cap {layer.logit_cap}": (options.get("softcap") or None) != layer.logit_cap,
        "sinks": (options.get("s_aux") is not None)
        != any(isinstance(part, SinkLogit) and not part.from_input for part in parts_of(encoding)),
        "norms of q and k": any(hasattr(module, n) for n in NORMS) != layer.extras.qk_norm,
    }
    return ", ".join(name for name, wrong in checks.items() if wrong)


def verdict(model_type: str) -> tuple[str, str]:
    """The outcome for a type of the installed transformers, and the reason or the difference."""
    if model_type in NEAREST:
        return "refused", NEAREST[model_type]
    if model_type not in hf.FAMILIES:
        try:
            hf.encodings(types()[model_type]())
        except ValueError as error:
            return ("new" if "is not known here" in str(error) else "refused"), str(error)
        return "read", "by its part for text"
    try:
        text = difference(model_type)
    except Exception as error:  # other models need other inputs
        return "config", f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    return ("differs", text) if text else ("read", "scores, scale, cap and mask compared")


def main(chosen: list[str]) -> None:
    """Prints a line per type."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    counts: dict[str, int] = {}
    for model_type in chosen or list(types().keys()):
        what, why = verdict(model_type)
        counts[what] = counts.get(what, 0) + 1
        print(f"{what:8} {model_type:32} {why}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
