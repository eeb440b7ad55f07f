"""A config is read: encodings, windows, scales and the rest of each layer."""

import json
import types

import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings.windowed import without_window
from tests.hf.configs import (
    BERT,
    DEBERTA3,
    FALCON_RW,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    LLAMA4,
    LLAMA31,
    MINIMAX,
    MISTRAL,
    MPT,
    PYTHIA,
    QWEN2_VL,
    SIZES,
    T5,
    YARN,
)

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


def test_a_video_that_counts_seconds_is_read_and_written():
    """Qwen2.5-VL's rate stands in the vision config, and is one of the positions of the text."""
    text = {"hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 2}
    nested = {"model_type": "qwen2_5_vl", "vision_config": {"tokens_per_second": 2}}
    nested["text_config"] = {"model_type": "qwen2_5_vl_text", **text}
    layers = hf.encodings(nested)
    assert [layer.tokens_per_second for layer in layers] == [2, 2]
    assert hf.encodings({**nested, **text, "text_config": None}) == layers
    assert hf.encodings({**text, **hf.to_hf(layers, "qwen2_5_vl_text")}) == layers
    assert hf.encodings(nested["text_config"])[0].tokens_per_second is None
    with pytest.raises(ValueError, match="tokens_per_second=2: not understood for 'qwen2_vl"):
        hf.encodings({**nested, "text_config": {"model_type": "qwen2_vl_text", **text}})
    with pytest.raises(ValueError, match="'qwen2_vl_text' would be read as"):
        hf.to_hf(layers, "qwen2_vl_text")
