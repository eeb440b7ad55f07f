"""Configs of released models, as on the Hub, and the sizes that others need."""

from typing import Any

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
PYTHIA = {
    "model_type": "gpt_neox",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "max_position_embeddings": 2048,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
}
LLAMA31 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
MISTRAL = {"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32}
MISTRAL |= {"num_hidden_layers": 32, "rope_theta": 10000.0, "sliding_window": 4096}
GEMMA2 = {
    "model_type": "gemma2",
    "hidden_size": 4608,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_hidden_layers": 46,
    "query_pre_attn_scalar": 144,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
    "rope_theta": 10000.0,
}
GEMMA3 = {  # of transformers 4: flat, inside of text_config, sizes left out
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 27},
}
GEMMA4 = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 512,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e6,
        },
    },
}
DEEPSEEK3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
}
QWEN2_VL = {  # flat, of transformers 4
    "model_type": "qwen2_vl",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "max_window_layers": 28,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "embed_dim": 1280, "num_heads": 16},
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "head_dim": 64,
    "num_hidden_layers": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "max_position_embeddings": 131072,
    "initial_context_length": 4096,
    "rope_theta": 150000,
    "rope_scaling": {
        **YARN,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
}
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "head_dim": 128,
        "num_hidden_layers": 48,
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": 4,
        "floor_scale": 8192,
        "no_rope_layers": [],
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "use_qk_norm": True,
    },
}
MINIMAX = {
    "model_type": "minimax_text_01",
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "head_dim": 128,
    "num_hidden_layers": 16,
    "attn_type_list": ([0] * 7 + [1]) * 2,
    "rope_theta": 10000000,
    "rotary_dim": 64,
}
PHI3 = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "rope_scaling": {"type": "su", "short_factor": [1.05] * 48, "long_factor": [1.5] * 48},
}
DEBERTA3 = {
    "model_type": "deberta-v2",
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "max_relative_positions": -1,
}
MPT = {
    "model_type": "mpt",
    "d_model": 4096,
    "n_heads": 32,
    "n_layers": 32,
    "max_seq_len": 2048,
    "learned_pos_emb": True,
    "attn_config": {"alibi": True, "alibi_bias_max": 8, "prefix_lm": False, "softmax_scale": None},
}
FALCON_RW = {"model_type": "falcon", "hidden_size": 2048, "num_attention_heads": 32, "alibi": True}
FALCON_RW |= {"num_hidden_layers": 24}
T5 = {
    "model_type": "t5",
    "d_model": 512,
    "d_kv": 64,
    "num_heads": 8,
    "num_layers": 6,
    "relative_attention_num_buckets": 32,
    "n_positions": 512,
}
BERT = {"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12}
BERT |= {"num_hidden_layers": 12, "max_position_embeddings": 512}
SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4}


def of(model_type: str, **keys) -> dict[str, Any]:
    """A config of a type with common sizes."""
    return {**SIZES, "model_type": model_type, **keys}
