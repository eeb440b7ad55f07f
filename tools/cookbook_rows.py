"""The rows of docs/cookbook.md: families of models, their keys of positions, traps.

Spec, what else the scores need and the weights are not written here but asked of `pe_jax.hf`; the
live tests (`pytest -m oracles`) build each row's model and ask it, too.
"""

import dataclasses
from typing import Any

ROTATIONS, BIASES = (f"tests/oracles/test_hf_{name}.py" for name in ("rotations", "biases"))
OWN = "tests/oracles/test_cookbook.py"
CHECKS = {  # what a live test compares with the model's own code, and which test
    "scores": (ROTATIONS, "test_what_is_read_is_what_reaches_the_models_softmax"),
    "logits": (
        "tests/oracles/test_model_logits.py",
        "test_with_our_attention_the_logits_are_theirs",
    ),
    "pairs": (ROTATIONS, "test_gptj_and_codegen_rotate_pairs_of_some_channels"),
    "rotation": (ROTATIONS, "test_falcon_and_roformer_rotate"),
    "axes": ("tests/oracles/test_hf_vision.py", "test_images_rotate_as_theirs"),
    "slopes": (BIASES, "test_alibi"),
    "sinusoids": (BIASES, "test_sinusoids_at_the_input"),
    "weights": (OWN, "test_mapped_weights_give_the_models_attention"),
    "rows": (OWN, "test_mapped_rows_are_what_the_model_adds"),
    "patches": (OWN, "test_mapped_patches_are_what_the_model_adds_at_any_size"),
    "table": (OWN, "test_maes_table_has_its_halves_swapped"),
    "": ("", ""),
}
LOGITS = {  # model types whose logits are compared, too
    "gpt_oss",
    "mimo_v2_flash",
    "cohere2",
    "smollm3",
    "llama4_text",
    "deepseek_v3",
    "qwen3_vl_text",
    "inkling_text",
    "inkling2_text",
}
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
STACKS = ("encoder", "decoder")


@dataclasses.dataclass(frozen=True)
class Row:
    """A family of models.

    Attributes:
      name: of the model.
      model_type: of its config; "" where `pe_jax.hf` reads none.
      trap: what costs hours.
      check: which of `CHECKS` compares with the model's own code.
      config: keys of its released config that speak of positions.
      layers: how many; of the other sizes the released ones do not matter.
      head_dim: E.
    """

    name: str
    model_type: str
    trap: str
    check: str = ""
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    layers: int = 12
    head_dim: int = 32

    @property
    def settings(self) -> dict[str, Any]:
        """A config that `pe_jax.hf.encodings` reads."""
        found = {"model_type": self.model_type}
        if not self.model_type.startswith("swin"):  # which has them per stage
            found |= dict.fromkeys(WIDTHS, 2 * self.head_dim) | dict.fromkeys(HEADS, 2)
            found |= dict.fromkeys(LAYERS, self.layers)
            found |= {f"{stack}_attention_heads": 2 for stack in STACKS}
            found |= {f"{stack}_layers": self.layers for stack in STACKS}
        return found | self.config


def _rope(**settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", **settings}}


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
        _rope(rope_theta=1e4),
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
        _rope(rope_theta=1e6),
    ),
    Row(
        "Qwen 3",
        "qwen3",
        "E is `head_dim` = 128, not width/heads; q and k are normalised, per head, before the"
        " rotation",
        "scores",
        {**_rope(rope_theta=1e6), "head_dim": 128},
    ),
    Row(
        "Mistral 7B v0.1",
        "mistral",
        "v0.2 and later: base 1e6 and `sliding_window: null`, which is not the default",
        "scores",
        {**_rope(rope_theta=1e4), "sliding_window": 4096},
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
        {**_rope(rope_theta=1e4), "sliding_window": 2047},
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
        _rope(rope_theta=1e4, partial_rotary_factor=0.4),
        head_dim=80,
    ),
    Row(
        "GPT-NeoX, Pythia",
        "gpt_neox",
        "`query_key_value` is [H, 3, E] by head, not q‖k‖v; the first quarter of E is rotated",
        "scores",
        _rope(rope_theta=1e4, partial_rotary_factor=0.25),
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
        _rope(rope_theta=1e4, partial_rotary_factor=0.5),
    ),
    Row(
        "Cohere Command R",
        "cohere",
        "Neighbours in pairs, though the function is called rotate_half; R+ has `use_qk_norm`",
        "scores",
        _rope(rope_theta=8e6),
    ),
    Row(
        "Cohere Command R7B",
        "cohere2",
        "RoPE on the layers with a window alone: every fourth has neither",
        "scores",
        {**_rope(rope_theta=5e4), "sliding_window": 4096},
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
        {"alibi": False, **_rope(rope_theta=1e4)},
    ),
    Row(
        "Qwen2-VL",
        "qwen2_vl_text",
        "Positions have three axes; after an image the text goes on from its largest position:"
        " `positions.multimodal`",
        "scores",
        _rope(rope_theta=1e6, mrope_section=[16, 24, 24]),
        head_dim=128,
    ),
    Row(
        "Qwen3-VL",
        "qwen3_vl_text",
        "Sections are interleaved (t h w t h w …), not in chunks as in Qwen2-VL",
        "scores",
        _rope(rope_theta=5e6, mrope_section=[24, 20, 20]),
        head_dim=128,
    ),
)

