"""`rope_parameters` and `rope_scaling` of configs, in all of their dialects, read and written."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings import mrope, rope, rope_scaling
from pe_jax.encodings.rope_scaling import (
    NTK,
    ClippedRoPE,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    YaRN,
)
from tests.encodings.test_rope_scaling import DIM, LISTS
from tests.faults.encoding_calls import refused
from tests.hf.configs import LLAMA31

HF = [
    (None, {}, pe_jax.make("rope")),
    ({}, {"rope_theta": 5e5}, pe_jax.make("rope", base=5e5)),
    (
        {"rope_type": "default", "rope_theta": 1e6},
        {"rope_theta": 1e4},
        pe_jax.make("rope", base=1e6),
    ),
    (
        {"type": "linear", "factor": 2.0},
        {"partial_rotary_factor": 0.5},
        pe_jax.make("rope", fraction=0.5, scaling=Linear(2.0)),
    ),
    (
        {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.4},  # 24 of 60
        {"head_dim": 60},
        pe_jax.make("rope", fraction=24 / 60, scaling=Linear(2.0)),
    ),
    (
        {"type": "dynamic", "factor": 2.0},
        {"max_position_embeddings": 2048},
        pe_jax.make("rope", scaling=DynamicNTK(2.0, 2048)),
    ),
    (
        {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_slow": 1, "mscale": 1.0},
        {},
        pe_jax.make("rope", scaling=NTK(1000.0)),
    ),
    (  # DeepSeek-V3
        {
            "type": "yarn",
            "factor": 40,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        {"max_position_embeddings": 163840},
        pe_jax.make("rope", scaling=YaRN(40, 4096, 32, 1, 1.0, 1.0)),
    ),
    (  # the first YaRN models say how their weights were made
        {"type": "yarn", "factor": 16.0, "finetuned": True},
        {"original_max_position_embeddings": 4096},
        pe_jax.make("rope", scaling=YaRN(16.0, 4096)),
    ),
    (  # a factor that is the ratio, an original length beside the dict, zeros that mean "default"
        {"rope_type": "yarn", "factor": None, "beta_fast": 0, "truncate": False},
        {"max_position_embeddings": 8192, "original_max_position_embeddings": 2048},
        pe_jax.make("rope", scaling=YaRN(4.0, 2048, truncate=False)),
    ),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {"rope_theta": 5e5},
        pe_jax.make("rope", base=5e5, scaling=Llama3(8.0)),
    ),
    (  # Phi-3: the config's own original length goes before the dict's
        {"type": "su", **LISTS, "original_max_position_embeddings": 2048},
        {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096},
        pe_jax.make("rope", scaling=LongRoPE(**LISTS, original_length=4096, factor=32.0)),
    ),
    (
        {"type": "longrope", **LISTS, "short_mscale": 1.0, "long_mscale": 1.243163121016122},
        {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096},
        pe_jax.make(
            "rope",
            scaling=LongRoPE(
                **LISTS,
                original_length=4096,
                factor=32.0,
                attention_factors=(1.0, 1.243163121016122),
            ),
        ),
    ),
    (
        {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        {},
        pe_jax.make("rope", base=1e6, scaling=Proportional(0.25)),
    ),
]


@pytest.mark.parametrize("parameters, more, want", HF)
def test_what_a_hugging_face_config_says_is_read(parameters, more, want):
    before = json.dumps(parameters)
    found = rope_scaling.from_hf(parameters, **{"head_dim": DIM, **more})
    assert found == want and json.dumps(parameters) == before
    found = found.at_length(4096)
    assert found.frequencies(more.get("head_dim", DIM)).dtype == jnp.float32


DEPENDENT = {  # on the length, with their frequencies at 8,192 tokens (transformers)
    "dynamic": ({"factor": 4.0}, (1e4 * 13 ** (64 / 62)) ** (-np.arange(32) / 32)),
    "longrope": (
        {"short_factor": [1.0] * 32, "long_factor": [8.0] * 32, "factor": 4.0},
        1e4 ** (-np.arange(32) / 32) / 8,
    ),
}


@pytest.mark.parametrize("rope_type", DEPENDENT)
def test_frequencies_that_depend_on_the_length_wait_for_it(rope_type):
    """Without one they would be those of short sequences, at any length."""
    settings, want = DEPENDENT[rope_type]
    found = rope_scaling.from_hf(
        {"rope_type": rope_type, **settings}, head_dim=64, max_position_embeddings=2048
    )
    there = found.at_length(8192)
    np.testing.assert_allclose(there.frequencies(64), want, rtol=1e-6)
    several = pe_jax.make("mrope", scaling=found.scaling)
    x = np.ones((1, 1, 64), np.float32)
    for call in (
        lambda: found.frequencies(64),
        lambda: rope.frequencies(64, scaling=found.scaling),
        lambda: mrope.frequencies(64, (8, 12, 12), scaling=found.scaling),
        lambda: several.rotate(None, x, np.zeros((1, 3), int)),
        lambda: found.rotate(None, x, np.zeros(1, int)),
    ):
        refused(call, "scaling=", "depends on the length", "at_length(total_length)")


@pytest.mark.parametrize("parameters, more, want", HF)
def test_what_was_read_of_a_config_is_written_back(parameters, more, want):
    head_dim = more.get("head_dim", DIM)
    written = rope_scaling.to_hf(want, head_dim=head_dim)
    length = {"max_position_embeddings": 2048} if written["rope_type"] == "dynamic" else {}
    assert (
        rope_scaling.from_hf(json.loads(json.dumps(written)), head_dim=head_dim, **length) == want
    )


def test_a_function_that_is_no_scaling_of_ours_is_not_written():
    class Own(Linear):
        pass

    for scaling, shown in ((Own(2), r"Own\(factor=2\)"), (ClippedRoPE(2), r"ClippedRoPE\(.*\)")):
        with pytest.raises(ValueError, match=rf"scaling=.*{shown}: configs have linear.*tional$"):
            rope_scaling.to_hf(pe_jax.make("rope", scaling=scaling), head_dim=8)


@pytest.mark.parametrize("head_dim", [49, 96, 98, 192])
def test_a_written_fraction_leaves_the_channels_that_it_had(head_dim):
    turned = [*range(2, head_dim, 2)]
    ropes = [pe_jax.make("rope", fraction=n / head_dim) for n in turned]
    written = [rope_scaling.to_hf(rope, head_dim=head_dim) for rope in ropes]
    assert [int(keys["partial_rotary_factor"] * head_dim) for keys in written] == turned


@pytest.mark.parametrize("value", ["x" * 900, list(range(900)), {"a" * 900: 1}])
@pytest.mark.parametrize("key", ["rope_type", "short_factor", "long_factor", "unknown", "factor"])
def test_an_error_stays_one_short_line_whatever_the_value(key, value):
    key = 100 * key if key == "unknown" else key
    parameters = {"rope_type": "longrope", **LISTS, key: value}
    refused(lambda: rope_scaling.from_hf(parameters, head_dim=DIM, max_position_embeddings=9))


GEMMA = {"full_attention": {"rope_type": "default"}, "sliding_attention": None}
REFUSED = [
    ({"rope_type": "yarm", "factor": 2.0}, {}, ("rope_type='yarm' is unknown", "'yarn'")),
    ({"rope_type": "linear", "facter": 2.0}, {}, ("facter=2.0", "did you mean 'factor'")),
    ({"rope_type": "linear", "factor": 2.0, "beta_fast": 9}, {}, ("'linear' has no such key",)),
    ({"rope_type": "default", "factor": 2.0}, {}, ("'default' has no such key",)),
    ({"rope_type": "linear"}, {}, ("factor is missing: 'linear' needs it",)),
    ({"rope_type": "llama3", "factor": 2.0}, {}, ("low_freq_factor is missing",)),
    ({"rope_type": "dynamic", "factor": 2.0}, {}, ("max_position_embeddings=None",)),
    (
        {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 9},
        {"max_position_embeddings": 8},
        ("original_max_position_embeddings=9", "scales from max_position_embeddings=8"),
    ),
    ({"rope_type": "yarn", "factor": 2.0}, {}, ("max_position_embeddings=None: pass it",)),
    (
        {"rope_type": "yarn", "original_max_position_embeddings": 8},
        {},
        ("factor=None: pass a number above 0",),
    ),
    ({"type": "mrope", "mrope_section": [16, 24, 24]}, {}, ("mrope", "M-RoPE")),
    ({"rope_type": "default", "mrope_section": [16, 24, 24]}, {}, ("mrope_section=", "M-RoPE")),
    (
        {"rope_type": "default", "llama_4_scaling_beta": 0.1},
        {},
        ("llama_4_scaling_beta=0.1", "temperature(attn_scale=beta"),
    ),
    (GEMMA, {}, ("settings for full_attention", "rope_parameters['full_attention']")),
    ({"partial_rotary_factor": 0.8}, {}, ("partial_rotary_factor=0.8", "51 of 64", "even")),
    ({"partial_rotary_factor": 1.5}, {}, ("partial_rotary_factor=1.5",)),
    ({}, {"head_dim": 7}, ("head_dim=7", "even")),
    ({"rope_theta": 1}, {}, ("rope_theta=1: pass a number above 1",)),
    (
        {"type": "longrope", **LISTS, "original_max_position_embeddings": 9},
        {"head_dim": 32, "max_position_embeddings": 18},
        ("len(short_factor)=32", "16 frequencies"),
    ),
]


@pytest.mark.parametrize("parameters, more, words", REFUSED)
def test_what_cannot_be_read_of_a_config_is_an_error(parameters, more, words):
    refused(lambda: rope_scaling.from_hf(parameters, **{"head_dim": DIM, **more}), *words)


def test_factors_of_released_scalings():
    mscale = {"short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122}
    lists = {"type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    sizes = {**LLAMA31, "model_type": "phimoe", "original_max_position_embeddings": 4096}
    (layer, *_) = hf.encodings({**sizes, "rope_scaling": lists | mscale})  # Phi-3.5-MoE
    assert layer.encoding.scaling.attention_factor == 1.243163121016122
    (layer, *_) = hf.encodings({**sizes, "rope_scaling": lists | mscale | {"short_mscale": 1.0}})
    factors = [layer.encoding.at_length(n).attention_factor for n in (4096, 4097)]
    assert factors == [1.0, 1.243163121016122]
    with pytest.raises(ValueError, match="short_mscale=1.2.*phimoe does"):
        hf.encodings({**sizes, "model_type": "phi3", "rope_scaling": lists | mscale})
    with pytest.raises(ValueError, match="short_mscale and long_mscale=.*pass both"):
        del mscale["long_mscale"]
        hf.encodings({**sizes, "rope_scaling": lists | mscale})
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    with pytest.raises(ValueError, match="attn_factor=.*: vLLM multiplies"):  # DeepSeek-R1-0528
        hf.encodings({**LLAMA31, "rope_scaling": yarn | {"attn_factor": 0.8782}})
    both = {"interleaved": True, "mrope_interleaved": True, "mrope_section": [24, 20, 20]}
    omni = {**LLAMA31, "model_type": "qwen3_omni_moe_text", "rope_scaling": both}
    assert hf.encodings(omni)[0].encoding.interleaved
    with pytest.raises(ValueError, match="interleaved=False"):
        hf.encodings({**omni, "rope_scaling": both | {"interleaved": False}})
    beside = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_scaling": {}}
    assert hf.encodings({**LLAMA31, **beside})[0].encoding == pe_jax.make("rope", base=5e5)
