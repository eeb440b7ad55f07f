"""`pe_jax.hf` against transformers' own models: what reaches their softmax, layer by layer.

A tiny model of each type runs twice with an attention of ours in the place of its own, which
records queries, keys, scale, mask and the rest and gives zeros (so that no layer depends on an
earlier one's attention): once as it is, once with its rotation switched off. What `pe_jax.hf` reads
in the config has to turn the second record into the first.
"""

import contextlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings.sink import SinkLogit
from pe_jax.encodings.terms import Rotation
from pe_jax.engines.mask import allowed
from pe_jax.hf.layers import parts
from tools.cookbook_rows import ROWS

pytestmark = pytest.mark.oracles
LENGTH, TOLERANCE = 23, 1e-5
NORMS = ("q_norm", "q_layernorm", "query_layernorm", "qk_norm", "q_b_norm")
TINY = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "pad_token_id": 0,
    "n_embd": 64,
    "n_head": 2,
    "n_layer": 6,
    "sliding_window": 5,
    "num_experts": 2,
    "num_local_experts": 2,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 6,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 1,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "vocab_size_per_layer_input": 32,
    "hidden_size_per_layer_input": 4,
    "attention_chunk_size": 6,
    "local_attention": 10,
    "intermediate_size_mlp": 16,
    "laurel_rank": 4,
    "num_kv_shared_layers": 0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
LONG = {"rope_type": "longrope", "short_factor": [1.5] * 16, "long_factor": [3.0] * 16}
THETA = {"rope_theta": 5e4}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0, **THETA},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, **THETA},
    "yarn": {**YARN, "truncate": False, **THETA},
    "llama3": {**LLAMA3, **THETA},
}
MSCALE = {"mscale": 0.7, "mscale_all_dim": 1.2}


def flat(**settings):
    return {"rope_parameters": settings}


CASES = {
    **{kind: {} for kind in hf.FAMILIES if isinstance(hf.FAMILIES[kind], hf.families.Rotary)},
    **{f"llama {name}": flat(**own) for name, own in SCALINGS.items()},
    **{f"gpt_neox {n}": flat(partial_rotary_factor=0.5, **own) for n, own in SCALINGS.items()},
    "llama dynamic within": {**flat(**SCALINGS["dynamic"]), "max_position_embeddings": 64},
    "llama dynamic beyond": {**flat(**SCALINGS["dynamic"]), "max_position_embeddings": 8},
    "phi3 longrope short": {
        **flat(**LONG, **THETA),
        "original_max_position_embeddings": 32,
        "max_position_embeddings": 64,
    },
    "phi3 longrope long": {
        **flat(**LONG, **THETA),
        "original_max_position_embeddings": 16,
        "max_position_embeddings": 64,
    },
    "glm yarn": flat(**YARN, partial_rotary_factor=0.25, **THETA),
    "gpt_oss": {},
    "qwen2 window": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen2_moe window": {"use_sliding_window": True, "max_window_layers": 4},
    "qwen3_moe window": {"use_sliding_window": True},
    "mistral no window": {"sliding_window": None},
    "exaone4 no window": {"sliding_window": None, "layer_types": ["full_attention"] * 6},
    "deepseek_v4": {"layer_types": ["sliding_attention"] * 6},
    "granite_swa bases": {"layer_rope_theta": [0, 1e4, 5e5, 1e4, 0, 0]},
    "lfm3 types": {"layer_types": ["full_attention", "sliding_attention", "conv"] * 2},
    "smollm3 window": {"use_sliding_window": True},
    "smollm3 listed": {"no_rope_layers": [0, 1, 1, 0, 0, 1]},
    "llama4_text no tuning": {"attn_temperature_tuning": False, "use_qk_norm": False},
    "llama4_text listed": {"no_rope_layers": [0, 1, 1, 0, 0, 1], "floor_scale": 4},
    "gemma2 scaled": {"query_pre_attn_scalar": 100, "attn_logit_softcapping": None},
    "gemma3_text both ways": {"use_bidirectional_attention": True, "sliding_window": 8},
    "gemma3_text linear": {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    },
    "gemma4_text wide": {"global_head_dim": 64},
    "granite scaled": {"attention_multiplier": 0.3},
    "cohere norm": {"use_qk_norm": True},
    "phi norm": {"qk_layernorm": True},
    "persimmon no norm": {"qk_layernorm": False},
    "qwen3_5_text": {},
    "qwen2_vl_text yarn": flat(**YARN, mrope_section=[4, 6, 6]),
    "qwen3_vl_text linear": flat(rope_type="linear", factor=2.0, mrope_section=[6, 5, 5]),
    "deepseek_v3 half": {"rope_interleave": False},
    "deepseek_v3 yarn": flat(**YARN, **MSCALE, **THETA),
    "deepseek_v2 yarn": flat(**YARN, **MSCALE, **THETA),
    "modernbert": {},
    "minimax no window": {"sliding_window": None},
    "minimax_m2 partial": {"rotary_dim": 16},
    "esm rotary": {"position_embedding_type": "rotary"},
    "gpt2": {},
    "gpt2 inverse": {"scale_attn_by_inverse_layer_idx": True},
    "gpt2 unscaled": {"scale_attn_weights": False},
    "gpt_bigcode": {},
    "bert": {},
    "roberta": {},
    "opt": {"ffn_dim": 16, "word_embed_proj_dim": 64},
}
for row in ROWS:  # of the cookbook
    wider = {"hidden_size": 2 * row.head_dim, "head_dim": row.head_dim}
    if row.check == "scores":
        CASES[f"{row.model_type} {row.name}"] = (wider if row.head_dim != 32 else {}) | row.config
