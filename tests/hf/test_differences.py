"""Where `pe_jax.hf` reads otherwise than transformers, on purpose: the list of docs/cookbook.md."""

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from tests.faults.encoding_calls import refused
from tests.hf.configs import BERT, GEMMA3, GEMMA4, LLAMA31, MINIMAX, MPT, YARN, of
from tools.cookbook import DIFFERENCES


def test_each_of_the_list_has_a_test_here():
    assert all(callable(globals().get(name)) for name in DIFFERENCES)


def test_rotary_dim_is_a_part_of_the_head():
    assert hf.encodings(MINIMAX)[7].encoding.rotary_dim(128) == MINIMAX["rotary_dim"] == 64


def test_a_partial_factor_is_a_part_of_the_head():
    config = of("llama", partial_rotary_factor=0.5)
    assert hf.encodings(config)[0].encoding.fraction == 0.5


def test_alibis_largest_slope_is_read():
    config = {**MPT, "attn_config": {"alibi_bias_max": 16}}
    assert hf.encodings(config)[0].encoding == pe_jax.make("alibi", bias_max=16.0)


def test_relative_keys_of_bert_are_shaws():
    config = {**BERT, "position_embedding_type": "relative_key"}
    assert hf.encodings(config)[0].encoding == pe_jax.make("shaw", clip=511, values=False)


def test_truncate_is_read_by_type():
    own = {**YARN, "truncate": False}
    config = {**GEMMA4, "rope_parameters": {"sliding_attention": own, "full_attention": own}}
    with pytest.warns(UserWarning, match="'truncate'.=False is read; transformers 5.23 leaves it"):
        assert not hf.encodings(config)[0].encoding.scaling.truncate
    hf.encodings({**LLAMA31, "rope_scaling": own})  # not by type: both read it


def test_old_scaling_of_gemma_3_acts():
    text = {**GEMMA3["text_config"], "rope_scaling": {"factor": 8.0, "type": "linear"}}
    scalings = [layer.encoding.scaling for layer in hf.encodings(text)[4:6]]
    assert scalings == [None, pe_jax.encodings.rope_scaling.Linear(8.0)]


def test_a_flat_base_of_olmo_3_is_of_both_types():
    config = of("olmo3", rope_theta=1234.0)
    assert {layer.encoding.base for layer in hf.encodings(config)} == {1234.0}


def test_an_unread_window_is_refused_unless_it_hides_nothing():
    refused(lambda: hf.encodings({**LLAMA31, "sliding_window": 5}), "sliding_window=5", "window")
    plain = hf.encodings(LLAMA31)
    for more in (
        {"sliding_window": 5, "use_sliding_window": False},
        {"sliding_window": 131072},
        {"sliding_window": 5, "draft_vocab_size": 32000},
        {"sliding_window": 5, "architectures": ["LlamaForCausalLMEagle3"]},
    ):
        assert hf.encodings({**LLAMA31, **more}) == plain


def test_the_first_llava_has_the_layers_that_it_says():
    flat = of("llava", num_hidden_layers=3, rope_theta=5e5)
    (encoding,) = {layer.encoding for layer in hf.encodings(flat)}
    assert len(hf.encodings(flat)) == 3 and encoding.base == 5e5


def test_a_long_text_of_phi_moe_has_the_long_factors():
    """Their forward pass asks for the frequencies without the length."""
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    scaling |= {"short_mscale": 1.25, "long_mscale": 1.5, "original_max_position_embeddings": 64}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 256}
    config = of("phimoe", **sizes, rope_theta=1e4, rope_scaling=scaling)
    (encoding,) = {layer.encoding for layer in hf.encodings(config)}
    x = jnp.ones((1, 1, 1, 8))
    for length, factor, gain in ((64, 1.0, 1.25), (65, 2.0, 1.5)):
        q, _ = pe_jax.rotate(encoding.at_length(length), x, x, jnp.array([40]))
        angles = 40 / factor / 1e4 ** (np.arange(0, 8, 2) / 8)
        cos, sin = np.cos(angles), np.sin(angles)
        want = gain * np.concatenate([cos - sin, cos + sin])
        np.testing.assert_allclose(q.ravel(), want, rtol=1e-5, atol=1e-5)
