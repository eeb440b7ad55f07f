"""The rows of docs/cookbook.md against transformers' own models, of tiny sizes and random weights.

Of each row the config is asked again as transformers writes it. Of those with position weights a
whole model runs: what `pe_jax.hf.params` makes of its state dict gives its attention weights, from
its own queries and keys, or what it adds to the input.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings.deberta import DeBERTa
from pe_jax.encodings.learned import Learned
from tests.oracles.replay import TOLERANCE
from tests.oracles.tiny_models import (
    HEADS,
    WIDTH,
    attend,
    configured,
    drawn,
    inklings,
    known,
    split,
)
from tools import cookbook
from tools.cookbook_rows import ROWS, Row

pytestmark = pytest.mark.oracles
READ = [row for row in ROWS if row.model_type]
LENGTH = 23
SMALL_IMAGES = {"image_size": 32, "patch_size": 2, "depths": [2, 2], "num_heads": [2, 4]}
PATCHES = {"image_size": 32, "patch_size": 8, "num_patches": 16}
SMALL_IMAGES |= {"embed_dim": 8, "window_size": 4}


def named(check: str):
    return [pytest.param(row, id=row.name) for row in READ if row.check == check]


def build(row: Row):
    """A config and a model of two layers, with weights that keep attention far from uniform."""
    from transformers import AutoModel

    layers = 6 if "inkling" in row.model_type else 2  # of which the last one is full
    sizes = {"layers": layers, "head_dim": WIDTH // HEADS}
    small = Row(row.name, row.model_type, "", config=row.config, **sizes)
    given = small.settings | {"d_kv": WIDTH // HEADS}
    given |= SMALL_IMAGES if row.model_type.startswith("swin") else {}
    given |= PATCHES if row.check == "patches" or row.model_type == "beit" else {}
    del given["model_type"]
    config = configured(row.model_type, **given)
    return config, drawn(AutoModel.from_config(config, attn_implementation="eager"))


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in READ])
def test_transformers_own_config_is_read_as_the_rows(live, row):
    from transformers import AutoConfig

    names = (known(row.model_type) | set(row.config)) - {"model_type"}
    given = {k: x for k, x in row.settings.items() if k in names}
    config = AutoConfig.for_model(row.model_type, **given)
    found, want = hf.encodings(config), hf.encodings(row.settings)
    assert cookbook.spec(found) == cookbook.spec(want)
    assert cookbook.besides(found) == cookbook.besides(want)
    assert cookbook.mapped(row.model_type, found) == cookbook.mapped(row.model_type, want)


def linear(q: str, k: str):
    return lambda module, x: tuple(split(getattr(module, name)(x), HEADS) for name in (q, k))


def debertas(module, x):
    q, k, _ = module.in_proj(x).unflatten(-1, (HEADS, -1)).chunk(3, dim=-1)
    return q + split(module.q_bias, HEADS), k


def xlnets(module, x):
    import torch

    return tuple(torch.einsum("btd,dhe->bthe", x, w) for w in (module.q, module.k))


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
    "gpt_oss": ("self_attn", linear("q_proj", "k_proj")),
    "inkling_text": ("self_attn", inklings),
    "inkling2_text": ("self_attn", inklings),
    "layoutlmv3": (r"attention\.self", linear("query", "key")),
    "swin": (r"blocks\.\d+\.attention", swins),
    "beit": (r"layers\.\d+\.attention", linear("q_proj", "k_proj")),
    "swinv2": (r"blocks\.\d+\.attention\.self", cosines),
}


def run(model, kind: str):
    """Runs the model; positions of its tokens, where they are not 0, 1, 2, …"""
    import torch

    tokens = torch.arange(LENGTH)[None] % 30 + 3
    more = {"output_attentions": True}
    if kind in ("wavlm", "wav2vec2-conformer", "wav2vec2-bert"):
        model.encoder(torch.randn(1, LENGTH, WIDTH), **more)
    elif kind.startswith("swin"):
        model(torch.randn(1, 3, 32, 32), **more)
        return pe_jax.positions.grid(4, 4)
    elif kind == "beit":
        model(torch.randn(1, 3, 32, 32), **more)
        return pe_jax.positions.grid(4, 4, prefix=1, numbered=True)
    elif kind == "layoutlmv3":
        boxes = torch.randint(0, 1001, (1, LENGTH, 4))
        model(tokens, bbox=boxes, **more)
        return torch.stack([torch.arange(LENGTH), boxes[0, :, 0], boxes[0, :, 3]], dim=-1).numpy()
    else:
        second = {"decoder_input_ids": tokens} if "t5" in kind else {}
        model(input_ids=tokens, **second, **more)
    return np.arange(LENGTH)


def our_weights(layer, params, q, k, x, places):
    """Our attention weights [B, H, T, T]: values are unit vectors."""
    encoding, width = layer.encoding, x.shape[-1]
    if isinstance(encoding, pe_jax.Sum) and isinstance(encoding.parts[0], Learned):
        # added to the input
        layer = dataclasses.replace(layer, encoding=encoding.parts[-1])
        params = pe_jax.Params(*(own[-1] for own in params))
    if isinstance(layer.encoding, DeBERTa):
        width = params.shared["table"].shape[1]  # one more
    batch, length, heads, _ = k.shape
    unit = np.broadcast_to(np.eye(length, dtype="f")[:, None], (batch, length, heads, length))
    return attend(layer, params, q, k, unit, x, places, width).transpose(0, 2, 1, 3)


def probabilities(kind: str, out):
    """Attention weights [B, H, T, T] among what a module gives."""
    theirs = [x for x in out if x is not None and x.ndim == 4][-1]
    return theirs.permute(2, 3, 0, 1) if kind == "xlnet" else theirs


@pytest.mark.parametrize("row", named("weights"))
def test_mapped_weights_give_the_models_attention(live, row):
    import torch

    config, model = build(row)
    pattern, project = ATTENTION[row.model_type]
    calls: list = []

    def record(module, args, options, out):
        x = args[0] if args else options["hidden_states"]
        x = x.transpose(0, 1) if row.model_type == "xlnet" else x
        keys = [options[name] for name in ("key_hidden_states",) if name in options]
        calls.append((x, *project(module, x, *keys), probabilities(row.model_type, out)))

    for name, module in model.named_modules():
        if re.search(rf"(?:^|\.){pattern}$", name):
            module.register_forward_hook(record, with_kwargs=True)
    with torch.no_grad():
        places = run(model, row.model_type)
    layers, compared = hf.encodings(config), 0
    assert len(layers) == len(calls)
    for index, (layer, (x, q, k, theirs)) in enumerate(zip(layers, calls, strict=True)):
        if layer.extras.image_window == "shifted":
            continue  # their mask is the image's, not the encoding's
        params = hf.params(config, model.state_dict(), index)
        zeros, theirs = jax.tree.map(jnp.zeros_like, params), theirs.numpy()
        ours, without = (our_weights(layer, own, q, k, x, places) for own in (params, zeros))
        if row.model_type == "wavlm":  # which gives the mean of the heads
            ours, without, theirs = ours.mean(1), without.mean(1), theirs[:, 0]
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)
        assert np.abs(without - theirs).max() > 100 * TOLERANCE
        compared += 1
    assert compared >= 2


WHISPER = [x for x in named("sinusoids") if x.id == "Whisper"]  # its decoder has a table
TABLES = r"position_embeddings?|wpe|embed_positions|positions_embed"


@pytest.mark.parametrize("row", [*named("rows"), *WHISPER])
def test_mapped_rows_are_what_the_model_adds(live, row):
    """The output of the module of the table; or, where it is no module, its effect."""
    import torch

    config, model = build(row)
    layers = hf.encodings(config)
    state = {name: x.clone() for name, x in model.state_dict().items()}
    found: list = []
    for name, module in model.named_modules():
        if re.search(rf"(?:{TABLES})$", name):
            module.register_forward_hook(lambda module, args, out: found.append(out))
    tokens = torch.arange(LENGTH)[None] % 30 + 3
    with torch.no_grad():
        if row.model_type == "whisper":  # its encoder wants sounds
            memory = torch.randn(1, 5, WIDTH)
            model.decoder(tokens, encoder_hidden_states=memory)
        else:
            model(tokens)
    stacks = dict.fromkeys(layer.stack for layer in layers)
    firsts = [[layer.stack for layer in layers].index(stack) for stack in stacks]
    firsts = firsts[1:] if row.model_type == "whisper" else firsts
    for index, theirs in zip(firsts, found, strict=True):
        encoding, params = layers[index].encoding, hf.params(config, state, index)
        theirs = theirs.reshape(-1, theirs.shape[-1]).numpy()
        ours = encoding.embed(params, np.zeros_like(theirs), np.arange(len(theirs)))
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


def patches(model, kind: str, height: int, width: int):
    """What the model adds to an image of so many patches of 8 pixels: [T, D]."""
    import torch

    torch.manual_seed(1)
    images = torch.randn(1, 3, 8 * height, 8 * width)
    more = {"interpolate_pos_encoding": True} if kind in ("vit", "siglip_vision_model") else {}
    if kind == "siglip2_vision_model":
        images = torch.randn(1, height * width, 3 * 8 * 8)
        more = {"spatial_shapes": torch.tensor([[height, width]])}
    table = next(x for n, x in model.named_parameters() if "position_embedding" in n)
    with torch.no_grad():
        full, kept = model.embeddings(images, **more), table.clone()
        table.zero_()
        found = full - model.embeddings(images, **more)
        table.copy_(kept)
    return found[0].numpy()


@pytest.mark.parametrize("row", named("patches"))
def test_mapped_patches_are_what_the_model_adds_at_any_size(live, row):
    config, model = build(row)
    layer, params = hf.encodings(config)[0], hf.params(config, model.state_dict())
    front = layer.encoding.prefix
    for height, width in ((4, 4), (6, 3), (2, 5)):
        theirs = patches(model, row.model_type, height, width)
        registers = theirs[front : front + layer.prefix]
        theirs = np.concatenate([theirs[:front], theirs[front + layer.prefix :]])
        encoding, own = layer.encoding.resized(params, height, width)
        places = pe_jax.positions.grid(height, width, prefix=front, numbered=True)
        ours = encoding.embed(own, jnp.zeros(theirs.shape), places)
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)
        assert not registers.any() and np.abs(theirs).max() > 0.1


@pytest.mark.parametrize("row", named("table"))
def test_maes_table_has_its_halves_swapped(live, row):
    from transformers import ViTMAEConfig
    from transformers.models.vit_mae.modeling_vit_mae import ViTMAEEmbeddings

    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 1}
    config = ViTMAEConfig(**sizes, image_size=32, patch_size=8)
    embeddings = ViTMAEEmbeddings(config)
    embeddings.initialize_weights()
    theirs = embeddings.position_embeddings[0].detach().numpy()
    (layer,) = hf.encodings(config)
    grid = pe_jax.positions.grid(4, 4)
    ours = layer.encoding.embed(pe_jax.Params({}, {}), np.zeros((16, WIDTH), "f"), grid)
    assert layer.prefix == 1 and not theirs[0].any()
    swapped = np.concatenate(np.split(theirs[1:], 2, axis=1)[::-1], axis=1)
    np.testing.assert_allclose(ours, swapped, atol=TOLERANCE)