SECTIONS = {"qwen2_vl_text": [4, 6, 6], "qwen2_5_vl_text": [4, 6, 6], "qwen3_vl_text": [6, 5, 5]}
SECTIONS |= {"qwen3_5_text": [2, 1, 1]}
ELSEWHERE = (
    "gptj",
    "codegen",
    "qwen2_vl",
    "qwen2_5_vl",
    "llama4",
    "gemma3",
    "minimax_text_01",
)  # below, or the same


def build(name: str):
    """A tiny config and model of the type that a case begins with."""
    import torch
    from transformers import AutoConfig, AutoModel

    kind = name.split()[0]
    default = AutoConfig.for_model(kind)
    known = set(default.to_dict()) | set(default.attribute_map)
    settings = {k: v for k, v in TINY.items() if k in known}
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


def rotated(layer, x, side, positions, sorted_pairs=False):
    """Our rotation of x [1, H, T, E]; DeepSeek-V3 sorts the pairs of x into halves beforehand."""
    dims = pe_jax.Dims(x.shape[1] * x.shape[3], x.shape[1], x.shape[1], x.shape[3])
    encoding = layer.encoding.at_length(LENGTH)
    params = encoding.init(jax.random.key(0), dims)
    x = jnp.asarray(x.transpose(0, 2, 1, 3))
    if layer.rotary_last:
        rope = parts(encoding)[0]  # the second may be a sink
        turned = rope.rotary_dim(x.shape[-1])
        first, rest = x[..., -turned:], x[..., :-turned]
        if sorted_pairs and rope.layout == "interleaved":
            first = jnp.stack(jnp.split(first, 2, axis=-1), axis=-1).reshape(first.shape)
        x = jnp.concatenate([first, rest], axis=-1)
    for term in encoding.terms(params, dims):
        turn = getattr(term, side) if isinstance(term, Rotation) else None
        x = x if turn is None else turn(term.arrays, x, positions)
    return np.asarray(x, np.float64).transpose(0, 2, 1, 3)


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


# Models that do not ask for an attention by name.


def tiny(kind, **settings):
    """A config of that type, and its modelling module."""
    import importlib

    from transformers import AutoConfig

    name = kind.replace("-", "_")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    return AutoConfig.for_model(kind, **settings), module


def bias_of(layer, params, distance):
    """What a layer's encoding adds to the scores at distances [T, S]: [H, T, S]."""
    heads = len(params)
    dims = pe_jax.Dims(heads * layer.head_dim, heads, heads, layer.head_dim)
    own = pe_jax.Params({"table": params}, {"table": params})
    (term,) = [t for t in layer.encoding.terms(own, dims) if hasattr(t, "at")]
    return np.asarray(term.at(jnp.asarray(distance)))


