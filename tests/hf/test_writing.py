"""Layers are written as keys of a config and as a pattern, and read back."""

import dataclasses
import json

import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings.rope_scaling import YaRN
from tests.faults.encoding_calls import refused
from tests.hf.configs import DEEPSEEK3, GPT_OSS, MISTRAL, PHI3
from tests.hf.test_reading import READ


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


def test_what_is_written_has_the_names_and_types_that_transformers_takes():
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4}
    convolved = hf.encodings({**sizes, "model_type": "lfm3"})
    assert hf.to_hf(convolved, "lfm3")["layer_types"] == ["conv", "conv", "full_attention", "conv"]
    patches = hf.encodings({**sizes, "model_type": "siglip_vision_model", "image_size": 384})
    assert hf.to_hf(patches, "siglip_vision_model")["image_size"] == 24


def test_no_layers_and_other_layers_are_errors():
    refused(lambda: hf.to_hf([], "llama"), "layers=()")
    layers = [hf.LayerEncoding(pe_jax.make(n), 64) for n in ("rope", "nope")]
    refused(lambda: hf.to_hf(layers, "llama"), "would be read as")
    refused(lambda: hf.pattern([]), "0 stacks")


def test_patterns_are_read_back():
    for spec in ("rope*3,nope", "(rope+temperature)*2,alibi", "t5+rope", "rope,nope,rope"):
        layers = [hf.LayerEncoding(encoding, 8) for encoding in pe_jax.parse(spec)]
        assert hf.pattern(layers) == spec and hf.pattern(layers * 2) == spec
