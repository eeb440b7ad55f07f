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
    of,
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
        {"window": 1024, "extras": hf.Extras(qk_norm=True), "head_dim": 256},
    ),
    (
        GEMMA4,
        "rope@window=512*5,rope(base=1000000.0,scaling=proportional(fraction=0.25))",
        {"window": 512, "scale": 1.0, "head_dim": 256},
    ),
    (QWEN2_VL, "mrope(sections=(16, 24, 24))", {"window": None}),
    (LLAMA4, None, {"chunk": 8192, "extras": hf.Extras(qk_norm=True)}),
    (MINIMAX, "rope(base=10000000,fraction=0.5)", {"head_dim": 128}),
    (FALCON_RW, "alibi(scaled=True)", {"scale": None}),
    (MPT, "alibi", {"scale": None, "causal": True}),
    (T5, "t5(bidirectional=True)", {"causal": False, "stack": "encoder"}),
    (
        DEBERTA3,
        "deberta",
        {"causal": False, "extras": hf.Extras(share_att_key=True, norm_rel_ebd=True)},
    ),
    ({**DEBERTA3, "pos_att_type": ["c2p"]}, "deberta(pos_att_type=('c2p',))", {}),
    ({**DEBERTA3, "pos_att_type": ["p2c"]}, "deberta(pos_att_type=('p2c',))", {}),
    (BERT, "learned", {"causal": False, "first_row": 0}),
    (of("smollm3"), "rope(base=2000000.0)*3,nope", {}),
    (of("cohere2"), "rope(layout='interleaved')@window=4096*3,nope", {"window": 4096}),
    (of("roberta", max_position_embeddings=514), "learned", {"first_row": 2}),
    (
        of("ministral3", rope_parameters={**YARN, "factor": 1.0, "llama_4_scaling_beta": 0.1}),
        "rope(scaling=yarn(factor=1.0,original_length=4096,attention_factor=1.0))+temperature(floor_scale=4096,offset=0)",
        {},
    ),
    (
        of("modernbert", local_rope_theta=1e4, local_attention=128),
        "rope(base=160000.0),rope@window=65*2,rope(base=160000.0)",
        {"window": None, "causal": False},
    ),
    (of("pixtral", rope_theta=1e4), "rope_2d(spectrum='alternating')", {}),
    (of("dinov3_vit", num_register_tokens=4), "rope_2d(base=100.0,normalized=True)", {"prefix": 5}),
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
        of("cohere2", position_embedding_type="rope_gptj", rotary_pct=1.0),
        "rope(layout='interleaved')@window=4096*3,nope",
        {},
    ),
    ({**GEMMA2, "sliding_window_size": 4096}, "rope@window=4096,rope", {"window": 4096}),
    (
        of("exaone4", sliding_window=64, sliding_window_pattern="LG"),
        "rope@window=64,nope",
        {"window": 64},
    ),
    (
        of("nomic_bert", rotary_emb_base=1000, rotary_emb_fraction=0.5),
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
        of("hunyuan_v1_dense", use_rotary_pos_emb=True, rope_theta=1e4)
        | {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0}},
        "rope(scaling=ntk(factor=1000.0))",
        {},
    ),
    (
        of("minimax_m2", head_dim=128, rotary_dim=64)
        | {"attn_type_list": [1] * 4, "rope_theta": 5000000},
        "rope(base=5000000,fraction=0.5)",
        {},
    ),
    (
        of("llama", rope_scaling={**YARN, "finetuned": True, "factor": 1.0}),
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


def test_is_causal_opens_the_mask_of_decoders_and_widens_windows_by_one():
    """transformers' windows end before `sliding_window` going back, and with it where both ways."""
    for config in (LLAMA31, MISTRAL, GEMMA2, LLAMA4["text_config"]):
        before = hf.encodings(config)
        for old, new in zip(before, hf.encodings({**config, "is_causal": False}), strict=True):
            chunked = old.chunk is not None  # whose mask leaves the key unread
            assert new.causal == chunked and new.chunk == old.chunk and new.stack == "decoder"
            assert new.window == (old.window and old.window + 1)
    kept = {"model_type": "openai-gpt", "n_embd": 8, "n_head": 2, "n_layer": 2}
    assert hf.encodings({**kept, "is_causal": False}) == hf.encodings(kept)


@pytest.mark.parametrize(
    "model_type", ["bert", "electra", "roberta", "xlm-roberta", "camembert", "esm"]
)
def test_is_decoder_hides_later_tokens(model_type):
    config = of(model_type, is_decoder=True)
    (layer,) = set(hf.encodings(config))
    assert layer.causal and layer.stack == "decoder"
    assert not hf.encodings({**config, "is_causal": False})[0].causal


def test_albert_repeats_layers_within_a_group():
    config = of("albert", inner_group_num=3)
    assert len(hf.encodings(config)) == 3 * SIZES["num_hidden_layers"]
    assert not hf.encodings({**config, "is_decoder": True})[0].causal  # which it leaves unread


def test_what_a_parent_lets_see_both_ways_is_named():
    layers = hf.encodings(GEMMA3)
    assert all(layer.extras == hf.Extras(qk_norm=True, bidirectional="images") for layer in layers)
    assert hf.encodings(GEMMA3["text_config"])[0].extras == hf.Extras(qk_norm=True)
    text = of("gemma", use_bidirectional_attention=True)
    parent = {"model_type": "paligemma", "text_config": text, "vision_config": {}}
    assert {x.extras.bidirectional for x in hf.encodings(parent)} == {"prefix"}
    with pytest.raises(ValueError, match="use_bidirectional_attention=True: .*is_causal is read"):
        hf.encodings(text)


def test_gemma_4s_images_and_heads():
    seen = hf.encodings({**GEMMA4, "use_bidirectional_attention": "vision"})
    assert [x.extras.bidirectional for x in seen] == ["images"] * 5 + [""]
    both = hf.encodings({**GEMMA4, "use_bidirectional_attention": "all"})
    assert [(x.causal, x.window) for x in both] == [(False, 258)] * 5 + [(False, None)]
    same = {k: v for k, v in GEMMA4.items() if k != "global_head_dim"} | {"per_layer_config": None}
    assert {x.head_dim for x in hf.encodings(same)} == {256}
    listed = hf.encodings({**GEMMA4, "layer_types": ["sliding_attention"] * 6})
    assert [x.window for x in listed] == [512] * 5 + [None]


def test_an_unknown_type_is_read_as_a_known_one():
    config = {**LLAMA31, "model_type": "another"}
    with pytest.raises(ValueError, match="'another' is not known here; its keys are read like='ll"):
        hf.encodings(config)
    assert hf.encodings(config, like="llama") == hf.encodings(LLAMA31)
    assert hf.encodings({"text_config": config}, like="llama") == hf.encodings(LLAMA31)
    with pytest.raises(ValueError, match="model_type='lama' is not known"):
        hf.encodings(LLAMA31, like="lama")
    windowed = config | {"sliding_window": 1024, "rope_scaling": None, "rope_theta": 1e4}
    with pytest.raises(ValueError, match="are read like='mistral'"):  # and not as Llama 3's scaling
        hf.encodings(windowed)


def test_settings_beside_the_part_for_text_are_no_others():
    """transformers reads the part for text alone."""
    text = {**LLAMA31, "rope_scaling": None}
    for name, value in (("rope_scaling", LLAMA31["rope_scaling"]), ("rope_theta", 5e6)):
        with pytest.raises(ValueError, match=f"{name}=.* stands beside the part for text"):
            hf.encodings({"model_type": "llava", "text_config": text, name: value})
    same = {"model_type": "llava", "text_config": LLAMA31, "rope_theta": LLAMA31["rope_theta"]}
    assert hf.encodings(same) == hf.encodings(LLAMA31)


def test_a_part_for_text_may_leave_out_its_type_and_sizes():
    layers = hf.encodings({"model_type": "llava", "text_config": {}})
    assert (len(layers), layers[0].head_dim) == (32, 128)
    gemma = hf.encodings({"model_type": "gemma3", "text_config": {"hidden_size": 2560}})
    assert (len(gemma), gemma[0].head_dim, gemma[0].window) == (26, 256, 4096)
    omni = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {"hidden_size": 3584}}}
    omni["thinker_config"]["text_config"]["model_type"] = "qwen2_5_omni_text"
    assert len(hf.encodings(omni)) == 28
    with pytest.raises(ValueError, match="num_hidden_layers is missing: 'llama'"):
        hf.encodings({"model_type": "llama"})