INDEX = np.arange(LENGTH)
DISTANCE = INDEX[:, None] - INDEX


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


@pytest.mark.parametrize("heads", [4, 8, 12])
@pytest.mark.parametrize("kind", ["bloom", "falcon", "mpt"])
def test_alibi(live, monkeypatch, kind, heads):
    """Under a causal mask, m·key is -m·distance; Falcon's rounding is switched off."""
    import torch

    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)
    width = heads * 16
    more = {"alibi": True} if kind == "falcon" else {}
    names = {"falcon": ("hidden_size", "num_attention_heads"), "mpt": ("d_model", "n_heads")}
    size, count = names.get(kind, ("hidden_size", "n_head"))
    config, module = tiny(kind, **{size: width, count: heads}, **more)
    layer = hf.encodings(config)[0]
    ones = torch.ones(1, LENGTH, dtype=torch.int64)
    if kind == "mpt":
        theirs = module.build_mpt_alibi_tensor(heads, LENGTH).numpy()
    else:
        theirs = module.build_alibi_tensor(ones, heads, torch.float32).numpy()
    if kind == "falcon":
        theirs = theirs / np.sqrt(layer.head_dim)
    theirs = theirs.reshape(heads, 1, LENGTH) + np.zeros((heads, LENGTH, 1))
    theirs = theirs - np.diagonal(theirs, axis1=1, axis2=2)[..., None]  # a constant for each query
    ours = bias_of(layer, jnp.zeros((heads, 1)), DISTANCE)
    past = DISTANCE >= 0
    np.testing.assert_allclose(ours[:, past], theirs[:, past], atol=TOLERANCE)


def test_falcon_rounds_slopes_and_their_multiples_to_bfloat16(live):
    """Its bias is ours with both rounded, to the bit; of 12 slopes 4 are no powers of two."""
    import torch

    heads = 12
    _, module = tiny("falcon", alibi=True)
    ones = torch.ones(1, LENGTH, dtype=torch.int64)
    theirs = module.build_alibi_tensor(ones, heads, torch.float32).numpy()[:, 0]
    slopes = pe_jax.encodings.alibi.slopes(heads).astype(jnp.bfloat16)
    ours = slopes[:, None] * jnp.asarray(INDEX, jnp.bfloat16)
    np.testing.assert_array_equal(ours.astype(jnp.float32), theirs)
    exact = np.asarray(pe_jax.encodings.alibi.slopes(heads))[:, None] * INDEX
    assert 0 < np.abs(theirs - exact).max() <= 2**-8 * exact.max()


def test_mpt_leaves_the_largest_exponent_unread_and_we_do_not(live):
    config, _ = tiny("mpt", attn_config={"alibi_bias_max": 16})
    assert hf.encodings(config)[0].encoding == pe_jax.make("alibi", bias_max=16.0)


T5S = {
    "t5": "T5Attention",
    "mt5": "MT5Attention",
    "umt5": "UMT5Attention",
    "switch_transformers": "SwitchTransformersAttention",
    "longt5": "LongT5Attention",
}


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("buckets, reach", [(32, 128), (8, 20)])
@pytest.mark.parametrize("kind", T5S)
def test_t5s_bias(live, kind, buckets, reach, decoder):
    import torch

    settings = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": reach}
    config, module = tiny(kind, num_heads=2, num_layers=2, d_model=16, d_kv=8, **settings)
    layers = hf.encodings(config)
    layer = layers[-1 if decoder else 0]
    config.is_decoder = decoder
    theirs = getattr(module, T5S[kind])(config, has_relative_attention_bias=True, layer_idx=0)
    names = inspect.signature(theirs.compute_bias).parameters
    arguments = [LENGTH, LENGTH] if "query_length" in names else [LENGTH]
    with torch.no_grad():
        theirs.is_decoder = decoder
        bias = theirs.compute_bias(*arguments)[0].numpy()
    table = jnp.asarray(theirs.relative_attention_bias.weight.detach().numpy().T)
    ours = bias_of(layer, table, DISTANCE)
    part = DISTANCE >= 0 if decoder else np.ones_like(DISTANCE, bool)
    np.testing.assert_allclose(ours[:, part], bias[:, part], atol=TOLERANCE)
    model = module.__dict__[[n for n in vars(module) if n.endswith("EncoderModel")][0]](config)
    tables = [n for n, _ in model.named_parameters() if "relative_attention_bias" in n]
    assert (len(tables) == 1) == layer.encoding.shared


