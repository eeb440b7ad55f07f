"""What a config has that is not understood is an error that names the key."""

from typing import Any

import pytest

from pe_jax import hf
from pe_jax.hf.keys import Keys
from tests.faults.encoding_calls import refused
from tests.hf.configs import (
    BERT,
    DEBERTA3,
    DEEPSEEK3,
    GEMMA2,
    GEMMA4,
    LLAMA4,
    LLAMA31,
    MINIMAX,
    MPT,
    PYTHIA,
    SIZES,
    T5,
    of,
)

WRONG = [  # config, words of the error
    ({}, ["model_type=None"]),
    ({"model_type": "lama"}, ["model_type='lama'", "nearest is", "llama", "from_hf"]),
    ({"model_type": "funnel"}, ["'funnel'", "transformer_xl"]),
    ({"model_type": "x" * 900}, ["model_type="]),
    ({"model_type": "llama"}, ["num_hidden_layers is missing", "'llama'"]),
    ({**LLAMA31, "num_hidden_layers": "4"}, ["num_hidden_layers='4'", "integer"]),
    ({**LLAMA31, "num_attention_heads": 7}, ["num_attention_heads=7", "4096"]),
    ({**LLAMA31, "rope_theta": -1}, ["rope_theta=-1"]),
    ({**LLAMA31, "rope_theta": "10000.0"}, ["rope_theta='10000.0'", "pass a number above 1"]),
    (
        {**LLAMA31, "alibi": True},
        ["alibi=True", "not understood for 'llama'", "nearest scheme: alibi"],
    ),
    ({**LLAMA31, "rope_pattern": [1]}, ["rope_pattern=[1]", "the nearest scheme: rope"]),
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
    ({**GEMMA4, "use_bidirectional_attention": "some"}, ["use_bidirectional_attention='some'"]),
    (of("deepseek_v4", is_causal=False), ["is_causal=False", "later"]),
    (of("inkling_text", is_causal=False), ["is_causal=False", "later"]),
    ({**LLAMA31, "is_causal": "no"}, ["is_causal='no'", "True or False"]),
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
    ({**BERT, "position_embedding_type": "alibi"}, ["'alibi'", "the nearest scheme: alibi"]),
    (of("chatglm", rope_ratio=16), ["rope_ratio=16", "rope_theta"]),
    (of("bamba", attn_layer_indices=[9]), ["attn_layer_indices=[9]"]),
    (of("diffllama"), ["'diffllama' is not read", "subtracted"]),
    (of("roformer", rotary_value=True), ["rotary_value=True"]),
    (of("mpnet", relative_attention_num_buckets=16), ["16", "32"]),
    (
        {"model_type": "xlnet", "d_model": 8, "n_head": 2, "n_layer": 1, "clamp_len": 9},
        ["clamp_len"],
    ),
    (of("pixtral", rope_parameters={"rope_type": "yarn"}), ["rope_type='yarn'", "axial"]),
    ({"model_type": "swin", "use_absolute_embeddings": True}, ["use_absolute_embeddings=True"]),
    (of("siglip2_vision_model", num_patches=200), ["num_patches=200", "square"]),
    (
        of("beit", use_relative_position_bias="yes"),
        ["use_relative_position_bias='yes'", "True or False"],
    ),
]


@pytest.mark.parametrize("config, words", WRONG)
def test_what_is_not_understood_is_an_error(config, words):
    refused(lambda: hf.encodings(config), *words)


JUNK = ("junk", -3, 0.3, True, [], [1, "a"], {"a": 1}, {"full_attention": 3}, 10**30, "x" * 900)


DISTINCT = {repr(family): model_type for model_type, family in reversed(hf.FAMILIES.items())}


@pytest.mark.parametrize("model_type", DISTINCT.values())
def test_junk_for_any_key_that_is_read_is_one_short_line(model_type):
    """Each key that a family reads, with values that no model has: a ValueError, or it is read."""
    sizes = {
        name: 4
        for names in (SIZES, "n_embd n_head n_layer d_model depth".split())
        for name in names
    }
    sizes |= {"hidden_size": 256, "n_embd": 256, "d_model": 256, "embed_dim": 256, "head_dim": 64}
    sizes |= {f"{s}_{n}": 4 for s in ("encoder", "decoder") for n in ("layers", "attention_heads")}
    sizes |= (
        {"num_heads": [4, 4], "depths": [2, 2]}
        if model_type.startswith("swin")
        else {"num_heads": 4}
    )
    config = {"model_type": model_type, **sizes}
    family: Any = hf.FAMILIES[model_type]
    if getattr(family, "sections", None):
        channels = int(64 * family.partial) // 2
        sections = [channels - 2 * (channels // 3), channels // 3, channels // 3]
        sections = sections[::-1] if family.time_last else sections
        config["rope_parameters"] = {"rope_theta": 1e4, "mrope_section": sections}
    if model_type.startswith("mimo_v2"):
        config["head_dim"] = 192  # of which its factor takes 64
    if model_type == "moonshine":
        config["partial_rotary_factor"] = 0.5  # 0.9 of 64 is odd
    keys = Keys(model_type, config)
    assert hf.FAMILIES[model_type].read(keys)
    for name in sorted(keys.known | {"rope_scaling", "rope_parameters", "position_x"}):
        for value in JUNK:
            try:
                hf.encodings({**config, name: value})
            except ValueError as error:
                assert "\n" not in str(error) and len(str(error)) < 500
