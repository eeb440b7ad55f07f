"""`pe_jax.hf` against transformers' own models: what reaches their softmax, layer by layer.

A tiny model of each type runs twice with an attention of ours in the place of its own, which
records queries, keys, scale, mask and the rest and gives zeros (so that no layer depends on an
earlier one's attention): once as it is, once with its rotation switched off. What `pe_jax.hf` reads
in the config has to turn the second record into the first.
"""

import contextlib
import inspect

import numpy as np
import pytest

from pe_jax import hf
from pe_jax.encodings.sink import SinkLogit
from pe_jax.engines.mask import allowed
from pe_jax.hf.layers import parts
from tests.oracles.hf_cases import CASES, ELSEWHERE, SCALINGS, SECTIONS, TINY, flat
from tests.oracles.hf_layers import INDEX, LENGTH, rotated, tiny
from tests.oracles.replay import TOLERANCE
from tests.oracles.tiny_models import known

pytestmark = pytest.mark.oracles
NORMS = ("q_norm", "q_layernorm", "query_layernorm", "qk_norm", "q_b_norm")


def build(name: str):
    """A tiny config and model of the type that a case begins with."""
    import torch
    from transformers import AutoConfig, AutoModel

    kind = name.split()[0]
    default, names = AutoConfig.for_model(kind), known(kind)
    settings = {k: v for k, v in TINY.items() if k in names}
    if kind in ("deepseek_v2", "deepseek_v3"):
        del settings["head_dim"]  # it is qk_rope_head_dim
    if kind == "mimo_v2_flash":
        settings["num_key_value_heads"] = 1  # twice as many in layers with a window
    given = dict(CASES[name])
    if kind in SECTIONS and "rope_parameters" not in given:
        given |= flat(**default.rope_parameters, mrope_section=SECTIONS[kind])
    config = AutoConfig.for_model(kind, **{**settings, **given})
    config._attn_implementation = "recorded"
    torch.manual_seed(0)
    return config, AutoModel.from_config(config, attn_implementation="recorded").eval()


@pytest.fixture(scope="module")
def recorded(live):
    """A list to which each call of attention is added."""
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    calls = []

    def record(module, query, key, value, attention_mask, **kwargs):
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        kwargs["normed"] = any(hasattr(module, name) for name in NORMS)
        calls.append((query.numpy(), key.numpy(), attention_mask, kwargs))
        shape = (*query.shape[:1], query.shape[2], query.shape[1], value.shape[-1])
        return torch.zeros(shape), None

    AttentionInterface.register("recorded", record)
    AttentionMaskInterface.register("recorded", eager_mask)
    return calls


@contextlib.contextmanager
def unrotated(model):
    """A model whose tables of angles are those of position 0."""
    import torch

    def still(out):
        if isinstance(out, dict):
            return {key: still(x) for key, x in out.items()}
        if torch.is_tensor(out):
            return torch.ones_like(out)  # complex: 1 + 0i
        return torch.ones_like(out[0]), torch.zeros_like(out[1])

    hooks = [
        module.register_forward_hook(lambda module, args, out: still(out))
        for module in model.modules()
        if "Rotary" in type(module).__name__
    ]
    temper = ("attn_temperature_tuning", False)
    old = getattr(model.config, temper[0], None)
    layers = [m for m in model.modules() if hasattr(m, temper[0])]
    for module in layers:
        setattr(module, *temper)
    beta = (model.config.rope_parameters or {}) if hasattr(model.config, "rope_parameters") else {}
    kept = beta.get("llama_4_scaling_beta")
    if kept is not None:
        beta["llama_4_scaling_beta"] = 0.0
    yield
    for hook in hooks:
        hook.remove()
    for module in layers:
        setattr(module, temper[0], old)
    if kept is not None:
        beta["llama_4_scaling_beta"] = kept


def run(model, calls):
    import torch

    calls.clear()
    options = {"input_ids": torch.arange(1, LENGTH + 1)[None] % 30 + 1}
    if "use_cache" in inspect.signature(model.forward).parameters:
        options["use_cache"] = False
    with torch.no_grad():
        model(**options)
    return list(calls)


def seen(layer):
    """Which keys each query sees: [T, T]."""
    index = np.arange(LENGTH)
    if layer.chunk is not None:
        chunks = index // layer.chunk
        same = chunks[:, None] == chunks
    else:
        same = np.ones((LENGTH, LENGTH), bool)
    return same & np.asarray(allowed(index, index, causal=layer.causal, window=layer.window))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
def test_what_is_read_is_what_reaches_the_models_softmax(recorded, name):
    config, model = build(name)
    layers = hf.encodings(config)
    assert hf.encodings({**config.to_dict(), **hf.to_hf(layers, name.split()[0])}) == layers
    theirs = run(model, recorded)
    with unrotated(model):
        plain = run(model, recorded)
    layers = [layer for layer in layers if layer.encoding is not None]
    assert len(layers) == len(theirs) == len(plain)
    for layer, (q, k, mask, options), (q0, k0, *_) in zip(layers, theirs, plain, strict=True):
        assert q.shape[-1] == layer.head_dim
        places = np.arange(LENGTH)
        places = np.stack([places] * 3, -1) if layer.encoding.claims.axes == 3 else places
        sides = zip("qk", (q0, k0), strict=True)
        both = [rotated(layer, x, n, places, name.startswith("deepseek_v3")) for n, x in sides]
        ours = np.einsum("bhte,bhse->bhts", *both)
        want = np.einsum("bhte,bhse->bhts", np.float64(q), np.float64(k))
        scale = options.get("scaling")
        theirs_scale = layer.head_dim**-0.5 if scale is None else scale
        ours_scale = layer.head_dim**-0.5 if layer.scale is None else layer.scale
        if name.startswith(("esm", "opt")):  # their queries are scaled before
            ours_scale = 1.0 if name == "opt" else ours_scale
            theirs_scale = 1.0 if name == "opt" else ours_scale
        size = max(np.abs(want).max(), 1.0)
        np.testing.assert_allclose(ours_scale * ours / size, theirs_scale * want / size, atol=1e-5)
        assert (options.get("softcap") or None) == layer.logit_cap
        sunk = any(isinstance(part, SinkLogit) for part in parts(layer.encoding))
        assert (options.get("s_aux") is not None) == sunk
        assert options["normed"] == ("qk_norm" in layer.also)
        hidden = np.zeros((LENGTH, LENGTH), bool)
        if mask is not None:
            hidden = mask[0, 0].numpy() < -1 if mask.is_floating_point() else ~mask[0, 0].numpy()
        np.testing.assert_array_equal(~hidden, seen(layer))


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
    ours = rotated(layer, x.transpose(0, 2, 1, 3), "q", INDEX).transpose(0, 2, 1, 3)
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
    np.testing.assert_allclose(rotated(layer, x, "q", INDEX), turned.numpy(), atol=TOLERANCE)
    config, module = tiny("roformer", **sizes)
    (layer,) = hf.encodings(config)
    table = module.RoFormerSinusoidalPositionalEmbedding(LENGTH, 32)
    table.weight.data.copy_(table.create_weight())
    turn = module.RoFormerSelfAttention.apply_rotary_position_embeddings
    both = turn(table((1, LENGTH))[None, None], torch.from_numpy(x), torch.from_numpy(x))
    theirs = both[0].detach().numpy()
    np.testing.assert_allclose(rotated(layer, x, "q", INDEX), theirs, atol=TOLERANCE)
