"""The rows of docs/cookbook.md against transformers' own models, of tiny sizes and random weights.

Of each row the config is asked again as transformers writes it. Of those with position weights a
whole model runs: what `pe_jax.hf.params` makes of its state dict gives its attention weights, from
its own queries and keys, or what it adds to the input.
"""

import re

import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from tests.oracles.replay import TOLERANCE, weights
from tools import cookbook
from tools.cookbook_rows import ROWS, Row

pytestmark = pytest.mark.oracles
READ = [row for row in ROWS if row.model_type]
LENGTH, WIDTH, HEADS = 23, 32, 2
TINY = {
    "vocab_size": 40,
    "intermediate_size": 8,
    "d_ff": 8,
    "d_inner": 8,
    "ffn_dim": 8,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "conv_dim": [8] * 7,
    "word_embed_proj_dim": WIDTH,
    "num_conv_pos_embedding_groups": 2,
    "num_conv_pos_embeddings": 4,
}
SMALL_IMAGES = {"image_size": 32, "patch_size": 2, "depths": [2, 2], "num_heads": [2, 4]}
SMALL_IMAGES |= {"embed_dim": 8, "window_size": 4}


def named(check: str):
    return [pytest.param(row, id=row.name) for row in READ if row.check == check]


def build(row: Row):
    """A config and a model of two layers, with weights that keep attention far from uniform."""
    import torch
    from transformers import AutoConfig, AutoModel

    small = Row(row.name, row.model_type, "", config=row.config, layers=2, head_dim=WIDTH // HEADS)
    known = {**AutoConfig.for_model(row.model_type).to_dict()}
    given = {**TINY, **small.settings}
    given |= {"d_kv": WIDTH // HEADS} if "d_kv" in known else {}
    given |= SMALL_IMAGES if row.model_type.startswith("swin") else {}
    del given["model_type"]
    names = set(known) | set(AutoConfig.for_model(row.model_type).attribute_map)
    config = AutoConfig.for_model(row.model_type, **{k: x for k, x in given.items() if k in names})
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.5)
    return config, model


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in READ])
def test_transformers_own_config_is_read_as_the_rows(live, row):
    from transformers import AutoConfig

    default = AutoConfig.for_model(row.model_type)
    names = set(default.to_dict()) | set(default.attribute_map) | set(row.config)
    given = {k: x for k, x in row.settings.items() if k in names and k != "model_type"}
    config = AutoConfig.for_model(row.model_type, **given)
    found, want = hf.encodings(config), hf.encodings(row.settings)
    assert cookbook.spec(found) == cookbook.spec(want)
    assert cookbook.besides(found) == cookbook.besides(want)
    assert cookbook.mapped(row.model_type, found) == cookbook.mapped(row.model_type, want)


def split(x, heads: int = HEADS):
    return x.unflatten(-1, (heads, -1))


def linear(q: str, k: str):
    return lambda module, x: tuple(split(getattr(module, name)(x)) for name in (q, k))


def debertas(module, x):
    q, k, _ = module.in_proj(x).unflatten(-1, (HEADS, -1)).chunk(3, dim=-1)
    return q + split(module.q_bias), k


def xlnets(module, x):
    import torch

    return tuple(torch.einsum("tbd,dhe->bthe", x, w) for w in (module.q, module.k))


def swins(module, x):
    return tuple(split(f(x), module.num_attention_heads) for f in (module.q_proj, module.k_proj))


def cosines(module, x):
    import torch

    heads, most = module.num_attention_heads, np.log(100)
    q, k = (split(f(x), heads) for f in (module.query, module.key))
    q, k = (torch.nn.functional.normalize(y, dim=-1) for y in (q, k))
    scale = module.logit_scale.clamp(max=most).exp() * k.shape[-1] ** 0.5
    return q * scale.reshape(heads, 1), k


ATTENTION = {  # the modules that attend, and their queries and keys [B, T, H, E]
    "t5": ("SelfAttention", linear("q", "k")),
    "umt5": ("SelfAttention", linear("q", "k")),
    "mpnet": (r"attention\.attn", linear("q", "k")),
    "deberta": (r"attention\.self", debertas),
    "deberta-v2": (r"attention\.self", linear("query_proj", "key_proj")),
    "xlnet": ("rel_attn", xlnets),
    "wav2vec2-conformer": ("self_attn", linear("linear_q", "linear_k")),
    "wav2vec2-bert": ("self_attn", linear("linear_q", "linear_k")),
    "wavlm": (r"layers\.\d+\.attention", linear("q_proj", "k_proj")),
    "layoutlmv3": (r"attention\.self", linear("query", "key")),
    "swin": (r"blocks\.\d+\.attention", swins),
    "swinv2": (r"blocks\.\d+\.attention\.self", cosines),
}


