"""`pe_jax.hf` against transformers' own models: what reaches their softmax, layer by layer.

A tiny model of each type runs twice with an attention of ours in the place of its own, which
records queries, keys, scale, mask and the rest and gives zeros (so that no layer depends on an
earlier one's attention): once as it is, once with its rotation switched off. What `pe_jax.hf` reads
in the config has to turn the second record into the first.
"""

import numpy as np
import pytest

from pe_jax import hf
from pe_jax.encodings.sink import SinkLogit
from pe_jax.encodings.sums import parts_of
from pe_jax.hf.families import MLA
from tests.oracles.hf_cases import CASES, ELSEWHERE, SCALINGS, flat
from tests.oracles.hf_layers import INDEX, LENGTH, tiny
from tests.oracles.replay import TOLERANCE
from tools import hf_types

pytestmark = pytest.mark.oracles


def build(name: str):
    """A tiny config and model of the type that a case begins with."""
    config = hf_types.config_of(name.split()[0], **CASES[name])
    return config, hf_types.model_of(config)


@pytest.fixture(scope="module")
def recorded(live):
    """A list to which each call of attention is added."""
    with hf_types.recording() as calls:
        yield calls


@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
def test_what_is_read_is_what_reaches_the_models_softmax(recorded, name):
    config, model = build(name)
    layers = hf.encodings(config)
    theirs = hf_types.run(model, recorded)
    with hf_types.unrotated(model):
        plain = hf_types.run(model, recorded)
    both = ([x for x in some if "Cross" not in type(x[0]).__name__] for some in (theirs, plain))
    theirs, plain = both
    layers = [layer for layer in layers if layer.encoding is not None]
    sort = isinstance(hf.FAMILIES[config.model_type], MLA) and config.model_type != "deepseek_v2"
    assert len(layers) == len(theirs) == len(plain)
    for layer, (module, q, k, mask, options), still in zip(layers, theirs, plain, strict=True):
        assert q.shape[-1] == layer.head_dim
        places = np.arange(LENGTH)
        places = np.stack([places] * 3, -1) if layer.encoding.claims.axes == 3 else places
        sides = zip("qk", still[1:3], strict=True)
        turned = [hf_types.rotated(layer, x, n, places, sort) for n, x in sides]
        ours = np.einsum("bhte,bhse->bhts", *turned)
        want = np.einsum("bhte,bhse->bhts", np.float64(q), np.float64(k))
        scale = options.get("scaling")
        theirs_scale = layer.head_dim**-0.5 if scale is None else scale
        ours_scale = layer.head_dim**-0.5 if layer.scale is None else layer.scale
        if name.startswith(("esm", "opt")):  # their queries are scaled before
            ours_scale = 1.0 if name == "opt" else ours_scale
            theirs_scale = 1.0 if name == "opt" else ours_scale
        if name == "openai_privacy_filter":  # both sides are scaled before, by a fourth root each
            ours_scale = 1.0
        size = max(np.abs(want).max(), 1.0)
        np.testing.assert_allclose(ours_scale * ours / size, theirs_scale * want / size, atol=1e-5)
        assert (options.get("softcap") or None) == layer.logit_cap
        sunk = any(isinstance(part, SinkLogit) for part in parts_of(layer.encoding))
        assert (options.get("s_aux") is not None) == sunk
        normed = any(hasattr(module, name) for name in hf_types.NORMS)
        assert normed == layer.extras.qk_norm
        hidden = np.zeros((LENGTH, LENGTH), bool)
        if mask is not None:
            hidden = mask[0, 0].numpy() < -1 if mask.is_floating_point() else ~mask[0, 0].numpy()
        np.testing.assert_array_equal(~hidden, hf_types.seen(layer))


@pytest.mark.parametrize("kind", ["gptj", "codegen"])
@pytest.mark.parametrize("rotary_dim", [8, 16])
def test_gptj_and_codegen_rotate_pairs_of_some_channels(live, kind, rotary_dim):
    import torch

    config, module = tiny(kind, n_embd=64, n_head=2, n_layer=1, rotary_dim=rotary_dim)
    (layer,) = hf.encodings(config)
    x = np.random.default_rng(0).standard_normal((1, LENGTH, 2, 32)).astype("f")
    table = module.create_sinusoidal_positions(LENGTH, rotary_dim)
    sin, cos = table[None].chunk(2, dim=-1)
    turned = module.apply_rotary_pos_emb(torch.from_numpy(x[..., :rotary_dim]), sin, cos).numpy()
    ours = hf_types.rotated(layer, x.transpose(0, 2, 1, 3), "q", INDEX).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(ours[..., :rotary_dim], turned, atol=TOLERANCE)
    np.testing.assert_array_equal(ours[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.parametrize("rope", list(SCALINGS))
def test_falcon_and_roformer_rotate(live, rope):
    import torch

    x = np.random.default_rng(0).standard_normal((1, 2, LENGTH, 32)).astype("f")
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    config, module = tiny("falcon", **sizes, **flat(**SCALINGS[rope]))
    (layer,) = hf.encodings(config)
    cos, sin = module.FalconRotaryEmbedding(config)(torch.from_numpy(x), torch.arange(LENGTH)[None])
    turned, _ = module.apply_rotary_pos_emb(torch.from_numpy(x), torch.from_numpy(x), cos, sin)
    np.testing.assert_allclose(
        hf_types.rotated(layer, x, "q", INDEX), turned.numpy(), atol=TOLERANCE
    )
    config, module = tiny("roformer", **sizes)
    (layer,) = hf.encodings(config)
    table = module.RoFormerSinusoidalPositionalEmbedding(LENGTH, 32)
    table.weight.data.copy_(table.create_weight())
    turn = module.RoFormerSelfAttention.apply_rotary_position_embeddings
    both = turn(table((1, LENGTH))[None, None], torch.from_numpy(x), torch.from_numpy(x))
    theirs = both[0].detach().numpy()
    np.testing.assert_allclose(hf_types.rotated(layer, x, "q", INDEX), theirs, atol=TOLERANCE)


def test_hunyuan_vl_rotates_text_and_does_something_else_to_images(live):
    """xdrope_section counts channels from the first: those of a pair, E/2 apart, have two axes."""
    import torch
    from transformers.models.hunyuan_vl import modeling_hunyuan_vl as modeling

    own = {"rope_type": "xdrope", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0}
    own["xdrope_section"] = [4, 4, 4, 4]
    config = hf_types.config_of("hunyuan_vl_text", head_dim=32, rope_parameters=own)
    module = modeling.HunYuanVLRotaryEmbedding(config)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 1, 6, 32), "f"))

    def theirs(positions):  # [axes, tokens]
        waves = module(x, torch.from_numpy(positions)[:, None])
        return modeling.apply_rotary_pos_emb(x, x, *waves)[0].numpy()

    text = np.tile(np.arange(6), (4, 1))
    layer = hf.encodings(config)[0]
    ours = hf_types.rotated(layer, x.numpy(), "q", text[0])
    np.testing.assert_allclose(theirs(text), ours, atol=TOLERANCE)
    image = np.stack([np.full(6, 5), np.arange(6) % 3, np.arange(6) // 3, np.zeros(6, int)])
    norms = (np.linalg.norm(some, axis=-1) for some in (theirs(image), x.numpy()))
    assert np.abs(np.divide(*norms) - 1).max() > 0.01
