"""A scaling is written into a config; layers are written as a pattern and read back."""

import json

import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings import rope_scaling
from pe_jax.encodings.rope_scaling import NTK, DynamicNTK, Linear, YaRN
from tests.faults.encoding_calls import refused
from tests.hf.configs import (
    BERT,
    DEEPSEEK3,
    GEMMA3,
    GPT_OSS,
    LLAMA4,
    LLAMA31,
    MINIMAX,
    MISTRAL,
    PYTHIA,
    QWEN2_VL,
)

SCALED = [
    *((config, YaRN(4.0, 4096)) for config in (PYTHIA, MISTRAL, GPT_OSS, LLAMA4, MINIMAX)),
    (QWEN2_VL, Linear(2.0)),
    (LLAMA31, NTK(2.0)),
    (LLAMA31, DynamicNTK(2.0, 8192)),
    (LLAMA31, None),
]


@pytest.mark.parametrize("config, scaling", SCALED)
def test_a_scaling_is_written_into_a_config(config, scaling):
    written = json.loads(json.dumps(hf.with_scaling(config, scaling)))
    assert written.keys() <= config.keys() | {"rope_parameters"}
    for old, new in zip(hf.encodings(config), hf.encodings(written), strict=True):
        assert new.window == old.window and new.head_dim == old.head_dim
        old, new = (hf.layers.rotation_of(layer) for layer in (old, new))
        assert (old is None) == (new is None)
        if new is not None:
            assert new.scaling == scaling and new.base == old.base and new.fraction == old.fraction


def test_layers_without_a_window_are_scaled_alone_where_they_have_settings_of_their_own():
    base = {"rope_type": "default", "rope_theta": 1e4}
    types = {"sliding_attention": base, "full_attention": base | {"rope_theta": 1e6}}
    flat = {k: v for k, v in GEMMA3["text_config"].items() if k != "rope_scaling"}
    for config in (GEMMA3, flat, flat | {"rope_parameters": types}):
        written = json.loads(json.dumps(hf.with_scaling(config, YaRN(4.0, 32768))))
        for old, new in zip(hf.encodings(config), hf.encodings(written), strict=True):
            rotations = [hf.layers.rotation_of(layer) for layer in (old, new)]
            assert new.window == old.window and rotations[0].base == rotations[1].base
            assert rotations[1].scaling == (None if new.window else YaRN(4.0, 32768))


def test_what_a_config_cannot_say_is_an_error():
    yarn = YaRN(4.0, 4096)
    refused(lambda: hf.with_scaling(BERT, yarn), "model_type='bert': no layer has RoPE")
    refused(lambda: hf.with_scaling(DEEPSEEK3, yarn), "layer 0 would be read as")  # its scale
    phi3 = {"model_type": "phi3", "num_hidden_layers": 2, "hidden_size": 32}
    phi3 |= {"num_attention_heads": 4}
    refused(lambda: hf.with_scaling(phi3, Linear(2.0)), "model_type='phi3'", "pass a LongRoPE")
    riflex = rope_scaling.RIFLEx(4.0, 64, intrinsic=4)
    refused(lambda: hf.with_scaling(LLAMA31, riflex), "scaling=RIFLEx", "configs have")


def test_layers_that_have_no_pattern_are_errors():
    refused(lambda: hf.pattern([]), "0 stacks")


def test_patterns_are_read_back():
    for spec in ("rope*3,nope", "(rope+temperature)*2,alibi", "t5+rope", "rope,nope,rope"):
        layers = [hf.LayerEncoding(encoding, 8) for encoding in pe_jax.parse(spec)]
        assert hf.pattern(layers) == spec and hf.pattern(layers * 2) == spec