def run(model, kind: str):
    """The model's attention weights of all layers, and positions where they are not 0, 1, 2, …"""
    import torch

    tokens = torch.arange(LENGTH)[None] % 30 + 3
    more = {"output_attentions": True}
    if kind in ("wavlm", "wav2vec2-conformer", "wav2vec2-bert"):
        model.config.output_attentions = True
        x = torch.randn(1, LENGTH, WIDTH)
        return model.encoder(x, **more).attentions, None
    if kind.startswith("swin"):
        return model(torch.randn(1, 3, 32, 32), **more).attentions, pe_jax.positions.grid(4, 4)
    if kind == "layoutlmv3":
        boxes = torch.randint(0, 1001, (1, LENGTH, 4))
        places = torch.stack([torch.arange(LENGTH), boxes[0, :, 0], boxes[0, :, 3]], dim=-1)
        return model(tokens, bbox=boxes, **more).attentions, places.numpy()
    if "t5" in kind:
        out = model(input_ids=tokens, decoder_input_ids=tokens, **more)
        return (*out.encoder_attentions, *out.decoder_attentions), None
    return model(tokens, **more).attentions, None


@pytest.mark.parametrize("row", named("weights"))
def test_mapped_weights_give_the_models_attention(live, row):
    import torch

    config, model = build(row)
    pattern, project = ATTENTION[row.model_type]
    inputs = []
    for name, module in model.named_modules():
        if re.search(rf"(?:^|\.){pattern}$", name):
            module.register_forward_pre_hook(
                lambda module, args, options: inputs.append(
                    (module, args[0] if args else options["hidden_states"])
                ),
                with_kwargs=True,
            )
    with torch.no_grad():
        theirs, places = run(model, row.model_type)
        inputs = [(project(module, x), x) for module, x in inputs]
    layers = hf.encodings(config)
    assert len(layers) == len(inputs) == len(theirs)
    compared = 0
    for index, (layer, ((q, k), x), want) in enumerate(zip(layers, inputs, theirs, strict=True)):
        if "shifted_windows" in layer.also:
            continue  # their mask is the image's, not the encoding's
        params = hf.params(config, model.state_dict(), index)
        given = {"q": q.numpy(), "k": k.numpy(), "x": x.numpy()}
        options = {"params": params, "causal": layer.causal, "at": places}
        ours = np.asarray(weights(given, layer.encoding, "dense", **options))
        if row.model_type == "wavlm":  # which returns the mean of the heads
            ours, want = ours.mean(1), want[:, 0]
        np.testing.assert_allclose(ours, want.numpy(), atol=TOLERANCE)
        assert np.ptp(ours) > 0.1  # far from uniform
        compared += 1
    assert compared >= 2


TABLES = r"position_embeddings|wpe|embed_positions|positions_embed"


@pytest.mark.parametrize("row", named("rows"))
def test_mapped_rows_are_what_the_model_adds(live, row):
    """The output of the module of the table; or, where it is no module, its effect."""
    import torch

    config, model = build(row)
    layers, state = hf.encodings(config), model.state_dict()
    found: list = []
    for name, module in model.named_modules():
        if re.search(rf"(?:{TABLES})$", name):
            module.register_forward_hook(lambda module, args, out: found.append(out))
    tokens = torch.arange(LENGTH)[None] % 30 + 3
    with torch.no_grad():
        if row.model_type == "vit":
            pixels = torch.randn(1, 3, 224, 224)
            full = model.embeddings(pixels)
            model.embeddings.position_embeddings.zero_()
            found = [full - model.embeddings(pixels)]
        else:
            model(tokens)
    firsts = [i for i, x in enumerate(layers) if i == 0 or x.stack != layers[i - 1].stack]
    assert len(found) == len(firsts)
    for index, theirs in zip(firsts, found, strict=True):
        encoding, params = layers[index].encoding, hf.params(config, state, index)
        theirs = theirs.reshape(-1, theirs.shape[-1]).numpy()
        ours = encoding.embed(params, np.zeros_like(theirs), np.arange(len(theirs)))
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


@pytest.mark.parametrize("row", named("table"))
def test_maes_table_has_its_halves_swapped(live, row):
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 1}
    config = AutoConfig.for_model(row.model_type, **sizes, image_size=32, patch_size=8)
    theirs = AutoModel.from_config(config).embeddings.position_embeddings[0].detach().numpy()
    (layer,) = hf.encodings(config)
    grid = pe_jax.positions.grid(4, 4)
    ours = layer.encoding.embed(pe_jax.Params({}, {}), np.zeros((16, WIDTH), "f"), grid)
    assert layer.prefix == 1 and not theirs[0].any()
    swapped = np.concatenate(np.split(theirs[1:], 2, axis=1)[::-1], axis=1)
    np.testing.assert_allclose(ours, swapped, atol=TOLERANCE)
