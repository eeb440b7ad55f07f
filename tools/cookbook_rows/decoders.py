"""Decoders that rotate queries and keys."""

from tools.cookbook_rows.row import Row, rope

LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4}
LONGROPE |= {"short_factor": [1.05] * 48, "long_factor": [1.08] * 24 + [2.5] * 24}
DEEPSEEK = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32, "beta_slow": 1}
DEEPSEEK |= {"original_max_position_embeddings": 4096}
GEMMA3 = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}

DECODERS = (
    Row(
        "Llama 2",
        "llama",
        "The files of the Hub have the rows of W_q and W_k sorted for halves; Meta's own files pair"
        " neighbours: `layout='interleaved'`",
        "scores",
        rope(rope_theta=1e4),
    ),
    Row(
        "Llama 3.1",
        "llama",
        "3.0 has the base and no scaling; 3.2 has factor 32",
        "scores",
        {"rope_parameters": LLAMA3},
    ),
    Row(
        "Llama 4",
        "llama4_text",
        "`no_rope_layers` lists 1 for layers WITH RoPE; those see a chunk alone, and their q and k"
        " are normalised after the rotation",
        "scores",
        {"attention_chunk_size": 8192},
    ),
    Row(
        "Qwen 1",
        "",
        "Its code is not in transformers: `use_dynamic_ntk` raises the base by the length, and"
        " `use_logn_attn` multiplies late queries by a logarithm",
    ),
    Row(
        "Qwen 1.5–2.5",
        "qwen2",
        "`sliding_window` does nothing unless `use_sliding_window`, and then from layer"
        " `max_window_layers` on",
        "scores",
        rope(rope_theta=1e6),
    ),
    Row(
        "Qwen 3",
        "qwen3",
        "E is `head_dim` = 128, not width/heads; q and k are normalised, per head, before the"
        " rotation",
        "scores",
        {**rope(rope_theta=1e6), "head_dim": 128},
    ),
    Row(
        "Mistral 7B v0.1",
        "mistral",
        "v0.2 and later: base 1e6 and `sliding_window: null`, which is not the default",
        "scores",
        {**rope(rope_theta=1e4), "sliding_window": 4096},
    ),
    Row(
        "Ministral 3",
        "ministral3",
        "The temperature hides in `rope_parameters` as `llama_4_scaling_beta`; its length is"
        " `original_max_position_embeddings`",
        "scores",
        {},
    ),
    Row(
        "Phi-3 4k",
        "phi3",
        "W_q, W_k, W_v are one `qkv_proj`, one after the other; the window is 2047",
        "scores",
        {**rope(rope_theta=1e4), "sliding_window": 2047},
    ),
    Row(
        "Phi-3 128k",
        "phi3",
        "Short or long factors are chosen by the length of the whole sequence, so say it once:"
        " `encoding.at_length(n)`; q and k are multiplied at short lengths, too",
        "scores",
        {
            "rope_parameters": LONGROPE,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
        },
        head_dim=96,
    ),
    Row(
        "Phi-2",
        "phi",
        "40 % of E, rounded down: 32 of 80 channels",
        "scores",
        rope(rope_theta=1e4, partial_rotary_factor=0.4),
        head_dim=80,
    ),
    Row(
        "GPT-NeoX, Pythia",
        "gpt_neox",
        "`query_key_value` is [H, 3, E] by head, not q‖k‖v; the first quarter of E is rotated",
        "scores",
        rope(rope_theta=1e4, partial_rotary_factor=0.25),
    ),
    Row(
        "GPT-J",
        "gptj",
        "`rotary_dim` counts channels (64 of 256), neighbours in pairs",
        "pairs",
        {"rotary_dim": 64},
        head_dim=256,
    ),
    Row(
        "GLM-4",
        "glm4",
        "Half of E, neighbours in pairs; `glm4_moe` (4.5) has halves, not pairs",
        "scores",
        rope(rope_theta=1e4, partial_rotary_factor=0.5),
    ),
    Row(
        "Cohere Command R",
        "cohere",
        "Neighbours in pairs, though the function is called rotate_half; R+ has `use_qk_norm`",
        "scores",
        rope(rope_theta=8e6),
    ),
    Row(
        "Cohere Command R7B",
        "cohere2",
        "RoPE on the layers with a window alone: every fourth has neither",
        "scores",
        {**rope(rope_theta=5e4), "sliding_window": 4096},
    ),
    Row("Gemma 1", "gemma", "E is 256, not width/heads (7B: 16 · 256 > 3072)", "scores"),
    Row(
        "Gemma 2",
        "gemma2",
        "Scores are divided by sqrt(`query_pre_attn_scalar`) (27B: 144, E = 128), then capped,"
        " then masked; every other layer has the window",
        "scores",
        {"query_pre_attn_scalar": 144},
    ),
    Row(
        "Gemma 3",
        "gemma3_text",
        "The factor 8 is of the full layers alone; older configs have it in a flat `rope_scaling`",
        "scores",
        {"rope_parameters": GEMMA3, "sliding_window": 1024},
    ),
    Row(
        "Gemma 4",
        "gemma4_text",
        "Full layers: heads of `global_head_dim` and p-RoPE, which zeroes the slow frequencies of"
        " the whole E, where a partial rotation takes the first quarter",
        "scores",
    ),
    Row(
        "Granite 3",
        "granite",
        "`attention_multiplier` (1/64) is the scale, not a factor of 1/sqrt(E)",
        "scores",
        {"attention_multiplier": 0.015625},
    ),
    Row(
        "SmolLM3",
        "smollm3",
        "`no_rope_layers` lists 1 for layers WITH RoPE",
        "scores",
    ),
    Row(
        "OLMo 3",
        "olmo3",
        "The scaling is of the full layers alone; q and k are normalised over all heads at once",
        "scores",
    ),
    Row(
        "EXAONE 4",
        "exaone4",
        "RoPE on the layers with a window; on all where there is no window",
        "scores",
    ),
    Row(
        "gpt-oss",
        "gpt_oss",
        "Every other layer has a window, of 128; all have a sink. YaRN with `truncate: false`",
        "weights",
    ),
    Row(
        "MiMo-V2-Flash",
        "mimo_v2_flash",
        "The factor .334 of 192 channels are 64; the window is `sliding_window_size` + 1, and only"
        " layers that have it have sinks",
        "scores",
    ),
    Row(
        "Granite SWASH",
        "granite_swa",
        "`layer_rope_theta` lists a base for each layer, 0 for no RoPE",
        "scores",
        {"attention_multiplier": 0.015625, "layer_rope_theta": [0, 1e4, 1e4, 1e4] * 3},
    ),
    Row(
        "DeepSeek-V3",
        "deepseek_v3",
        "`q_b_proj` puts the rotated channels of a head last: move them first. Those of the key are"
        " one for all heads. mscale² multiplies the scale of the scores, not cos and sin",
        "scores",
        {"rope_parameters": {**DEEPSEEK, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    Row(
        "DeepSeek-V2",
        "deepseek_v2",
        "The same; V3's code sorts the pairs into halves before it rotates, V2's does not: equal"
        " scores, other cached keys",
        "scores",
        {"rope_parameters": {**DEEPSEEK, "mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    Row(
        "DeepSeek-V4",
        "deepseek_v4",
        "Values are rotated as keys are, and the output back; `rope_parameters` has the labels main"
        " (layers with a window alone) and compress, which are no layer types",
        "scores",
        {"layer_types": ["sliding_attention"] * 12},
    ),
    Row(
        "Inkling",
        "inkling_text",
        "q and k are normalised and multiplied by 1/E; keys and values pass a short convolution"
        " before",
        "weights",
    ),
    Row(
        "Inkling 2",
        "inkling2_text",
        "No norms, but clips of q, k and r; the sink of each query is a projection of its input",
        "weights",
    ),
    Row(
        "MiniMax-M2",
        "minimax_m2",
        "`rotary_dim` 64 of 128; transformers leaves it unread, we believe it",
        "scores",
        {"head_dim": 128, "rotary_dim": 64},
    ),
    Row(
        "Falcon 7B",
        "falcon",
        "`query_key_value` has a group's queries, then its k, then its v",
        "rotation",
        {"alibi": False, **rope(rope_theta=1e4)},
    ),
    Row(
        "Qwen2-VL",
        "qwen2_vl_text",
        "Positions have three axes; after an image the text goes on from its largest position:"
        " `positions.multimodal`",
        "scores",
        rope(rope_theta=1e6, mrope_section=[16, 24, 24]),
        head_dim=128,
    ),
    Row(
        "Qwen3-VL",
        "qwen3_vl_text",
        "Sections are interleaved (t h w t h w …), not in chunks as in Qwen2-VL",
        "scores",
        rope(rope_theta=5e6, mrope_section=[24, 20, 20]),
        head_dim=128,
    ),
)