def test_longt5_sees_its_radius(live):
    import torch

    config, module = tiny("longt5", local_radius=4, num_layers=1)
    layer = hf.encodings(config)[0]
    block = layer.window
    found = module._mask_local_attention_mask(torch.ones(1, 1, block, 3 * block, dtype=bool), block)
    ahead = np.arange(block, 2 * block)[:, None] - np.arange(3 * block)
    np.testing.assert_array_equal(found.numpy().reshape(ahead.shape), np.abs(ahead) < layer.window)


def test_mpnets_bias_on_scaled_scores(live):
    import torch

    config, module = tiny(
        "mpnet", hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8
    )
    (layer,) = hf.encodings(config)
    encoder = module.MPNetEncoder(config)
    with torch.no_grad():
        bias = encoder.compute_position_bias(torch.zeros(1, 300, 16))[0].numpy()
    table = jnp.asarray(encoder.relative_attention_bias.weight.detach().numpy().T)
    buckets = hf.LayerEncoding(layer.encoding.parts[1], 8)
    distance = np.arange(300)[:, None] - np.arange(300)
    np.testing.assert_allclose(bias_of(buckets, table, distance), bias, atol=TOLERANCE)
    assert layer.scale is None and layer.encoding.parts[0].length == 510
    rows = module.MPNetEmbeddings(config).position_embeddings.weight.shape[0]
    assert rows == 510 + layer.first_row


@pytest.mark.parametrize("types", [["c2p"], ["p2c"], ["c2p", "p2c"], []])
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("kind", ["deberta", "deberta-v2"])
def test_debertas_weights(live, kind, relative, types):
    import torch

    from tests.oracles.replay import weights

    rng = np.random.default_rng(0)
    more = {"position_buckets": 4, "max_relative_positions": 9} if kind == "deberta-v2" else {}
    config, module = tiny(
        kind,
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=1,
        relative_attention=relative,
        pos_att_type=types,
        position_biased_input=False,
        max_position_embeddings=30,
        **more,
    )
    (layer,) = hf.encodings(config)
    attention = module.DisentangledSelfAttention(config).eval()
    x = torch.from_numpy(rng.standard_normal((1, LENGTH, 16), np.float32))
    span = 4 if kind == "deberta-v2" else 30
    table = torch.from_numpy(rng.standard_normal((2 * span, 16), np.float32))
    seen = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(parameter.shape).astype("f")) / 4)
            if "bias" in name:
                parameter.zero_()
        relative_pos = torch.from_numpy(DISTANCE)[None] if kind == "deberta" else None
        options = {"output_attentions": True, "rel_embeddings": table, "relative_pos": relative_pos}
        _, theirs = attention(x, seen, **options)
        if kind == "deberta":
            q, k, _ = attention.in_proj(x).view(1, LENGTH, 2, 24).chunk(3, dim=-1)
            projections = {"w_k": "pos_proj", "w_q": "pos_q_proj"}
        else:
            q, k = (f(x).view(1, LENGTH, 2, 8) for f in (attention.query_proj, attention.key_proj))
            projections = {"w_k": "pos_key_proj", "w_q": "pos_query_proj"}
    own = {
        ours: getattr(attention, name).weight.detach().numpy().reshape(2, 8, 16).transpose(0, 2, 1)
        for ours, name in projections.items()
        if hasattr(attention, name)
    }
    inputs = {"q": q.numpy(), "k": k.numpy()}
    if layer.scale is not None:
        inputs["q"] = inputs["q"] * layer.scale * 8**0.5
    params = ({"table": table.numpy()}, own) if relative and types else ((), ())
    ours = weights(inputs, layer.encoding, "dense", params=params)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=TOLERANCE)


ROWS = {
    "bert": "BertEmbeddings",
    "electra": "ElectraEmbeddings",
    "albert": "AlbertEmbeddings",
    "distilbert": "Embeddings",
    "roberta": "RobertaEmbeddings",
    "camembert": "CamembertEmbeddings",
    "xlm-roberta": "XLMRobertaEmbeddings",
    "esm": "EsmEmbeddings",
}


