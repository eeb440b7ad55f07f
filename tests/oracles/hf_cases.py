"""Settings of tiny models whose attention `pe_jax.hf` must read: each family, and its variants."""

from pe_jax import hf
from tools.cookbook_rows import ROWS

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
LONG = {"rope_type": "longrope", "short_factor": [1.5] * 16, "long_factor": [3.0] * 16}
THETA = {"rope_theta": 5e4}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0, **THETA},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, **THETA},
    "yarn": {**YARN, "truncate": False, **THETA},
    "llama3": {**LLAMA3, **THETA},
}
MSCALE = {"mscale": 0.7, "mscale_all_dim": 1.2}


BOTH_WAYS = "llama qwen2 mistral llama4_text gemma2 gemma3_text gemma4_text lfm3 gpt2"
BOTH_WAYS = BOTH_WAYS.split()


def flat(**settings):
    return {"rope_parameters": settings}


UNRUN = ("lasr_encoder", "glmasr_encoder", "dia_encoder", "dia_decoder", "t5_gemma_module")
UNRUN += ("gpt_neox_japanese",)  # they take sound, or are parts of a model, or call no interface
ROTATE = [kind for kind, own in hf.FAMILIES.items() if isinstance(own, hf.families.Rotary)]
CASES = {
    **{kind: {} for kind in ROTATE if kind not in UNRUN},
    "t5gemma": {},
    **{f"llama {name}": flat(**own) for name, own in SCALINGS.items()},
    **{f"gpt_neox {n}": flat(partial_rotary_factor=0.5, **own) for n, own in SCALINGS.items()},
    "llama dynamic within": {**flat(**SCALINGS["dynamic"]), "max_position_embeddings": 64},
    "llama dynamic beyond": {**flat(**SCALINGS["dynamic"]), "max_position_embeddings": 8},
    "phi3 longrope short": {
        **flat(**LONG, **THETA),
        "original_max_position_embeddings": 32,
        "max_position_embeddings": 64,
    },
    "phi3 longrope long": {
        **flat(**LONG, **THETA),
        "original_max_position_embeddings": 16,
        "max_position_embeddings": 64,
    },
    "glm yarn": flat(**YARN, partial_rotary_factor=0.25, **THETA),
    "gpt_oss": {},
    "qwen2 window": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen2_moe window": {"use_sliding_window": True, "max_window_layers": 4},
    "qwen3_moe window": {"use_sliding_window": True},
    "mistral no window": {"sliding_window": None},
    "exaone4 no window": {"sliding_window": None, "layer_types": ["full_attention"] * 6},
    "deepseek_v4": {"layer_types": ["sliding_attention"] * 6},
    "granite_swa bases": {"layer_rope_theta": [0, 1e4, 5e5, 1e4, 0, 0]},
    "lfm3 types": {"layer_types": ["full_attention", "sliding_attention", "conv"] * 2},
    "smollm3 window": {"use_sliding_window": True},
    "smollm3 listed": {"no_rope_layers": [0, 1, 1, 0, 0, 1]},
    "llama4_text no tuning": {"attn_temperature_tuning": False, "use_qk_norm": False},
    "llama4_text listed": {"no_rope_layers": [0, 1, 1, 0, 0, 1], "floor_scale": 4},
    "gemma2 scaled": {"query_pre_attn_scalar": 100, "attn_logit_softcapping": None},
    "gemma3_text both ways": {"use_bidirectional_attention": True, "sliding_window": 8},
    "gemma3_text linear": {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    },
    "gemma4_text wide": {"global_head_dim": 64},
    "granite scaled": {"attention_multiplier": 0.3},
    "cohere norm": {"use_qk_norm": True},
    "phi norm": {"qk_layernorm": True},
    "persimmon no norm": {"qk_layernorm": False},
    "qwen3_5_text": {},
    "qwen2_vl_text yarn": flat(**YARN, mrope_section=[4, 6, 6]),
    "qwen3_vl_text linear": flat(rope_type="linear", factor=2.0, mrope_section=[6, 5, 5]),
    "deepseek_v3 half": {"rope_interleave": False},
    "deepseek_v3 yarn": flat(**YARN, **MSCALE, **THETA),
    "deepseek_v2 yarn": flat(**YARN, **MSCALE, **THETA),
    "modernbert": {},
    "minimax no window": {"sliding_window": None},
    "minimax_m2 partial": {"rotary_dim": 16},
    **{f"{kind} both ways": {"is_causal": False} for kind in BOTH_WAYS},
    **{f"{kind} decoder": {"is_decoder": True} for kind in ("bert", "electra", "roberta", "esm")},
    "albert groups": {"inner_group_num": 2},
    "gemma4_text all": {"use_bidirectional_attention": "all"},
    "gemma4_text alike": {"per_layer_config": None},
    "gemma4_text listed": {"layer_types": ["sliding_attention"] * 6},
    "esm rotary": {"position_embedding_type": "rotary"},
    "gpt2": {},
    "gpt2 inverse": {"scale_attn_by_inverse_layer_idx": True},
    "gpt2 unscaled": {"scale_attn_weights": False},
    "gpt_bigcode": {},
    "bert": {},
    "roberta": {},
    "opt": {"ffn_dim": 16, "word_embed_proj_dim": 64},
}
for row in ROWS:  # of the cookbook
    wider = {"hidden_size": 2 * row.head_dim, "head_dim": row.head_dim}
    if row.check == "scores":
        CASES[f"{row.model_type} {row.name}"] = (wider if row.head_dim != 32 else {}) | row.config
ELSEWHERE = (
    "gptj",
    "codegen",
    "qwen2_vl",
    "qwen2_5_vl",
    "llama4",
    "step3p7",
    "gemma3",
    "minimax_text_01",
    "voxtral_realtime_text",
    "zamba",
    "dbrx",
    *hf.parents.listed("hub"),
)  # below, or the same
