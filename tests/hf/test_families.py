"""Families whose layers differ, or whose keys mean something else than they say."""

import dataclasses

import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings.rope_scaling import Linear, Llama3, LongRoPE, Proportional, YaRN
from pe_jax.hf import families
from tests.faults.encoding_calls import refused
from tests.hf.configs import (
    DEEPSEEK3,
    GEMMA3,
    GEMMA4,
    GPT_OSS,
    LLAMA4,
    MINIMAX,
    PHI3,
    SIZES,
    T5,
    YARN,
    of,
)

E = 0.1 * 3.6888794541139363 + 1  # 0.1·ln 40 + 1


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
    assert (
        plain.encoding == pe_jax.make("temperature")
        and plain.chunk is None
        and plain.extras == hf.Extras()
    )
    assert hf.pattern(layers).endswith("@chunk=8192*3,temperature") and len(layers) == 48


def test_gpt_oss_has_sinks_and_yarn_between_channels():
    layers = hf.encodings(GPT_OSS)
    assert [x.window for x in layers] == [128, None] * 2
    rope, sink = layers[0].encoding.parts
    assert sink == pe_jax.make("sink") and rope.scaling == YaRN(32.0, 4096, truncate=False)
    windowed, full = pe_jax.parse(hf.pattern(layers))
    assert windowed.encoding == full == layers[0].encoding and windowed.window == 128


def test_mimos_own_config_is_read():
    """The Hub's has keys that transformers turns into its own, or leaves unread."""
    config = of("mimo_v2_flash", head_dim=192, swa_head_dim=192)
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
    config = of("granite_swa", layer_rope_theta=[0, 1e4, 5e5, 0])
    layers = hf.encodings(config)
    assert hf.pattern(layers) == (
        "sink,(rope+sink)@window=128,(rope(base=500000.0)+sink)@window=128,sink@window=128"
    )
    for wrong in ([1e4], [1e4] * 3 + [-1], 5):
        refused(
            lambda wrong=wrong: hf.encodings(config | {"layer_rope_theta": wrong}),
            f"layer_rope_theta={wrong}",
            "for each of 4 layers",
        )


def test_lfm3s_labels_are_of_the_layers_that_attend():
    layers = hf.encodings(of("lfm3", num_hidden_layers=8))
    bases = [layer.encoding and (layer.encoding.base, layer.window) for layer in layers]
    assert bases == [None, None, (1e6, None), None, (1e4, 256), None, (1e6, None), None]
    assert layers[2].encoding.scaling == Proportional(0.5)


def test_deepseek_v4s_labels_are_no_layer_types():
    config = of("deepseek_v4", head_dim=512, compress_ratios=[0, 4, 128])
    config |= {"num_hidden_layers": 3, "qk_rope_head_dim": 64, "compress_rope_theta": 160000.0}
    config |= {"rope_theta": 1e4, "rope_scaling": {**YARN, "factor": 16.0}}
    main, *others = layers = hf.encodings(config)
    assert (
        main.extras == hf.Extras(qk_norm=True, rotated_values=True)
        and main.encoding.parts[0].base == 1e4
    )
    assert [x.extras.compression for x in others] == [4, 128]
    for layer in layers:
        rope, sink = layer.encoding.parts
        assert rope.rotary_dim(512) == 64 and layer.rotary_last and layer.window == 128
        assert rope.layout == "interleaved" and sink == pe_jax.make("sink")
        assert (rope.scaling is None) == (layer is main)
    assert others[0].encoding.parts[0].scaling.attention_factor == 1.0


