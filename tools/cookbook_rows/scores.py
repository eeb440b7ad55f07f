"""Models with positions in the scores."""

from tools.cookbook_rows.row import Row

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
        "`alibi_bias_max` is read; transformers ignores it and takes 8",
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