def test_parts_for_images_of_qwen_are_known_by_their_keys():
    sizes = {"depth": 4, "num_heads": 16, "spatial_merge_size": 2, "patch_size": 14}
    plain = hf.encodings({**sizes, "embed_dim": 1280, "hidden_size": 3584})
    local = {**sizes, "hidden_size": 1280, "fullatt_block_indexes": [1, 3], "window_size": 112}
    assert len(plain) == 4 and plain[0].head_dim == 80 and plain[0].extras == hf.Extras()
    assert [x.extras.image_window for x in hf.encodings(local)] == ["aligned", ""] * 2
    assert hf.encodings({**local, "model_type": "qwen2_5_vl_vision"}) == hf.encodings(local)


HYBRIDS = [  # keys that say which of the layers attend, and their numbers
    ({"model_type": "jamba", "attn_layer_period": 3, "attn_layer_offset": 1}, [1, 4]),
    ({"model_type": "bamba", "attn_layer_indices": [0, 5]}, [0, 5]),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*-EM*"}, [1, 5]),
    ({"model_type": "nemotron_h", "layers_block_type": ["mamba", "attention", "mlp"]}, [1]),
    ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 3}, [1, 3, 5]),
    ({"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [4]}}, [3]),
    ({"model_type": "kimi_linear"}, [4]),
    ({"model_type": "recurrent_gemma"}, [2, 5]),
    ({"model_type": "olmo_hybrid"}, [3]),
    ({"model_type": "bailing_hybrid", "layer_group_size": 2}, [1, 3, 5]),
    ({"model_type": "mllama_text_model", "cross_attention_layers": [0, 3]}, [1, 2, 4, 5]),
]


@pytest.mark.parametrize("config, attending", HYBRIDS)
def test_hybrids_attend_in_some_layers(config, attending):
    layers = hf.encodings({**SIZES, "num_hidden_layers": 6, **config})
    assert [i for i, layer in enumerate(layers) if layer.encoding is not None] == attending


def test_hybrids_without_rope_say_so():
    hybrid = of("granitemoehybrid", layer_types=["attention"] * 4)
    assert hf.pattern(hf.encodings({**hybrid, "position_embedding_type": "nope"})) == "nope"
    assert hf.pattern(hf.encodings({**hybrid, "position_embedding_type": "rope"})) == "rope"
    zamba = of("zamba2", layers_block_type=["hybrid"] * 4)
    assert hf.pattern(hf.encodings(zamba)) == "nope"
    assert hf.pattern(hf.encodings({**zamba, "use_mem_rope": True})) == "rope"
    assert hf.encodings(zamba)[0].scale == (hf.encodings(zamba)[0].head_dim / 2) ** -0.5


def test_what_acts_on_q_and_k_is_named_with_its_number():
    config = of("falcon_h1", key_multiplier=0.39, mamba_chunk_size=256)
    assert hf.encodings(config)[0].extras == hf.Extras(key_multiplier=0.39)
    config = of("olmo", clip_qkv=8.0)
    (layer,) = set(hf.encodings(config))
    assert layer.extras == hf.Extras(clip_qkv=8.0)
    indexed = of("deepseek_v32")
    assert hf.encodings(indexed)[0].extras == hf.Extras(indexer=True)


REMOTE = [  # configs of the Hub's own code, as published
    ({"model_type": "internlm2", "rope_theta": 1e6}, "rope(base=1000000.0)"),
    ({"model_type": "baichuan", "max_position_embeddings": 4096}, "rope"),
    ({"model_type": "baichuan", "model_max_length": 4096}, "alibi"),
    (
        {"model_type": "chatglm", "kv_channels": 128, "rope_ratio": 500, "original_rope": True},
        "rope(base=5000000.0,fraction=0.5,layout='interleaved')",
    ),
    ({"model_type": "qwen", "rotary_emb_base": 10000, "use_dynamic_ntk": True}, "rope"),
    ({"model_type": "xverse"}, "rope"),
    ({"model_type": "mimo", "rope_theta": 640000}, "rope(base=640000)"),
    ({"model_type": "kimi_k2"}, "rope(fraction=0.3333333333333333,layout='interleaved')"),
    ({"model_type": "dbrx", "attn_config": {"rope_theta": 5e5}}, "rope(base=500000.0)"),
]


@pytest.mark.parametrize("config, pattern", REMOTE)
def test_code_of_the_hub_is_read_by_its_configs_keys(config, pattern):
    assert hf.pattern(hf.encodings({**SIZES, **config})) == pattern


def test_a_draft_head_has_the_mrope_of_its_model():
    config = {**LLAMA31, "head_dim": 128, "draft_vocab_size": 32000}
    own = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    (layer,) = set(hf.encodings(config | {"rope_scaling": own}))
    assert layer.encoding == pe_jax.make(
        "mrope", base=500000.0, sections=(24, 20, 20), interleaved=True
    )
    own = {"type": "mrope", "mrope_section": [16, 24, 24]}
    (layer,) = set(hf.encodings(config | {"rope_scaling": own}))
    assert layer.encoding == pe_jax.make("mrope", base=500000.0, sections=(16, 24, 24))


def test_rows_and_columns_of_interleaved_sections_have_what_fits():
    """The code overwrites every third frequency from 1 and from 2 on; the rest is time's."""
    config = of("qwen3_5_text", head_dim=64)
    config["rope_parameters"] = {"rope_theta": 1e4, "partial_rotary_factor": 0.25}
    assert hf.encodings(config)[3].encoding.sections == (3, 3, 2)  # 0 3 6, 1 4 7 and 2 5 of 8


def test_a_type_without_settings_of_its_own_is_not_rotated():
    config = {**GEMMA4, "rope_parameters": {**GEMMA4["rope_parameters"], "full_attention": None}}
    assert hf.pattern(hf.encodings(config)) == "rope@window=512*5,nope"


@pytest.mark.parametrize("key", ["rope", "use_rope", "use_rotary", "use_rotary_embeddings"])
def test_a_key_that_switches_the_rotation_off_is_not_passed_over(key):
    config = {"model_type": "olmo", "hidden_size": 64, "num_attention_heads": 4}
    config |= {"num_hidden_layers": 2, "max_position_embeddings": 64}
    assert hf.encodings({**config, key: True}) == hf.encodings(config)
    with pytest.raises(ValueError, match=f"{key}=False: not understood for 'olmo'"):
        hf.encodings({**config, key: False})
    unrotated = {**config, "model_type": "bloom", "n_layer": 2, "n_head": 4}
    assert hf.encodings({**unrotated, key: False}) == hf.encodings(unrotated)
    with pytest.raises(ValueError, match=f"{key}=True: not understood for 'bloom'"):
        hf.encodings({**unrotated, key: True})


def test_two_lengths_may_differ_where_no_scaling_uses_them():
    """nomic-embed-text-v1.5: it was trained at 2,048 and is served to 8,192 (vLLM's PR 41277)."""
    config = {"model_type": "nomic_bert", "n_embd": 768, "n_head": 12, "n_layer": 2}
    config |= {"n_positions": 8192, "max_trained_positions": 2048, "rotary_scaling_factor": None}
    config |= {"rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "causal": False}
    layers = hf.encodings({**config, "max_position_embeddings": 2048})
    assert layers == hf.encodings(config) and layers[0].encoding == pe_jax.make("rope", base=1000)
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
    with pytest.raises(ValueError, match="=2048 and n_positions=8192 differ"):
        hf.encodings({**config, "max_position_embeddings": 2048, "rope_parameters": dynamic})


def test_an_encoder_that_is_told_to_be_causal_is_refused():
    config = {"model_type": "nomic_bert", "hidden_size": 64, "num_attention_heads": 4}
    config |= {"num_hidden_layers": 2, "causal": False}
    assert not hf.encodings(config)[0].causal
    with pytest.raises(ValueError, match="causal=True: this family's layers see later tokens"):
        hf.encodings({**config, "causal": True})


@pytest.mark.parametrize(("model_type", "rate"), [("qwen3_omni_moe", 13), ("qwen2_5_omni", 25)])
def test_omni_models_say_the_rate_of_a_video_beside_their_text(model_type, rate):
    text = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "num_hidden_layers": 2}
    text |= {"model_type": f"{model_type}_text", "rope_scaling": {"mrope_section": [4, 2, 2]}}
    thinker = {
        "model_type": f"{model_type}_thinker",
        "text_config": text,
        "vision_config": {"depth": 2},
    }
    thinker["position_id_per_seconds"] = rate
    for config in (thinker, {"model_type": model_type, "thinker_config": thinker}):
        assert hf.encodings(config)[0].tokens_per_second == rate


def test_a_video_that_counts_seconds_is_read():
    """Qwen2.5-VL's rate stands in the vision config, and is one of the positions of the text."""
    text = {"hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 2}
    nested = {"model_type": "qwen2_5_vl", "vision_config": {"tokens_per_second": 2}}
    nested["text_config"] = {"model_type": "qwen2_5_vl_text", **text}
    layers = hf.encodings(nested)
    assert [layer.tokens_per_second for layer in layers] == [2, 2]
    assert hf.encodings({**nested, **text, "text_config": None}) == layers
    assert hf.encodings(nested["text_config"])[0].tokens_per_second is None
    with pytest.raises(ValueError, match="tokens_per_second=2: not understood for 'qwen2_vl"):
        hf.encodings({**nested, "text_config": {"model_type": "qwen2_vl_text", **text}})
