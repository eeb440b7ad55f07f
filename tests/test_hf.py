"""Whole Hugging Face configs, as on the Hub; tests/oracles/test_hf_*.py ask transformers."""

import dataclasses
import json
import types

import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings.rope_scaling import Llama3, LongRoPE, Proportional, YaRN
from pe_jax.encodings.windowed import without_window
from pe_jax.hf import families
from pe_jax.hf.keys import Keys
from tests.faults.test_encoding_faults import refused

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
E = 0.1 * 3.6888794541139363 + 1  # 0.1·ln 40 + 1

READ = [  # config, pattern of one stack's layers with attention, what the first of them has besides
    (PYTHIA, "rope(fraction=0.25)", {"head_dim": 64}),
    (LLAMA31, "rope(base=500000.0,scaling=llama3(factor=8.0))", {"head_dim": 128}),
    (MISTRAL, "rope@window=4096", {"window": 4096}),
    ({**MISTRAL, "sliding_window": None}, "rope", {"window": None}),
    (GEMMA2, "rope@window=4096,rope", {"window": 4096, "scale": 144**-0.5, "logit_cap": 50.0}),
    ({**GEMMA2, "attn_logit_softcapping": None}, "rope@window=4096,rope", {"logit_cap": None}),
    (
        GEMMA3["text_config"] | {"num_hidden_layers": 6},
        "rope@window=1024*5,rope(base=1000000.0,scaling=linear(factor=8.0))",
        {"window": 1024, "also": ("qk_norm",), "head_dim": 256},
    ),
    (
        GEMMA4,
        "rope@window=512*5,rope(base=1000000.0,scaling=proportional(fraction=0.25))",
        {"window": 512, "scale": 1.0, "head_dim": 256},
    ),
    (QWEN2_VL, "mrope(sections=(16, 24, 24))", {"window": None}),
    (LLAMA4, None, {"chunk": 8192, "also": ("qk_norm",)}),
    (MINIMAX, "rope(base=10000000,fraction=0.5)", {"head_dim": 128}),
    (FALCON_RW, "alibi(scaled=True)", {"scale": None}),
    (MPT, "alibi", {"scale": None, "causal": True}),
    ({**MPT, "attn_config": {"alibi_bias_max": 16}}, "alibi(bias_max=16.0)", {}),
    (T5, "t5(bidirectional=True)", {"causal": False, "stack": "encoder"}),
    (
        DEBERTA3,
        "deberta",
        {"causal": False, "also": ("share_att_key", "norm_rel_ebd")},
    ),
    ({**DEBERTA3, "pos_att_type": ["c2p"]}, "deberta(pos_att_type=('c2p',))", {}),
    ({**DEBERTA3, "pos_att_type": ["p2c"]}, "deberta(pos_att_type=('p2c',))", {}),
    (BERT, "learned", {"causal": False}),
    (
        {**BERT, "position_embedding_type": "relative_key"},
        "shaw(clip=511,values=False)",
        {"first_row": 0},
    ),
    ({**SIZES, "model_type": "smollm3"}, "rope(base=2000000.0)*3,nope", {}),
    (
        {**SIZES, "model_type": "cohere2"},
        "rope(layout='interleaved')@window=4096*3,nope",
        {"window": 4096},
    ),
    (
        {**SIZES, "model_type": "roberta", "max_position_embeddings": 514},
        "learned",
        {"first_row": 2},
    ),
    (
        {
            **SIZES,
            "model_type": "ministral3",
            "rope_parameters": {**YARN, "factor": 1.0, "llama_4_scaling_beta": 0.1},
        },
        "rope(scaling=yarn(factor=1.0,original_length=4096,attention_factor=1.0))+temperature(floor_scale=4096,offset=0)",
        {},
    ),
    (
        {**SIZES, "model_type": "modernbert", "local_rope_theta": 1e4, "local_attention": 128},
        "rope(base=160000.0),rope@window=65*2,rope(base=160000.0)",
        {"window": None, "causal": False},
    ),
    ({**SIZES, "model_type": "pixtral", "rope_theta": 1e4}, "rope_2d(spectrum='alternating')", {}),
    (
        {**SIZES, "model_type": "dinov3_vit", "num_register_tokens": 4},
        "rope_2d(base=100.0,normalized=True)",
        {"prefix": 5},
    ),
]