def test_inkling_slides_on_five_layers_of_six_and_grows_on_the_sixth():
    first = hf.encodings(of("inkling_text", num_hidden_layers=6))
    assert hf.pattern(first) == "inkling(extent=512)@window=512*5,inkling"
    assert {x.scale for x in first} == {1 / 128} and first[0].extras.qk_norm
    given = {**SIZES, "num_hidden_layers": 6, "log_scaling_n_floor": 7, "local_layer_ids": [0, 3]}
    some = hf.encodings({"text_config": {**given, "model_type": "inkling_text"}})
    assert [x.window for x in some] == [512, None, None, 512, None, None]
    assert some[1].encoding.floor == 7 and some[0].encoding.floor is None
    second = hf.encodings(of("inkling2_text", num_hidden_layers=6))
    full, sink = second[-1].encoding.parts
    assert full.floor == 128_000 and full.clip_states == 8.0 and sink.from_input
    assert second[0].scale is None and second[0].window == second[0].encoding.parts[0].extent
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
    (layer,) = set(hf.encodings(of("mpnet")))
    learned, buckets = layer.encoding.parts
    assert learned.length == 510 and layer.first_row == 2
    distance = list(range(-300, 301))
    theirs = pe_jax.encodings.t5.bucket(distance, bidirectional=True)
    ours = pe_jax.encodings.buckets.bucket(distance, buckets.edges, directional=True)
    assert theirs.tolist() == ours.tolist()


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


NEWER = [  # type, its keys, pattern of the layers that attend, what the first of them has besides
    (
        "minimax_m3",
        {"head_dim": 128, "rotary_dim": 64, "rope_theta": 5e6}
        | {"sparse_attention_config": {"sparse_attention_freq": [0, 0, 1, 1]}},
        "rope(base=5000000.0,fraction=0.5)",
        {"extras": hf.Extras(qk_norm=True), "head_dim": 128},
    ),
    (
        "step3p7",  # with the entries of a head that predicts further tokens
        {"layer_types": ["full_attention", "sliding_attention"] * 3, "sliding_window": 512}
        | {"num_nextn_predict_layers": 2, "rope_theta": [5e6, 1e4] * 3}
        | {
            "partial_rotary_factors": [0.5, 1.0] * 3,
            "rope_scaling": {"type": "linear", "factor": 2.0},
        },
        "rope(base=5000000.0,fraction=0.5,scaling=linear(factor=2.0)),rope@window=512",
        {"scale": None, "extras": hf.Extras(qk_norm=True)},
    ),
    ("flint", {"num_hidden_layers": 6}, "sink*2,(rope+sink)@window=513*3,sink", {"window": None}),
    (
        "muse_glimmer_text",
        {},
        "rope@window=2048*3,nope",
        {"extras": hf.Extras(qk_norm=True, qk_scale_factor=3.87), "window": 2048},
    ),
    ("nanochat", {}, "rope", {"extras": hf.Extras(qk_norm=True, mirrored=True)}),
    (
        "hunyuan_vl_text",
        {"rope_scaling": {"type": "xdrope", "alpha": 1000.0, "xdrope_section": [8, 8, 8, 8]}},
        "rope(scaling=ntk(factor=1000.0))",
        {"extras": hf.Extras(qk_norm=True, text_only=True)},
    ),
    (
        "ernie4_5_vl_moe_text",
        {"head_dim": 128, "rope_scaling": {"type": "default", "mrope_section": [22, 22, 20]}},
        "mrope(base=500000.0,sections=(20, 22, 22),time_last=True,layout='interleaved')",
        {},
    ),
    (
        "glm4v_text",
        {"head_dim": 128, "partial_rotary_factor": 0.5}
        | {"rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}},
        "mrope(base=10000.0,sections=(8, 12, 12),fraction=0.5,layout='interleaved')",
        {},
    ),
    ("openai_privacy_filter", {"rope_parameters": {"rope_theta": 1e4}, "sliding_window": 7}, None)
    + ({"causal": False, "window": 8, "stack": "encoder"},),
    ("ultrabert", {"sliding_window": 7}, None, {"causal": False, "window": 8}),
    ("xglm", {}, "sinusoidal(layout='tensor2tensor')", {"first_row": 2, "causal": True}),
    ("bloom", {}, "alibi", {"causal": True}),
    (
        "bailing_moe_v2",
        {"partial_rotary_factor": 0.5},
        "rope(fraction=0.5)",
        {"extras": hf.Extras(qk_norm=True)},
    ),
    ("phi4mm", {"partial_rotary_factor": 0.75}, "rope(fraction=0.75)", {}),
    (
        "step3p5_vision",
        {},
        "rope_2d",
        {"extras": hf.Extras(learned_positions=True, columns_first=True)},
    ),
    ("minimax_m3_vl_vision", {}, "rope_nd", {"causal": False}),
    ("internvl_vision", {"use_absolute_position_embeddings": False}, "nope", {"causal": False}),
]


@pytest.mark.parametrize("model_type, config, pattern, besides", NEWER, ids=[x[0] for x in NEWER])
def test_newer_types(model_type, config, pattern, besides):
    layers = hf.encodings(of(model_type, **config))
    assert pattern is None or hf.pattern(layers) == pattern
    for name, value in besides.items():
        assert getattr(layers[0], name) == value


def test_ling_3_vl_has_the_sections_of_its_parent():
    text = of("", num_hidden_layers=6, qk_rope_head_dim=64, head_dim=128, rope_theta=6e6)
    text |= {"model_type": None, "partial_rotary_factor": 0.5, "qk_nope_head_dim": 128}
    config = {"model_type": "bailing_moe_v3_vl", "text_config": text, "mrope_section": [8, 12, 12]}
    *linear, layer = hf.encodings(config)
    assert [x.encoding for x in linear] == [None] * 5 and layer.rotary_last
    order = {"sections": (8, 12, 12), "time_last": True, "layout": "interleaved"}
    assert layer.encoding == pe_jax.make("mrope", base=6e6, fraction=64 / 192, **order)
    swapped = hf.encodings(config | {"mrope_section": [12, 12, 8]})[-1]  # as Ernie lists them
    assert swapped == layer
    with pytest.raises(ValueError, match="rows and columns that alternate are equal"):
        hf.encodings(config | {"mrope_section": [8, 10, 14]})


def test_images_turn_as_in_the_released_code_of_ernie():
    """Its frequencies are dealt to (rows, columns), put together again, then time's; in pairs."""
    rope = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [3, 3, 2]}
    (layer, *_) = hf.encodings(of("ernie4_5_vl_moe_text", head_dim=16, rope_parameters=rope))
    rng = np.random.default_rng(0)
    x, places = rng.standard_normal((9, 1, 16), np.float32), rng.integers(0, 50, (9, 3))
    theta = 5e5 ** (-np.arange(8) / 8)
    dealt = np.concatenate([theta[:6:2], theta[1:6:2], theta[6:]])
    row, column, time = (places[:, a, None] * dealt for a in (1, 2, 0))
    angle = np.concatenate(
        [np.stack([row[:, :3], column[:, 3:6]], -1).reshape(9, 6), time[:, 6:]], -1
    )
    z = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)[:, None]
    want = np.stack([z.real, z.imag], -1).reshape(x.shape)
    ours = pe_jax.rotate(layer.encoding, x[None], x[None], places[None])[0][0]
    np.testing.assert_allclose(ours, want, atol=1e-5)