@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_learned_tables(live, kind):
    import torch

    config, module = tiny(kind, max_position_embeddings=20, pad_token_id=1, vocab_size=8)
    layer, theirs = hf.encodings(config)[0], getattr(module, ROWS[kind])(config)
    table = theirs.position_embeddings
    assert table.weight.shape[0] == layer.encoding.length + layer.first_row
    if hasattr(theirs, "create_position_ids_from_input_ids") or hasattr(
        module, "create_position_ids_from_input_ids"
    ):
        make = getattr(theirs, "create_position_ids_from_input_ids", None)
        make = make or module.create_position_ids_from_input_ids
        ids = make(torch.tensor([[5, 6, 7]]), theirs.padding_idx)
        assert ids[0, 0] == layer.first_row


def test_rows_of_tables_with_two_more(live):
    for kind, name in (("opt", "OPT"), ("bart", "Bart"), ("mbart", "MBart"), ("biogpt", "BioGpt")):
        config, module = tiny(kind)
        layer = hf.encodings(config)[0]
        table = getattr(module, f"{name}LearnedPositionalEmbedding")(layer.encoding.length, 4)
        assert table.weight.shape[0] == layer.encoding.length + layer.first_row
        assert table.offset == layer.first_row


@pytest.mark.parametrize("kind", ["marian", "pegasus", "whisper"])
def test_sinusoids_at_the_input(live, kind):
    heads = {f"{stack}_attention_heads": 2 for stack in ("encoder", "decoder")}
    config, module = tiny(kind, d_model=16, **heads)
    layer = hf.encodings(config)[0]
    if kind == "whisper":
        theirs = module.sinusoids(50, 16).numpy()
    else:
        table = getattr(module, f"{kind.capitalize()}SinusoidalPositionalEmbedding")(50, 16)
        theirs = table.create_weight().numpy()
    ours = pe_jax.encodings.sinusoidal.sinusoid(np.arange(50), 16, layout=layer.encoding.layout)
    np.testing.assert_allclose(ours, theirs, atol=2e-5)  # their angles are float32
    assert hf.encodings(config)[-1].stack == "decoder"


def test_images_rotate_as_theirs(live):
    import torch

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, LENGTH, 2, 16)).astype("f")
    places = rng.integers(0, 9, (LENGTH, 2))
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "head_dim": 16}
    config, module = tiny("pixtral", **sizes)
    (layer,) = hf.encodings(config)
    y = torch.from_numpy(x)
    table = module.PixtralVisionRotaryEmbedding(config)(y, torch.from_numpy(places))
    theirs, _ = module.apply_rotary_pos_emb(y, y, *table, unsqueeze_dim=1)
    ours = rotated(layer, x.transpose(0, 2, 1, 3), "q", places).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=TOLERANCE)

    _, module = tiny("qwen2_vl")
    config = module.Qwen2VLVisionConfig(embed_dim=32, num_heads=2, depth=1)
    (layer,) = hf.encodings(config)
    table = module.Qwen2VLVisionRotaryEmbedding(config)(y, torch.from_numpy(places))
    theirs, _ = module.apply_rotary_pos_emb_vision(y, y, *table)
    ours = rotated(layer, x.transpose(0, 2, 1, 3), "q", places).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=TOLERANCE)

    del sizes["head_dim"]
    config, module = tiny("dinov3_vit", **sizes, patch_size=1, num_register_tokens=3)
    (layer,) = hf.encodings(config)
    places = np.asarray(pe_jax.positions.grid(4, 5, normalized=True, prefix=layer.prefix))
    cos, sin = module.DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 4, 5))
    z = torch.from_numpy(rng.standard_normal((1, 2, 24, 16)).astype("f"))
    theirs, _ = module.apply_rotary_pos_emb(z, z, cos, sin)
    np.testing.assert_allclose(rotated(layer, z.numpy(), "q", places), theirs, atol=TOLERANCE)