READ += [  # keys that older configs have on the Hub, and that transformers leaves unread
    (
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_head": 16,
            "n_layer": 28,
            "n_positions": 2048,
            "rotary": True,
            "rotary_dim": 64,
            "scale_attn_weights": True,
        },
        "rope(fraction=0.25,layout='interleaved')",
        {"head_dim": 256},
    ),
    (
        {
            **SIZES,
            "model_type": "cohere2",
            "position_embedding_type": "rope_gptj",
            "rotary_pct": 1.0,
        },
        "rope(layout='interleaved')@window=4096*3,nope",
        {},
    ),
    ({**GEMMA2, "sliding_window_size": 4096}, "rope@window=4096,rope", {"window": 4096}),
    (
        {**SIZES, "model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": "LG"},
        "rope@window=64,nope",
        {"window": 64},
    ),
    (
        {**SIZES, "model_type": "nomic_bert", "rotary_emb_base": 1000, "rotary_emb_fraction": 0.5},
        "rope(base=1000,fraction=0.5)",
        {"causal": False},
    ),
    (
        {"model_type": "bloom", "hidden_size": 512, "n_head": 8, "n_layer": 2, "offset_alibi": 100},
        "alibi",
        {},
    ),
    (
        {
            "model_type": "marian",
            "d_model": 512,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "static_position_embeddings": True,
        },
        "sinusoidal(layout='concatenated')",
        {"stack": "encoder"},
    ),
    (
        {**SIZES, "model_type": "hunyuan_v1_dense", "use_rotary_pos_emb": True, "rope_theta": 1e4}
        | {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0}},
        "rope(scaling=ntk(factor=1000.0))",
        {},
    ),
    (
        {**SIZES, "model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64}
        | {"attn_type_list": [1] * 4, "rope_theta": 5000000},
        "rope(base=5000000,fraction=0.5)",
        {},
    ),
    (
        {
            **SIZES,
            "model_type": "llama",
            "rope_scaling": {**YARN, "finetuned": True, "factor": 1.0},
        },
        "rope(scaling=yarn(factor=1.0,original_length=4096,attention_factor=1.0))",
        {},
    ),
]


@pytest.mark.parametrize("config, pattern, first", READ)
def test_a_config_is_read(config, pattern, first):
    before = json.dumps(config)
    layers = hf.encodings(config)
    assert json.dumps(config) == before
    attending = [x for x in layers if x.stack == layers[0].stack and x.encoding is not None]
    if pattern is not None:
        assert hf.pattern(attending) == pattern
        assert without_window(pe_jax.parse(pattern)[0]) == attending[0].encoding
    assert {name: getattr(attending[0], name) for name in first} == first
    for layer in attending:
        dims = pe_jax.Dims(8 * layer.head_dim, 8, 8, layer.head_dim)
        layer.encoding.at_length(4096).check(dims)


def test_gemma_3_has_two_bases_and_windows_between_full_layers():
    layers = hf.encodings(GEMMA3)
    assert len(layers) == 34
    for index, layer in enumerate(layers):
        full = (index + 1) % 6 == 0
        assert layer.encoding.base == (1e6 if full else 1e4)
        assert layer.window == (None if full else 1024)
        assert (layer.encoding.scaling is None) != full


def test_gemma_4_has_wider_heads_in_full_layers():
    layers = hf.encodings(GEMMA4)
    assert [layer.head_dim for layer in layers] == [256] * 5 + [512]
    assert layers[-1].encoding.scaling == Proportional(0.25) and layers[-1].window is None
    by_layer = {k: v for k, v in GEMMA4.items() if k != "global_head_dim"}
    assert hf.encodings({**by_layer, "per_layer_config": {"05": {"head_dim": 512}}}) == layers