def test_layers_that_an_indexer_serves_are_named():
    config = of("minimax_m3_vl_text", num_hidden_layers=3)
    freq = {"sparse_attention_config": {"sparse_attention_freq": [0, 1, 1]}}
    layers = hf.encodings(config | freq)
    assert [x.extras.indexer for x in layers] == [False, True, True]
    listed = {"layer_types": ["full_attention", *["minimax_m3_sparse"] * 2]}
    assert hf.encodings(config | listed) == layers
    quarter = {"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25}}
    mixed = hf.encodings(of("qwen4_exp_text", **quarter))
    assert [x.encoding is None for x in mixed] == [True] * 3 + [False]
    assert mixed[3].extras == hf.Extras(qk_norm=True, indexer=True)


def test_an_indexer_turns_by_its_own_layout_and_may_be_shared():
    theta = {"rope_theta": 1e6, "qk_rope_head_dim": 64}
    (layer,) = {*hf.encodings(of("deepseek_v32", **theta))}
    rope = pe_jax.make("rope", base=1e6, fraction=0.5, layout="half")
    assert layer.indexer == hf.Indexer(rope, heads=64, head_dim=128, count=2048)
    glm = of("glm_moe_dsa", **theta, num_hidden_layers=6, indexer_rope_interleave=True)
    layers = hf.encodings(glm | {"index_topk": 512, "index_topk_freq": 3})
    turned = dataclasses.replace(rope, layout="interleaved")
    assert layers[0].indexer == hf.Indexer(turned, heads=32, head_dim=128, count=512)
    assert [x.indexer.shared for x in layers] == [False, False, True, True, False, True]
    assert {layer.encoding.layout, layers[0].encoding.layout} == {"interleaved"}
    for keys in (
        {"index_topk_pattern": "FSSFFS"},
        {"index_topk_pattern": ["full", *["shared"] * 2, "full", "full", "shared"]},
        {"indexer_types": ["full", *["shared"] * 2, "full", "full", "shared"]},
    ):
        shared = [x.indexer.shared for x in hf.encodings(glm | keys)]
        assert shared == [False, True, True, False, False, True]
    assert not any(x.indexer.shared for x in hf.encodings(glm))
    own = hf.encodings(of("hy_v4", num_hidden_layers=6))
    assert [x.indexer.shared for x in own] == [False, False, True, True, True, False]
    assert own[0].indexer.rotary_last and own[0].indexer.encoding.layout == "half"
    linear = Linear(4.0)
    scaled = hf.encodings(hf.with_scaling(glm, linear))[0].indexer
    assert scaled == dataclasses.replace(
        layers[0].indexer, encoding=dataclasses.replace(turned, scaling=linear), count=2048
    )


@pytest.mark.parametrize(
    "name, keys, words",
    [
        ("glm_moe_dsa", {"indexer_rope_interleave": False}, "always True for this family"),
        ("deepseek_v32", {"indexer_rope_interleave": True}, "always False for this family"),
        ("deepseek_v32", {"index_head_dim": 32}, "qk_rope_head_dim=64 of its channels turn"),
        ("deepseek_v32", {"index_topk": 0}, "index_topk=0: pass an integer of at least 1"),
        ("glm_moe_dsa", {"index_topk_pattern": "FXFF"}, "write F or S for each of 4 layers"),
        ("glm_moe_dsa", {"index_topk_pattern": "SFFF"}, "the first layer must be full"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "full or shared for each of 4 layers"),
    ],
)
def test_an_indexer_that_no_model_has_is_refused(name, keys, words):
    with pytest.raises(ValueError, match=words):
        hf.encodings(of(name, **keys))


def test_stacks_with_configs_of_their_own():
    half = {"num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 2, "head_dim": 256}
    config = {"model_type": "t5gemma", "encoder": half, "decoder": {**half, "num_hidden_layers": 4}}
    encoder, decoder = (
        [x for x in hf.encodings(config) if x.stack == stack] for stack in ("encoder", "decoder")
    )
    assert [x.window for x in encoder] == [4097, None]  # as many ahead as back, and itself
    assert [x.window for x in decoder] == [4096, None] * 2
    assert not encoder[0].causal and decoder[0].causal and encoder[0].logit_cap == 50.0
    sizes = {"hidden_size": 288, "partial_rotary_factor": 0.9}
    sizes |= {f"{x}_num_attention_heads": 8 for x in ("encoder", "decoder")}
    sizes |= {"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 3}
    layers = hf.encodings({"model_type": "moonshine", **sizes})
    assert [x.stack for x in layers] == ["encoder"] * 2 + ["decoder"] * 3
    assert layers[0].encoding.rotary_dim(36) == 32 and layers[0].encoding.layout == "interleaved"


def test_a_parent_with_the_texts_keys_next_to_its_own():
    flat = of("qwen3_5", head_dim=256)
    assert hf.encodings(flat) == hf.encodings({**flat, "model_type": "qwen3_5_text"})
    named = {"model_type": "gemma3n", "text_config": of("gemma3n")}
    assert hf.encodings(named)[0].window == 512


def test_blocks_of_nemotron_nas_without_attention():
    blocks = [{"attention": {"no_op": i == 2, "replace_with_linear": i == 3}} for i in range(4)]
    config = of("nemotron-nas", block_configs=blocks)
    assert [x.encoding is None for x in hf.encodings(config)] == [False, False, True, True]
    blocks[0]["attention"]["window_length"] = 8
    refused(lambda: hf.encodings(config), "window_length=8", "not read")


def test_two_attentions_in_each_layer_of_longcat():
    config = {"model_type": "longcat_flash", "num_layers": 3, "qk_rope_head_dim": 64}
    layers = hf.encodings(config)
    assert len(layers) == 6 and layers[0].extras == hf.Extras(scaled_latents=True)
    assert hf.encodings({**config, "num_layers": None, "num_hidden_layers": 6}) == layers