def test_windows_of_images(live):
    from transformers import AutoModel

    for kind, more in (
        ("swin", {}),
        ("swinv2", {}),
        ("swinv2", {"pretrained_window_sizes": [4, 4]}),
    ):
        sizes = {"image_size": 32, "patch_size": 2, "depths": [2, 2], "num_heads": [2, 4]}
        config, _ = tiny(kind, **sizes, embed_dim=8, window_size=8, **more)
        model, layers = AutoModel.from_config(config), hf.encodings(config)
        blocks = [m for m in model.modules() if type(m).__name__ in ("SwinLayer", "Swinv2Layer")]
        assert len(blocks) == len(layers)
        for index, (block, layer) in enumerate(zip(blocks, layers, strict=True)):
            if kind == "swinv2":
                assert block.shift_size == (4 if "shifted_windows" in layer.also else 0)
                trained = more.get("pretrained_window_sizes")
                want = trained[index // 2] if trained else block.window_size
                assert layer.encoding.height == want
            assert layer.head_dim * [2, 4][index // 2] == 8 * 2 ** (index // 2)


@pytest.mark.parametrize("kind", ["vit", "deit", "beit", "data2vec-vision"])
def test_tables_of_images(live, kind):
    """Vectors of patches and of tokens before them; BEiT's tables, shared or of each layer."""
    import torch
    from transformers import AutoConfig, AutoModel

    flags = "absolute_position_embeddings shared_relative_position_bias relative_position_bias"
    more = {} if kind in ("vit", "deit") else {f"use_{flag}": True for flag in flags.split()}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = AutoConfig.for_model(kind, **sizes, image_size=32, patch_size=8, **more)
    model = AutoModel.from_config(config)
    state = {name: torch.randn(x.shape) for name, x in model.state_dict().items()}
    params = hf.params(config, state, 1)
    shared = params.shared[0] if more else params.shared
    theirs = state["embeddings.position_embeddings"][0].numpy()
    np.testing.assert_array_equal(shared["front"], theirs[:-16])
    np.testing.assert_array_equal(shared["table"].reshape(16, -1), theirs[-16:])
    if more:
        tables = [x for n, x in state.items() if n.endswith("relative_position_bias_table")]
        ours = [params.shared[1]["table"], params.layer[2]["table"]]
        for one, other in zip(ours, (tables[0], tables[-1]), strict=True):
            np.testing.assert_array_equal(one, other.T)


@pytest.mark.parametrize("name", ["Siglip", "Siglip2"])
def test_tables_of_the_text_beside_images(live, name):
    import transformers

    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    sizes |= {"vocab_size": 9, "bos_token_id": 1, "eos_token_id": 2, "intermediate_size": 8}
    config = getattr(transformers, f"{name}TextConfig")(**sizes, max_position_embeddings=7)
    model = getattr(transformers, f"{name}TextModel")(config)
    (table,) = [x for n, x in model.named_parameters() if "position_embedding" in n]
    (layer,) = hf.encodings(config)
    assert layer.encoding.length == 7 and not layer.causal
    ours = hf.params(config, model.state_dict()).shared["table"]
    np.testing.assert_array_equal(ours, table.detach().numpy())


@pytest.mark.parametrize("kind", [k for k in hf.FAMILIES if k not in ELSEWHERE])
def test_defaults_are_theirs_and_what_is_read_is_written(live, kind):
    """A config without the keys of positions is read as the full one; what is written, too."""
    from transformers import AutoConfig

    more = {"head_dim": 128} if kind == "glm4_moe" else {}
    config = AutoConfig.for_model(kind, **more)
    layers, full = hf.encodings(config), config.to_dict()
    written = hf.to_hf(layers, kind)
    assert hf.encodings({**full, **written}) == layers
    kept = {k: v for k, v in full.items() if k in SIZES or k in more}
    assert hf.encodings(kept) == layers
    if kind not in ("swin", "swinv2"):
        again = {**kept, **written}
        del again["model_type"]
        again = AutoConfig.for_model(kind, **again)
        assert hf.encodings(again) == layers


SIZES = set(
    "model_type hidden_size n_embd d_model dim embed_dim d_kv depth depths image_size".split()
)
SIZES |= set("num_hidden_layers n_layer n_layers num_layers num_decoder_layers patch_size".split())
SIZES |= set("num_attention_heads n_head n_heads num_heads max_position_embeddings".split())
SIZES |= {f"{stack}_{n}" for stack in ("encoder", "decoder") for n in ("layers", "attention_heads")}
