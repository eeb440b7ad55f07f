"""No key of positions is dropped without a word, wherever it stands and whatever it is called."""

import contextlib
import re

import pytest

from pe_jax import hf
from tests.hf.configs import (
    DEEPSEEK3,
    GEMMA2,
    GPT_OSS,
    LLAMA31,
    MINIMAX,
    MISTRAL,
    MPT,
    PYTHIA,
    QWEN2_VL,
    T5,
    of,
)
from tools.cookbook_rows import ROWS

CONFIGS = (LLAMA31, MISTRAL, PYTHIA, GEMMA2, GPT_OSS, MINIMAX, DEEPSEEK3, T5, MPT, QWEN2_VL)
CONFIGS += (
    of("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    of("olmo2", rope_theta=5e5, clip_qkv=8.0),
    of("cohere", use_qk_norm=True, rope_theta=1e5),
    of("granite", attention_multiplier=0.1, rope_theta=3e5),
    of("stablelm", partial_rotary_factor=0.5),
)

SIZES = re.compile(  # these say how large a layer is, and a config without positions has them too
    r"model_type|^(hidden|image|patch|window)_size|^n_(embd|head|layer)s?$|^d_(model|kv)$|^dim$|head_dim"
    r"|num_(hidden_layers|attention_heads|heads|layers|register_tokens)|_layers$|_heads$"
    r"|^max_position_embeddings$"
)
PARTS = ("attention", "attn_config", "extra_config", "extra_config.attention")
NAMES = ("my_{}", "text_{}", "attn_{}", "self_attn_{}", "{}_value", "{}s")
SWITCHES = ("use_{}", "enable_{}", "{}_enabled")


def told(config, key, plain):
    """Whether the key is read (layers differ from the plain ones), refused by name, or listed."""
    try:
        layers = hf.encodings(config)
    except ValueError as error:
        return key in str(error)
    unread = [name for layer in layers for name in layer.extras.unread]
    return any(key in name or name == "attention" for name in unread) or layers != plain


def replaced(config, path, **values):
    """A copy of a config with other values of keys where the path leads."""
    config = dict(config)
    if path:
        config[path[0]] = replaced(config.get(path[0]) or {}, path[1:], **values)
        return config
    return {k: v for k, v in {**config, **values}.items() if v is not None}


def paths(config, path=()):
    """(path, key, value) of every key that may concern positions, also in parts of a config."""
    for key, value in config.items():
        if not SIZES.search(key) and key != "vision_config":
            yield path, key, value
        if isinstance(value, dict):
            yield from paths(value, (*path, key))


def moved(rest, path, key, value):
    """What becomes of a config, the rest, whose key has another place or name."""
    for name in (*NAMES, *SWITCHES):
        yield name, replaced(rest, path, **{name.format(key): value})
    if path:
        yield "out of its part", replaced(rest, path[:-1], **{key: value})
        return
    for place in PARTS + ("rope_parameters", "rope_scaling") * (not isinstance(value, dict)):
        yield place, replaced(rest, tuple(place.split(".")), **{key: value})
    beside = {"model_type": "a_vl", "text_config": rest}
    yield "beside the text", {**beside, key: value}
    yield "in another part", {**beside, "extra_config": {key: value}}
    between = {"model_type": "a_thinker", key: value, "text_config": rest}
    yield "between it and the whole", {"model_type": "a_omni", "thinker_config": between}
    yield "in a part of each layer", {**rest, "block_configs": [{}, {"attention": {key: value}}]}


def every_type():
    """A config of every model type that is read with a base, a window and a part that rotates."""
    keys = {"rope_theta": 3e5, "sliding_window": 8, "partial_rotary_factor": 0.5}
    for kind in hf.FAMILIES:
        for count in range(len(keys), -1, -1):
            config = of(kind, num_hidden_layers=6, **dict([*keys.items()][:count]))
            with contextlib.suppress(ValueError):
                hf.encodings(config)
                yield config
                break


def sweep(configs):
    """(what was done, config, key, layers that it must not have) of every key that matters."""
    for config in configs:
        layers = hf.encodings(config)
        for path, key, value in [*paths(config)]:
            rest = replaced(config, path, **{key: None})
            try:
                plain = hf.encodings(rest)
            except ValueError:
                continue  # it is required
            if plain == layers:
                continue
            for change, other in moved(rest, path, key, value):
                yield change, other, key, plain
            if isinstance(value, bool):
                yield "turned round", replaced(config, path, **{key: not value}), key, layers
                continue
            for name in SWITCHES:
                off = replaced(config, path, **{name.format(key): False})
                yield f"{name} off", off, key, layers


@pytest.mark.parametrize(
    "configs, least",
    [
        pytest.param(CONFIGS, 350, id="chosen"),
        pytest.param((x.settings for x in ROWS if x.model_type), 700, id="cookbook"),
        pytest.param(every_type(), 3000, id="every type"),
    ],
)
def test_a_key_that_matters_is_read_refused_or_listed(configs, least):
    cases = [*sweep(configs)]
    dropped = [case[:3] for case in cases if not told(*case[1:])]
    assert len(cases) >= least and not dropped, (len(cases), len(dropped), dropped[:9])


@pytest.mark.parametrize(
    "key, value",
    [("use_nope", True), ("nope_layers", [1]), ("use_logn_attn", True), ("use_dynamic_ntk", True)]
    + [("sparse_config", {"topk": 64}), ("clip_qkv", 6.0), ("qk_ln", True), ("use_mla", True)]
    + [("xdrope_section", [16, 16]), ("mrope_section", [8, 12, 12]), ("is_causal", False)]
    + [("attn_logit_softcapping", 50.0), ("rotary_pct", 0.25), ("rope_interleave", True)],
)
def test_words_of_positions_are_told_in_text_and_parent(key, value):
    plain = of("qwen2")
    layers = hf.encodings(plain)
    assert told(plain | {key: value}, key, layers)
    assert told({"model_type": "a_vl", key: value, "text_config": plain}, key, layers)


def test_other_keys_are_listed_and_do_not_stand_in_the_way():
    config = LLAMA31 | {"magic_gate": 3, "tie_word_embeddings": True, "quantization_config": {}}
    (extras,) = {layer.extras for layer in hf.encodings(config)}
    assert extras.unread == ("magic_gate",) and extras.words() == ("unread=('magic_gate',)",)
    assert hf.encodings(LLAMA31 | {"magic_gate": False}) == hf.encodings(LLAMA31)


def test_keys_of_another_tower_are_not_the_texts():
    vision = {"model_type": "siglip_vision_model", "rope_theta": 100.0, "window_size": 8}
    parent = {"model_type": "a_vl", "text_config": LLAMA31, "vision_config": vision}
    parent |= {"image_token_id": 5, "vision_rope_theta": 3.0, "rope_theta": LLAMA31["rope_theta"]}
    assert hf.encodings(parent) == hf.encodings(LLAMA31)


def test_what_acts_on_q_and_k_is_told():
    mpt = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 1, "max_seq_len": 32}
    attention = {"alibi": True, "clip_qkv": 6, "qk_ln": True, "attn_pdrop": 0.1, "odd": 3}
    (layer,) = hf.encodings(mpt | {"attn_config": attention})
    assert layer.also == ("qk_norm", "clip_qkv=6.0", "unread=('attn_config.odd',)")
    tower = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "image_size": 28}
    for kind in ("internvl_vision", "janus_vision_model"):
        (layer,) = hf.encodings(
            {"model_type": kind, **tower, "patch_size": 14, "use_qk_norm": True}
        )
        assert layer.also == ("qk_norm",)
    dbrx = {"model_type": "dbrx", "d_model": 256, "n_heads": 4, "n_layers": 1}
    for key, value in (("rope_scaling", {"factor": 2.0}), ("sliding_window", 9)):
        with pytest.raises(ValueError, match=key):
            hf.encodings(dbrx | {"attn_config": {"rope_theta": 5e5, key: value}})


def test_latent_attention_that_is_switched_off_is_not_read_as_on():
    with pytest.raises(ValueError, match="use_mla=False: layers of this family without latent"):
        hf.encodings(of("deepseek_v2", use_mla=False))


def test_a_rotation_that_never_turns_has_its_keys_without_effect():
    config = of("kimi_linear", mla_use_nope=True, rope_theta=1e4)
    config |= {"linear_attn_config": {"full_attn_layers": [2, 4]}, "num_hidden_layers": 4}
    encodings = [str(layer.encoding) for layer in hf.encodings(config)]
    assert encodings == ["None", "Encoding()"] * 2


def test_ling_says_its_rotary_part_in_three_ways():
    config = of("bailing_hybrid", head_dim=128, qk_rope_head_dim=64, rope_interleave=True)
    plain = hf.encodings(config)
    for more in ({"rotary_dim": 64}, {"partial_rotary_factor": 0.5}):
        assert hf.encodings(config | more) == plain
    for more, word in (
        ({"rotary_dim": 32}, "rotary_dim"),
        ({"partial_rotary_factor": 0.2}, "part"),
    ):
        with pytest.raises(ValueError, match=word):
            hf.encodings(config | more)