def test_deepseek_rotates_a_part_of_wider_heads_and_scales_with_mscale():
    (layer,) = set(hf.encodings(DEEPSEEK3))
    assert (layer.head_dim, layer.encoding.rotary_dim(192), layer.rotary_last) == (192, 64, True)
    assert layer.encoding.layout == "interleaved" and layer.encoding.attention_factor == 1
    assert layer.scale == pytest.approx(E * E * 192**-0.5)
    assert layer.encoding.scaling == YaRN(40, 4096, 32, 1, 1.0, 1.0)
    half = hf.encodings({**DEEPSEEK3, "rope_interleave": False})[0]
    assert half.encoding.layout == "half"


def test_llama_4_rotates_three_layers_in_chunks_and_tempers_the_fourth():
    layers = hf.encodings(LLAMA4)
    rope, plain = layers[0], layers[3]
    assert rope.encoding.layout == "interleaved" and rope.encoding.scaling == Llama3(16.0, 1.0, 1.0)
    assert plain.encoding == pe_jax.make("temperature") and plain.chunk is None and not plain.also
    assert hf.pattern(layers).endswith("*3,temperature") and len(layers) == 48


def test_gpt_oss_has_sinks_and_yarn_between_channels():
    layers = hf.encodings(GPT_OSS)
    assert [x.window for x in layers] == [128, None] * 2
    rope, sink = layers[0].encoding.parts
    assert sink == pe_jax.make("sink") and rope.scaling == YaRN(32.0, 4096, truncate=False)
    windowed, full = pe_jax.parse(hf.pattern(layers))
    assert windowed.encoding == full == layers[0].encoding and windowed.window == 128


