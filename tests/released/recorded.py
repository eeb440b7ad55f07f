"""Tiny random models of every family of decoders, and what transformers answers for them.

`recorded.npz` has for each case its config, the names and shapes of its weights, and logits; the
weights are drawn from their names. `python -m tests.released.recorded` writes it anew; it needs the
extra `oracles`.
"""

import functools
import json
import pathlib
import zlib
from typing import Any

import numpy as np

from pe_jax.released.checkpoint import Checkpoint, Stored, Tensors

FILE = pathlib.Path(__file__).parent / "recorded.npz"
ROWS, LENGTH, VOCAB = 2, 24, 31
SIZES = {"hidden_size": 36, "num_attention_heads": 6, "num_hidden_layers": 4, "vocab_size": VOCAB}
WIDE = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 22}
PARTIAL = {"hidden_size": 32, "num_attention_heads": 4}  # 2 of 8 channels rotate
GEMMA = {**WIDE, "head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 20}
GPT2 = {"n_embd": 36, "n_head": 6, "n_layer": 4, "n_positions": 30, "n_inner": 50}
FALCON = {**SIZES, "ffn_hidden_size": 50}
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # model type and keys of the config
    "llama": ("llama", {**WIDE, "rms_norm_eps": 1e-3, "attention_bias": True}),
    "llama tied": ("llama", {**WIDE, "mlp_bias": True, "attention_bias": True, "head_dim": 10}),
    "llama mlp": ("llama", {**WIDE, "mlp_bias": True}),
    "mistral": ("mistral", {**WIDE, "sliding_window": 5}),
    "smollm3": ("smollm3", {**WIDE, "no_rope_layer_interval": 2, "pad_token_id": 0}),
    "qwen2": ("qwen2", {**WIDE, "use_sliding_window": True, "sliding_window": 5}),
    "qwen3": ("qwen3", {**WIDE, "head_dim": 8}),
    "gemma": ("gemma", {**WIDE, "head_dim": 8}),
    "gemma2": ("gemma2", {**GEMMA, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.5}),
    "gemma3": ("gemma3_text", {**GEMMA, "num_hidden_layers": 6}),
    "olmo2": ("olmo2", {**WIDE, "pad_token_id": 0}),
    "olmo3": ("olmo3", {**WIDE, "pad_token_id": 0, "sliding_window": 5}),
    "phi3": ("phi3", {**WIDE, "pad_token_id": 0, "sliding_window": 7}),
    "stablelm": ("stablelm", {**WIDE, **PARTIAL, "use_qkv_bias": True}),
    "stablelm parallel": ("stablelm", {**WIDE, **PARTIAL, "use_parallel_residual": True}),
    "gpt_neox": ("gpt_neox", {**SIZES, **PARTIAL, "intermediate_size": 22}),
    "gpt_neox serial": (
        "gpt_neox",
        {**SIZES, **PARTIAL, "intermediate_size": 22, "hidden_act": "gelu_new"}
        | {"use_parallel_residual": False},
    ),
    "gpt2": ("gpt2", GPT2),
    "gpt2 untied": ("gpt2", GPT2),
    "opt": ("opt", {**SIZES, "ffn_dim": 50, "max_position_embeddings": 30}),
    "bloom": ("bloom", {"hidden_size": 36, "n_head": 6, "n_layer": 4}),
    "mpt": ("mpt", {"d_model": 36, "n_heads": 6, "n_layers": 4}),
    "falcon": ("falcon", FALCON),
    "falcon groups": ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon one norm": (
        "falcon",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
        | {"num_ln_in_parallel_attn": 1, "bias": True},
    ),
    # with 4 heads: transformers rounds the slopes of 6 to bfloat16; its eager attention adds ALiBi
    # a second time, with the mask
    "falcon alibi": (
        "falcon",
        {**FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
        | {"num_attention_heads": 4, "hidden_size": 40},
    ),
}
OPTIONS: dict[str, dict[str, Any]] = {  # of all configs' keys, those that some cases need
    "llama tied": {"tie_word_embeddings": True},
    "gpt2 untied": {"tie_word_embeddings": False},
    "qwen2": {"max_window_layers": 2},
    "gemma3": {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
        "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
    },
}


def drawn(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Weights that keep attention far from uniform, from their names alone."""
    weights = {}
    for name, shape in shapes.items():
        noise = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
        scale = 0.5 if len(shape) == 1 else shape[-1] ** -0.5
        weights[name] = (scale * noise).astype(np.float32)
    return weights


def tokens() -> np.ndarray:
    """[2, 24], none of which is padding."""
    return np.random.default_rng(0).integers(3, VOCAB, (ROWS, LENGTH))


@functools.cache
def load() -> dict[str, dict[str, Any]]:
    """The records: `config`, `shapes` and `logits` by case."""
    with np.load(FILE) as file:
        about = json.loads(str(file["about"]))
        return {case: {**own, "logits": file[case]} for case, own in about.items()}


def checkpoint(record: dict[str, Any], **config: Any) -> Checkpoint:
    """What `pe_jax.released.files.read` gives for such a model; with these keys of its config."""
    return of(drawn(record["shapes"]), {**record["config"], **config})


def of(weights: dict[str, np.ndarray], config: dict[str, Any]) -> Checkpoint:
    """A checkpoint with these weights."""
    stored = {n: Stored(x.shape, "F32", functools.partial(np.copy, x)) for n, x in weights.items()}
    return Checkpoint(pathlib.Path("nowhere"), config, Tensors(stored))


def run(case: str) -> dict[str, Any]:
    """The record of a case, by transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, settings = CASES[case]
    settings = {"vocab_size": VOCAB, **settings, **OPTIONS.get(case, {})}
    config = AutoConfig.for_model(model_type, **settings)
    attention = "sdpa" if case == "falcon alibi" else "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    shapes = {name: list(x.shape) for name, x in model.state_dict().items() if name not in tied}
    if model_type == "gpt_neox":  # files still have the name of transformers 4
        shapes["embed_out.weight"] = shapes.pop("lm_head.weight")
    state = {name: torch.tensor(x) for name, x in drawn(shapes).items()}
    names = {name.replace("embed_out", "lm_head"): x for name, x in state.items()}
    missing, unexpected = model.load_state_dict(names, strict=False)
    assert set(missing) <= tied and not unexpected
    return {
        "config": json.loads(config.to_json_string(use_diff=False)),
        "shapes": shapes,
        "logits": logits(model),
    }


def logits(model) -> np.ndarray:
    """Of a model of transformers."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens()), use_cache=False).logits.numpy()


def main() -> None:
    records = {case: run(case) for case in CASES}
    about = {case: {k: own[k] for k in ("config", "shapes")} for case, own in records.items()}
    arrays = {case: own["logits"] for case, own in records.items()}
    np.savez_compressed(FILE, about=np.array(json.dumps(about)), **arrays)


if __name__ == "__main__":
    main()