ENCODERS = (
    Row(
        "ModernBERT",
        "modernbert",
        "Every third layer from the first on is full, base 160000; `local_attention` 128 is 64 to"
        " each side: our window is 65",
        "scores",
    ),
    Row(
        "RoFormer",
        "roformer",
        "Neighbours in pairs, though sin and cos come from a table of halves",
        "rotation",
    ),
    Row(
        "ESM-2",
        "esm",
        "Queries are divided by sqrt(E) before the rotation; ESM-1b has a table:"
        " `position_embedding_type`",
        "scores",
        {"position_embedding_type": "rotary"},
    ),
    Row(
        "EuroBERT",
        "eurobert",
        "Llama without the causal mask",
        "scores",
        _rope(rope_theta=250000.0),
    ),
)
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
DEBERTA |= {"position_biased_input": False, "max_position_embeddings": 512}
DEBERTA_V2 = {**DEBERTA, "position_buckets": 256, "max_relative_positions": -1}
SCORES = (
    Row(
        "BLOOM",
        "bloom",
        "m·key instead of -m·distance: the same under a causal softmax alone",
        "slopes",
    ),
    Row(
        "MPT",
        "mpt",
        "`alibi_bias_max` is believed; transformers leaves it unread and takes 8",
        "slopes",
        {"attn_config": {"alibi": True, "alibi_bias_max": 8}},
    ),
    Row(
        "Falcon RW",
        "falcon",
        "The bias is divided by sqrt(E) with the scores; theirs is rounded to bfloat16",
        "slopes",
        {"alibi": True},
    ),
    Row(
        "T5, Flan-T5",
        "t5",
        "No 1/sqrt(E). One table per stack, in its first layer; old files have one more in the"
        " cross-attention, which is not read",
        "weights",
        {"d_kv": 32},
    ),
    Row(
        "UMT5",
        "umt5",
        "As T5, with a table in every layer",
        "weights",
        {"d_kv": 32},
    ),
    Row(
        "LongT5",
        "longt5",
        "`local_radius` 127 is our window of 128 (encoder); transient-global attention is an error",
        "",
        {"d_kv": 32},
    ),
    Row(
        "MPNet",
        "mpnet",
        "T5's buckets on scores that are scaled; always 32 of them, to distance 128",
        "weights",
    ),
    Row(
        "DeBERTa v1",
        "deberta",
        "`in_proj` is [H, 3, E] by head; q has a bias (`q_bias`), k has none; of the projections of"
        " positions p2c's alone has one, which becomes one more column",
        "weights",
        DEBERTA,
    ),
    Row(
        "DeBERTa v2, v3",
        "deberta-v2",
        "The content's own projections serve positions, too (`share_att_key`), with their biases: a"
        " column of ones more in the table, so `dims.width` is D + 1. The table goes through a"
        " LayerNorm first (`norm_rel_ebd`)",
        "weights",
        {**DEBERTA_V2, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
    Row(
        "DeBERTa v2 with `share_att_key: false`",
        "deberta-v2",
        "As v3, with projections for positions alone; no LayerNorm",
        "weights",
        DEBERTA_V2,
    ),
    Row(
        "XLNet",
        "xlnet",
        "`r_w_bias` is u and `r_r_bias` is v; `r` is [D, H, E], ours [H, D, E]",
        "weights",
    ),
    Row(
        "Wav2Vec2-Conformer",
        "wav2vec2-conformer",
        "Its sinusoids alternate sine and cosine, ours has all sines first: the inputs of W_R are"
        " permuted. `rotary` turns the input of the projections, not q and k: an error",
        "weights",
    ),
    Row(
        "Wav2Vec2-BERT",
        "wav2vec2-bert",
        "Rows are by key - query, clipped to 64 on the left and 8 on the right: mirrored, the last"
        " row repeated",
        "weights",
    ),
    Row(
        "WavLM",
        "wavlm",
        "The gate reads the layer's input, a head its own slice: pass `x` to `attention`",
        "weights",
    ),
    Row(
        "LayoutLMv3",
        "layoutlmv3",
        "Positions are (index, left, lower edge); the biases are divided by sqrt(E), too. The input"
        " has learned tables besides",
        "weights",
    ),
    Row(
        "Swin",
        "swin",
        "A table per layer, windows shifted in every other one; in files of the Hub it is below"
        " `attention.self`",
        "weights",
        {"window_size": 7},
    ),
    Row(
        "BEiT",
        "beit",
        "The last three entries are of CLS, at (-1, -1). For other images the rest is resized"
        " bilinearly (`swin.resize`); theirs takes the height for the width there, so images"
        " that are not square get others. Pretraining shares one table"
        " (`use_shared_relative_position_bias`)",
        "weights",
        {"use_relative_position_bias": True},
    ),
    Row(
        "Swin v2",
        "swinv2",
        "Scores are cosines times `exp(logit_scale)`; distances are divided by the window of the"
        " pretraining (`pretrained_window_sizes`)",
        "weights",
        {"window_size": 8, "image_size": 256},
    ),
)
INPUT = (
    Row("BERT", "bert", "LayerNorm comes after the sum with words and segments", "rows"),
    Row(
        "RoBERTa, XLM-R",
        "roberta",
        "Position 0 has row `pad_token_id` + 1 = 2: 512 positions in 514 rows",
        "rows",
        {"max_position_embeddings": 514, "pad_token_id": 1},
    ),
    Row(
        "GPT-2",
        "gpt2",
        "`Conv1D` has weights [in, out]; `scale_attn_by_inverse_layer_idx` divides scores by the"
        " layer's number",
        "rows",
    ),
    Row("OPT", "opt", "Two more rows than positions: position 0 has row 2", "rows"),
    Row(
        "BART",
        "bart",
        "As OPT, in both stacks; the config says 1024, the table has 1026 rows",
        "rows",
    ),
    Row(
        "Whisper",
        "whisper",
        "Two layouts: tensor2tensor's sinusoids in the encoder, a table in the decoder",
        "sinusoids",
    ),
    Row(
        "Marian",
        "marian",
        "All sines before all cosines; words are multiplied by sqrt(D) first if `scale_embedding`",
        "sinusoids",
    ),
    Row(
        "ViT, DeiT",
        "vit",
        "Row 0 is CLS, at (-1, -1): `positions.grid(h, w, prefix=1, numbered=True)`; DeiT has a"
        " second one before the patches. `learned_grid.resize` fits other images; in"
        " `jax.image.resize` the cubic constant is another",
        "patches",
    ),
    Row(
        "DINOv2",
        "dinov2",
        "Released tables are of 518 pixels. Meta's code resizes with `offset=0.1` in the ratios,"
        " transformers without",
        "patches",
        {"image_size": 518, "patch_size": 14},
    ),
    Row(
        "DINOv2 with registers",
        "dinov2_with_registers",
        "Resized with antialiasing; registers go between CLS and patches after the table is added",
        "patches",
        {"image_size": 518, "patch_size": 14},
    ),
    Row("SigLIP", "siglip_vision_model", "No CLS; bicubic without antialiasing", "patches"),
    Row(
        "SigLIP 2 (NaFlex)",
        "siglip2_vision_model",
        "Each image has its own grid, and the table is always resized to it, bilinearly with"
        " antialiasing; padding has the vector of the first patch",
        "patches",
        {"num_patches": 256},
    ),
    Row(
        "ViT-MAE",
        "vit_mae",
        "Released tables have the columns' half first, ours the rows': swap the halves; CLS has"
        " zeros",
        "table",
    ),
)
IMAGES = (
    Row(
        "DINOv3",
        "dinov3_vit",
        "Positions are pixels' centres in [-1, 1]: `positions.grid(h, w, normalized=True,"
        " prefix=…)`; CLS and registers come first and do not turn",
        "axes",
        {"num_register_tokens": 4},
    ),
    Row(
        "Pixtral",
        "pixtral",
        "Rows have the even frequencies, columns the odd ones",
        "axes",
    ),
    Row(
        "Qwen2-VL vision",
        "qwen2_vl_vision",
        "Patches come in blocks of 2 × 2 that are merged later: positions are theirs",
        "axes",
        {"embed_dim": 64, "depth": 2},
    ),
)
GROUPS = {
    "Decoders that rotate": DECODERS,
    "Encoders that rotate": ENCODERS,
    "Images that rotate": IMAGES,
    "Positions in the scores": SCORES,
    "Positions at the input": INPUT,
}
ROWS = tuple(row for rows in GROUPS.values() for row in rows)