def test_mimos_own_config_is_read():
    """The Hub's has keys that transformers turns into its own, or leaves unread."""
    config = {**SIZES, "model_type": "mimo_v2_flash", "head_dim": 192, "swa_head_dim": 192}
    config |= {"rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334}
    config |= {"sliding_window": 128, "sliding_window_size": 128, "attention_chunk_size": 128}
    config |= {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    layers = hf.encodings(config | {"hybrid_layer_pattern": [0, 1, 1, 0]})
    full, windowed = layers[0], layers[1]
    assert [x.window for x in layers] == [None, 129, 129, None]
    assert full.encoding.rotary_dim(192) == 64 and full.encoding.base == 5e6
    rope, sink = windowed.encoding.parts
    assert (rope.rotary_dim(192), rope.base, sink) == (64, 1e4, pe_jax.make("sink"))
    assert [x.window for x in hf.encodings(config)] == [None, 129, 129, 129]
    refused(
        lambda: hf.encodings(config | {"add_full_attention_sink_bias": True}),
        "add_full_attention_sink_bias=True",
        "only False is known here",
    )
    refused(lambda: hf.encodings(config | {"swa_head_dim": 64}), "swa_head_dim=64", "head_dim=192")


def test_granite_has_a_base_for_each_layer_and_none_where_it_is_0():
    config = {**SIZES, "model_type": "granite_swa", "layer_rope_theta": [0, 1e4, 5e5, 0]}
    layers = hf.encodings(config)
    assert hf.pattern(layers) == (
        "sink,(rope+sink)@window=128,(rope(base=500000.0)+sink)@window=128,sink@window=128"
    )
    assert hf.to_hf(layers, "granite_swa")["layer_rope_theta"] == [0, 1e4, 5e5, 0]
    for wrong in ([1e4], [1e4] * 3 + [-1], 5):
        refused(
            lambda wrong=wrong: hf.encodings(config | {"layer_rope_theta": wrong}),
            f"layer_rope_theta={wrong}",
            "for each of 4 layers",
        )


def test_lfm3s_labels_are_of_the_layers_that_attend():
    layers = hf.encodings({**SIZES, "model_type": "lfm3", "num_hidden_layers": 8})
    kinds = [layer.encoding and (layer.encoding.base, layer.window) for layer in layers]
    assert kinds == [None, None, (1e6, None), None, (1e4, 256), None, (1e6, None), None]
    assert layers[2].encoding.scaling == Proportional(0.5)


def test_deepseek_v4s_labels_are_no_layer_types():
    config = {**SIZES, "model_type": "deepseek_v4", "head_dim": 512, "compress_ratios": [0, 4, 128]}
    config |= {"num_hidden_layers": 3, "qk_rope_head_dim": 64, "compress_rope_theta": 160000.0}
    config |= {"rope_theta": 1e4, "rope_scaling": {**YARN, "factor": 16.0}}
    main, *others = layers = hf.encodings(config)
    assert main.also == ("qk_norm", "rotated_values") and main.encoding.parts[0].base == 1e4
    assert [x.also[2] for x in others] == [
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ]
    for layer in layers:
        rope, sink = layer.encoding.parts
        assert rope.rotary_dim(512) == 64 and layer.rotary_last and layer.window == 128
        assert rope.layout == "interleaved" and sink == pe_jax.make("sink")
        assert (rope.scaling is None) == (layer is main)
    assert others[0].encoding.parts[0].scaling.attention_factor == 1.0
    assert hf.encodings({**SIZES, **hf.to_hf(layers, "deepseek_v4")}) == layers


def test_inkling_slides_on_five_layers_of_six_and_grows_on_the_sixth():
    first = hf.encodings({**SIZES, "num_hidden_layers": 6, "model_type": "inkling_text"})
    assert hf.pattern(first) == "inkling(extent=512)@window=512*5,inkling"
    assert {x.scale for x in first} == {1 / 128} and "qk_norm" in first[0].also
    given = {**SIZES, "num_hidden_layers": 6, "log_scaling_n_floor": 7, "local_layer_ids": [0, 3]}
    some = hf.encodings({"text_config": {**given, "model_type": "inkling_text"}})
    assert [x.window for x in some] == [512, None, None, 512, None, None]
    assert some[1].encoding.floor == 7 and some[0].encoding.floor is None
    second = hf.encodings({**SIZES, "model_type": "inkling2_text", "num_hidden_layers": 6})
    full, sink = second[-1].encoding.parts
    assert full.floor == 128_000 and full.clip_states == 8.0 and sink.from_input
    assert second[0].scale is None and second[0].window == second[0].encoding.parts[0].extent
    for kind, layers in (("inkling_text", some), ("inkling2_text", second)):
        assert hf.encodings({**SIZES, **hf.to_hf(layers, kind)}) == layers
    wrong = {**given, "model_type": "inkling_text", "local_layer_ids": [6]}
    refused(lambda: hf.encodings(wrong), "local_layer_ids=[6]", "numbers below 6")


def test_layers_without_attention_have_no_encoding():
    layers = hf.encodings(MINIMAX)
    assert [layer.encoding is None for layer in layers] == ([True] * 7 + [False]) * 2
    assert layers[7].encoding.rotary_dim(128) == 64  # not the whole head
    refused(lambda: hf.pattern(layers), "layer 0", "no attention")


def test_phi_3_is_short_up_to_its_original_length():
    scaling = hf.encodings(PHI3)[0].encoding.scaling
    assert scaling == LongRoPE((1.05,) * 48, (1.5,) * 48, 4096, factor=32.0)


def test_encoders_come_before_decoders():
    layers = hf.encodings({**T5, "num_decoder_layers": 2})
    assert [x.stack for x in layers] == ["encoder"] * 6 + ["decoder"] * 2
    assert [x.encoding.bidirectional for x in layers] == [True] * 6 + [False] * 2
    refused(lambda: hf.pattern(layers), "2 stacks")
    own = hf.encodings({**T5, "model_type": "umt5"})[0].encoding
    assert not own.shared


def test_mpnets_buckets_are_t5s():
    (layer,) = set(hf.encodings({**SIZES, "model_type": "mpnet"}))
    learned, buckets = layer.encoding.parts
    assert learned.length == 510 and layer.first_row == 2
    distance = list(range(-300, 301))
    theirs = pe_jax.encodings.t5.bucket(distance, bidirectional=True)
    ours = pe_jax.encodings.buckets.bucket(distance, buckets.edges, directional=True)
    assert theirs.tolist() == ours.tolist()


def test_an_object_with_to_dict_and_a_part_for_text_are_read():
    config = types.SimpleNamespace(to_dict=lambda: LLAMA31)
    assert hf.encodings(config) == hf.encodings(LLAMA31)
    inner = types.SimpleNamespace(to_dict=lambda: GEMMA3["text_config"])
    assert hf.encodings({**GEMMA3, "text_config": inner}) == hf.encodings(GEMMA3)
    with pytest.raises(TypeError, match="config=3: pass a config or its dict"):
        hf.encodings(3)


def test_a_nested_truncate_is_read_and_said():
    own = {**YARN, "truncate": False}
    config = {**GEMMA4, "rope_parameters": {"sliding_attention": own, "full_attention": own}}
    with pytest.warns(UserWarning, match="'truncate'.=False is read; transformers 5.23 leaves it"):
        layers = hf.encodings(config)
    assert not layers[0].encoding.scaling.truncate
    hf.encodings({**LLAMA31, "rope_scaling": own})  # not nested: both read it


def test_a_type_without_settings_of_its_own_is_not_rotated():
    config = {**GEMMA4, "rope_parameters": {**GEMMA4["rope_parameters"], "full_attention": None}}
    assert hf.pattern(hf.encodings(config)) == "rope@window=512*5,nope"


@pytest.mark.parametrize("config", [config for config, *_ in READ] + [GPT_OSS, DEEPSEEK3, PHI3])
def test_what_was_read_is_written(config):
    layers, kind = hf.encodings(config), config.get("text_config", config)["model_type"]
    written = json.loads(json.dumps(hf.to_hf(layers, kind)))
    assert hf.encodings({**config.get("text_config", config), **clean(config), **written}) == layers


def clean(config):
    """None for the keys of transformers 4 that the written ones replace."""
    old = ("rope_scaling", "rope_theta", "rotary_pct", "rotary_emb_base", "attn_type_list")
    old += ("rotary_emb_fraction",)
    return dict.fromkeys(
        [k for k in (*old, "rotary_dim") if k in config.get("text_config", config)]
    )


def test_a_change_is_written():
    layers = [
        dataclasses.replace(x, encoding=pe_jax.make("rope", scaling=YaRN(4.0, 4096)), window=512)
        for x in hf.encodings(MISTRAL)
    ]
    found = hf.to_hf(layers, "mistral")
    assert found["sliding_window"] == 512 and found["rope_parameters"]["rope_type"] == "yarn"


@pytest.mark.parametrize(
    "encoding, kind, words",
    [
        ("rope(layout='interleaved')", "llama", ["layer 0", "'llama' would be read as"]),
        ("alibi", "t5", ["layers", "at least one in the encoder"]),
        ("alibi", "bert", ["encoding=ALiBi", "Learned"]),
        ("rope", "gptj", ["layer 0", "would be read as"]),
        ("rope", "lama", ["model_type='lama'", "llama"]),
    ],
)
def test_what_a_model_type_cannot_say_is_an_error(encoding, kind, words):
    layer = hf.LayerEncoding(pe_jax.parse(encoding)[0], 64)
    refused(lambda: hf.to_hf([layer], kind), *words)


def test_no_layers_and_other_layers_are_errors():
    refused(lambda: hf.to_hf([], "llama"), "layers=()")
    layers = [hf.LayerEncoding(pe_jax.make(n), 64) for n in ("rope", "nope")]
    refused(lambda: hf.to_hf(layers, "llama"), "would be read as")
    refused(lambda: hf.pattern([]), "0 stacks")


def test_patterns_are_read_back():
    for spec in ("rope*3,nope", "(rope+temperature)*2,alibi", "t5+rope", "rope,nope,rope"):
        layers = [hf.LayerEncoding(encoding, 8) for encoding in pe_jax.parse(spec)]
        assert hf.pattern(layers) == spec and hf.pattern(layers * 2) == spec


WRONG = [  # config, words of the error
    ({}, ["model_type=None"]),
    ({"model_type": "lama"}, ["model_type='lama'", "nearest is", "llama", "from_hf"]),
    ({"model_type": "funnel"}, ["'funnel'", "transformer_xl"]),
    ({"model_type": "x" * 900}, ["model_type="]),
    ({"model_type": "llama"}, ["num_hidden_layers is missing", "'llama'"]),
    ({**LLAMA31, "num_hidden_layers": "4"}, ["num_hidden_layers='4'", "integer"]),
    ({**LLAMA31, "num_attention_heads": 7}, ["num_attention_heads=7", "4096"]),
    ({**LLAMA31, "rope_theta": -1}, ["base=-1"]),
    ({**LLAMA31, "alibi": True}, ["alibi=True", "not understood for 'llama'", "ours", "alibi"]),
    ({**LLAMA31, "rope_pattern": [1]}, ["rope_pattern=[1]", "ours for such things: rope"]),
    ({**LLAMA31, "layer_types": ["full_attention"]}, ["layer_types", "not understood"]),
    ({**LLAMA31, "sliding_window": 5}, ["sliding_window=5", "window"]),
    ({**LLAMA31, "rotary": False}, ["rotary=False", "not understood"]),
    ({**LLAMA31, "relative_attention": True}, ["relative_attention=True", "t5"]),
    ({**LLAMA31, "rope_scaling": {"rope_type": "spiral"}}, ["rope_type='spiral'", "known"]),
    ({**LLAMA31, "rope_scaling": {"rope_type": "axial"}}, ["rope_type='axial'"]),
    ({**LLAMA31, "rope_scaling": {"mrope_section": [2, 3, 3]}}, ["mrope_section", "mrope"]),
    ({**LLAMA31, "rope_scaling": 3}, ["rope_scaling=3", "dict"]),
    ({**LLAMA31, "rope_parameters": {"rope_theta": 1.0}}, ["rope_parameters", "rope_scaling"]),
    ({**PYTHIA, "rotary_pct": 0.01}, ["partial_rotary_factor=0.01", "0 of 64"]),
    ({**PYTHIA, "partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5", "rotary_pct=0.25"]),
    ({**MINIMAX, "rotary_dim": 256}, ["rotary_dim=256", "head_dim=128"]),
    (
        {**MINIMAX, "rope_parameters": {"partial_rotary_factor": 0.25}},
        ["rotary_dim=64", "says 32", "keep one"],
    ),
    ({**MINIMAX, "attn_type_list": [2] * 16}, ["attn_type_list"]),
    ({**GEMMA4, "layer_types": ["dilated"] * 6}, ["layer_types='dilated'", "sliding_attention"]),
    ({**GEMMA4, "layer_types": ["full_attention"]}, ["layer_types", "each of 6"]),
    ({**GEMMA4, "sliding_window": None}, ["sliding_window=None", "sliding_attention"]),
    ({**GEMMA4, "use_bidirectional_attention": "all"}, ["use_bidirectional_attention='all'"]),
    (
        {**GEMMA4, "rope_parameters": {"main": {"rope_theta": 1e4}}},
        ["rope_parameters has settings for main", "'sliding_attention'"],
    ),
    ({**GEMMA4, "per_layer_config": {"1": {"head_dim": 99}}}, ["per_layer_config", "one head_dim"]),
    ({**GEMMA2, "use_bidirectional_attention": True}, ["use_bidirectional_attention=True"]),
    (
        {**DEEPSEEK3, "partial_rotary_factor": 0.5},
        ["partial_rotary_factor=0.5", "qk_rope_head_dim"],
    ),
    (
        {**LLAMA4, "text_config": {**LLAMA4["text_config"], "no_rope_layers": [1]}},
        ["no_rope_layers"],
    ),
    ({**T5, "relative_attention_num_buckets": 3}, ["num_buckets=3"]),
    (
        {**T5, "model_type": "longt5", "encoder_attention_type": "transient-global"},
        ["encoder_attention_type='transient-global'", "local"],
    ),
    ({**DEBERTA3, "pos_att_type": ["p2p"]}, ["pos_att_type=['p2p']", "c2p"]),
    ({**DEBERTA3, "talking_head": True}, ["talking_head=True", "dape"]),
    ({**MPT, "attn_config": {"alibi": False}}, ["attn_config.alibi=False", "learned"]),
    ({**MPT, "attn_config": {"rope": True}}, ["rope=True"]),
    (
        {**BERT, "position_embedding_type": "relative_key_query"},
        ["position_embedding_type='relative_key_query'", "deberta"],
    ),
    ({**SIZES, "model_type": "roformer", "rotary_value": True}, ["rotary_value=True"]),
    ({**SIZES, "model_type": "mpnet", "relative_attention_num_buckets": 16}, ["16", "32"]),
    (
        {"model_type": "xlnet", "d_model": 8, "n_head": 2, "n_layer": 1, "clamp_len": 9},
        ["clamp_len"],
    ),
    (
        {**SIZES, "model_type": "pixtral", "rope_parameters": {"rope_type": "yarn"}},
        ["rope_type='yarn'", "axial"],
    ),
    ({"model_type": "swin", "use_absolute_embeddings": True}, ["use_absolute_embeddings=True"]),
    (
        {**SIZES, "model_type": "siglip2_vision_model", "num_patches": 200},
        ["num_patches=200", "square"],
    ),
    (
        {**SIZES, "model_type": "beit", "use_relative_position_bias": "yes"},
        ["use_relative_position_bias='yes'", "True or False"],
    ),
]


@pytest.mark.parametrize("config, words", WRONG)
def test_what_is_not_understood_is_an_error(config, words):
    refused(lambda: hf.encodings(config), *words)


JUNK = ("junk", -3, 0.3, True, [], [1, "a"], {"a": 1}, {"full_attention": 3}, 10**30, "x" * 900)


@pytest.mark.parametrize("kind", hf.FAMILIES)
def test_junk_for_any_key_that_is_read_is_one_short_line(kind):
    """Each key that a family reads, with values that no model has: a ValueError, or it is read."""
    sizes = {
        name: 4
        for names in (SIZES, "n_embd n_head n_layer d_model depth".split())
        for name in names
    }
    sizes |= {"hidden_size": 256, "n_embd": 256, "d_model": 256, "embed_dim": 256, "head_dim": 64}
    sizes |= {f"{s}_{n}": 4 for s in ("encoder", "decoder") for n in ("layers", "attention_heads")}
    sizes |= (
        {"num_heads": [4, 4], "depths": [2, 2]} if kind.startswith("swin") else {"num_heads": 4}
    )
    config = {"model_type": kind, **sizes}
    if kind.startswith("qwen2") and not kind.endswith("vision"):
        config["rope_parameters"] = {"rope_theta": 1e4, "mrope_section": [8, 12, 12]}
        config = config if "vl" in kind else {**config, "rope_parameters": {"rope_theta": 1e4}}
    if kind.startswith("qwen3_vl"):
        config["rope_parameters"] = {"rope_theta": 1e4, "mrope_section": [12, 10, 10]}
    if kind == "qwen3_5_text":
        config["rope_parameters"] = {"rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    if kind == "mimo_v2_flash":
        config["head_dim"] = 192  # of which its factor takes 64
    keys = Keys(kind, config)
    assert hf.FAMILIES[kind].read(keys)
    for name in sorted(keys.known | {"rope_scaling", "rope_parameters", "position_x"}):
        for value in JUNK:
            try:
                hf.encodings({**config, name: value})
            except ValueError as error:
                assert "\n" not in str(error) and len(str(error)) < 500


def test_the_families_are_there():
    rotary = "llama llama4_text qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen2_vl_text mistral"
    rotary += " qwen3_vl_text ministral3 mixtral phi phi3 gpt_neox gptj codegen glm glm4 cohere"
    rotary += (
        " cohere2 gemma gemma2 gemma3_text gemma4_text granite deepseek_v2 deepseek_v3 minimax"
    )
    rotary += " smollm3 olmo2 stablelm persimmon nemotron gpt_oss falcon modernbert roformer esm"
    others = "mpt bloom t5 umt5 mt5 longt5 deberta deberta-v2 xlnet wavlm swin swinv2 layoutlmv3"
    others += " vit deit dinov2 dinov2_with_registers siglip_vision_model siglip2_vision_model beit"
    others += " dinov3_vit pixtral vit_mae marian opt gpt2 mpnet whisper bert roberta electra"
    assert set(f"{rotary} {others}".split()) <= set(hf.FAMILIES)
    assert not set(hf.FAMILIES) & set(families.NEAREST)
