"""What models that `pe_jax.hf` reads add to scores and inputs, from their own functions."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from tests.oracles.hf_layers import DISTANCE, INDEX, LENGTH, bias_of, tiny
from tests.oracles.replay import TOLERANCE
from tests.oracles.replay.common import weights

pytestmark = pytest.mark.oracles


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
