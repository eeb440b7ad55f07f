"""Positions of several axes."""

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import math
import sys
import types
from math import prod

import numpy as np
import pytest
import torch
import transformers
from torch.nn.utils import parametrizations
from transformers.models.beit import modeling_beit
from transformers.models.dinov3_vit import modeling_dinov3_vit
from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe
from transformers.models.glm4v import modeling_glm4v
from transformers.models.layoutlmv3 import modeling_layoutlmv3
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl
from transformers.models.pixtral import modeling_pixtral
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.swin import modeling_swin
from transformers.models.swinv2 import modeling_swinv2

from tests.oracles.live.common import (
    BATCH,
    HEAD_DIM,
    any_places,
    by_head,
    fill,
    normal,
    rotary_inputs,
    x_transformers,
)


def _rotary_axes(rng, length, dim, axes):
    """As `rotary_inputs`, with positions on several axes."""
    inputs = rotary_inputs(rng, length, dim)
    inputs["positions"] = torch.stack([any_places(rng, length) for _ in range(axes)], dim=-1)
    return inputs


def rope_2d_qwen2_vl(rng, length, head_dim, base, spectrum):
    inputs = _rotary_axes(rng, length, head_dim, 2)
    config = transformers.models.qwen2_vl.Qwen2VLVisionConfig(embed_dim=2 * head_dim, num_heads=2)
    config.rope_parameters = {"rope_type": "axial", "rope_theta": base}
    module = modeling_qwen2_vl.Qwen2VLVisionRotaryEmbedding(config)
    table = module(inputs["q"], inputs["positions"])
    turn = modeling_qwen2_vl.apply_rotary_pos_emb_vision
    q, k = turn(inputs["q"], inputs["k"], *table)
    return inputs, {"q": q, "k": k}


def rope_2d_pixtral(rng, length, head_dim, base, spectrum):
    inputs = _rotary_axes(rng, length, head_dim, 2)
    config = transformers.PixtralVisionConfig(hidden_size=2 * head_dim, num_attention_heads=2)
    config.rope_parameters = {"rope_type": "axial", "rope_theta": base}
    module = modeling_pixtral.PixtralVisionRotaryEmbedding(config)
    table = module(inputs["q"], inputs["positions"])
    turn = modeling_pixtral.apply_rotary_pos_emb
    q, k = turn(inputs["q"], inputs["k"], *table, unsqueeze_dim=1)
    return inputs, {"q": q, "k": k}


def rope_2d_dinov3(rng, length, height, width, prefix, base):
    """An image of height × width patches after `prefix` tokens, which are not turned."""
    inputs = rotary_inputs(rng, prefix + height * width)
    del inputs["positions"]
    config = transformers.DINOv3ViTConfig(
        hidden_size=2 * HEAD_DIM, num_attention_heads=2, patch_size=1, rope_theta=base
    )
    module = modeling_dinov3_vit.DINOv3ViTRopePositionEmbedding(config).eval()
    cos, sin = module(torch.zeros(1, 3, height, width))
    first = (inputs[name].transpose(1, 2) for name in ("q", "k"))
    q, k = modeling_dinov3_vit.apply_rotary_pos_emb(*first, cos, sin)
    return inputs, {"q": q.transpose(1, 2), "k": k.transpose(1, 2)}


def rope_2d_timm(rng, length, height, width, base):
    """DINOv3's positions as timm has them."""
    modeling_timm = timm_layers("pos_embed_sincos")
    inputs = rotary_inputs(rng, height * width)
    del inputs["positions"]
    module = modeling_timm.RotaryEmbeddingDinoV3(HEAD_DIM, temperature=base).eval()
    return inputs, _turned_by_timm(modeling_timm, inputs, module.get_embed([height, width]), True)


def rope_mixed_timm(rng, length, height, width):
    modeling_timm = timm_layers("pos_embed_sincos")
    inputs = rotary_inputs(rng, height * width)
    del inputs["positions"]
    module = modeling_timm.RotaryEmbeddingMixed(2 * HEAD_DIM, depth=1, num_heads=2)
    module.freqs.copy_(normal(rng, *module.freqs.shape, scale=0.5))
    table = module.get_embed([height, width])[0]
    inputs["frequencies"] = module.freqs[:, 0]
    return inputs, _turned_by_timm(modeling_timm, inputs, table, False)


def liere_torch(rng, length, axes, block, commuting):
    """Learned blocks; where they commute, one for all axes times a factor of each."""
    inputs = rotary_inputs(rng, length)
    inputs["positions"] = torch.from_numpy(rng.random((length, axes), np.float32))
    drawn = normal(rng, 1 if commuting else axes, 2, HEAD_DIM // block, block, block)
    factors = normal(rng, axes, 2, HEAD_DIM // block) if commuting else torch.ones(axes, 1, 1)
    skew = factors[..., None, None] * (drawn.triu(1) - drawn.triu(1).mT)
    modeling_torch = torch.linalg
    turn = modeling_torch.matrix_exp(torch.einsum("ta,ahmij->thmij", inputs["positions"], skew))

    def turned(x):
        return torch.einsum("thmij,bthmj->bthmi", turn, x.unflatten(-1, (-1, block))).flatten(-2)

    outputs = {name: turned(inputs[name]) for name in ("q", "k")}
    inputs |= {"generators": drawn, **({"factors": factors} if commuting else {})}
    return inputs, outputs


def cayley_string_torch(rng, length, axes):
    """LSP-DETR's module, but that its frequencies are drawn."""
    inputs = rotary_inputs(rng, length)
    inputs["positions"] = torch.from_numpy(10 * rng.random((length, axes), np.float32))
    layer = torch.nn.Linear(HEAD_DIM, HEAD_DIM, bias=False)
    modeling_torch = parametrizations
    layer = modeling_torch.orthogonal(layer, orthogonal_map="cayley", use_trivialization=False)
    lower = normal(rng, HEAD_DIM, HEAD_DIM)
    layer.parametrizations.weight.original.copy_(lower)
    frequencies = normal(rng, axes, HEAD_DIM // 2)
    angle = (inputs["positions"] @ frequencies)[:, None]
    waves = torch.polar(torch.ones_like(angle), angle)

    def turned(x):
        pairs = torch.view_as_complex(layer(x).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * waves).flatten(-2)

    outputs = {name: turned(inputs[name]) for name in ("q", "k")}
    # Theirs is (I + A/2)(I - A/2)^-1 of the part below the diagonal.
    inputs |= {"skew": lower.tril(-1).mT / 2, "frequencies": frequencies}
    return inputs, outputs


def timm_layers(file: str):
    """A file of timm's layers, without its packages, whose imports need torchvision.

    The test is skipped where timm is missing.
    """
    try:
        layers = importlib.metadata.distribution("timm").locate_file("timm/layers")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("timm is missing: pip install --no-deps timm")
    for name in {"timm", "timm.layers"} - sys.modules.keys():
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(layers)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return pytest.importorskip(f"timm.layers.{file}", exc_type=ImportError)


def _turned_by_timm(modeling_timm, inputs, table, half: bool):
    turn = functools.partial(modeling_timm.apply_rot_embed_cat, emb=table, half=half)
    return {n: turn(inputs[n].transpose(1, 2)).transpose(1, 2) for n in ("q", "k")}


def rope_nd_minimax_m3(rng, length, head_dim, base):
    inputs = _rotary_axes(rng, length, head_dim, 3)
    config = transformers.MiniMaxM3VLConfig().vision_config
    config.hidden_size, config.num_attention_heads = 2 * head_dim, 2
    config.rope_parameters = {"rope_type": "axial", "rope_theta": base}
    module = modeling_minimax_m3_vl.MiniMaxM3VLVisionRotaryEmbedding(config)
    table = module(inputs["q"], inputs["positions"])
    turn = modeling_minimax_m3_vl.apply_rotary_pos_emb_vision
    q, k = turn(inputs["q"], inputs["k"], *table)
    return inputs, {"q": q, "k": k}


def _mrope(rng, length, kind, config, sections, base, turn):
    inputs = _rotary_axes(rng, length, 2 * sum(sections), 3)
    config = config(hidden_size=4 * sum(sections), num_attention_heads=2)
    config.head_dim = 2 * sum(sections)
    config.rope_parameters = {"rope_type": "default", "rope_theta": base, "mrope_section": sections}
    table = kind(config)(inputs["q"], inputs["positions"].T[:, None])
    q, k = turn(inputs["q"], inputs["k"], *table, unsqueeze_dim=2)
    return inputs, {"q": q, "k": k}


def mrope_qwen2_vl(rng, length, sections, base, interleaved):
    kind, turn = modeling_qwen2_vl.Qwen2VLRotaryEmbedding, modeling_qwen2_vl.apply_rotary_pos_emb
    config = transformers.models.qwen2_vl.Qwen2VLTextConfig
    return _mrope(rng, length, kind, config, sections, base, turn)


def mrope_qwen3_vl(rng, length, sections, base, interleaved):
    kind, turn = (
        modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding,
        modeling_qwen3_vl.apply_rotary_pos_emb,
    )
    config = transformers.models.qwen3_vl.Qwen3VLTextConfig
    return _mrope(rng, length, kind, config, sections, base, turn)


def mrope_ernie4_5_vl(rng, length, sections, base, time_last, layout):
    """Theirs are in the order row, column, time."""
    kind = modeling_ernie4_5_vl_moe.Ernie4_5_VLMoeTextRotaryEmbedding
    turn = modeling_ernie4_5_vl_moe.apply_rotary_pos_emb
    config = transformers.models.ernie4_5_vl_moe.Ernie4_5_VLMoeTextConfig
    return _mrope(rng, length, kind, config, sections[1:] + sections[:1], base, turn)


def mrope_glm4v(rng, length, sections, base, layout):
    kind, turn = modeling_glm4v.Glm4vTextRotaryEmbedding, modeling_glm4v.apply_rotary_pos_emb
    return _mrope(
        rng, length, kind, transformers.models.glm4v.Glm4vTextConfig, sections, base, turn
    )


def mrope_positions(rng, length, spans):
    """`get_rope_index` of a model of which it reads one number."""
    model = modeling_qwen2_vl.Qwen2VLModel
    vision = types.SimpleNamespace(spatial_merge_size=1)
    stub = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    stub.get_vision_position_ids = functools.partial(model.get_vision_position_ids, stub)
    kinds = [len(span) - 1 for span in spans]  # text 0, image 1, video 2
    tokens = torch.tensor([k for k, s in zip(kinds, spans, strict=True) for _ in range(prod(s))])
    grids = [torch.tensor([[1] * (3 - len(s)) + s for s in spans if len(s) == n]) for n in (2, 3)]
    found, _ = model.get_rope_index(stub, tokens[None], tokens[None].int(), *grids)
    return {}, {"positions": found[:, 0].T.to(torch.int32)}


def swin_bias(rng, length, heads, height, width):
    module = modeling_swin.SwinRelativePositionBias(heads, (height, width))
    fill(module, rng, 0)
    return {"table": module.relative_position_bias_table}, {"bias": module()[0]}


def swin_beit(rng, length, heads, side, to):
    config = transformers.BeitConfig(
        num_attention_heads=heads, hidden_size=heads, image_size=4 * side, patch_size=4
    )
    module = fill(modeling_beit.BeitRelativePositionBias(config), rng, 0)
    return {"table": module.relative_position_bias_table}, {"bias": module(tuple(to))[0]}


def cpb_swinv2(rng, length, heads, window, trained):
    """Queries of zero, so that the weights are those of the bias alone, without their cosines."""
    config = transformers.Swinv2Config()
    kind = modeling_swinv2.Swinv2SelfAttention
    module = kind(config, heads * HEAD_DIM, heads, window, trained)
    fill(module, rng, 0)
    module.query.weight.zero_()
    module.query.bias.zero_()
    first, _, second = module.continuous_position_bias_mlp
    second.weight.mul_(0.1)  # away from the sigmoid's flat ends
    x = normal(rng, BATCH, window[0] * window[1], heads * HEAD_DIM)
    _, probabilities = module(x, output_attentions=True)
    inputs = {"w1": first.weight.T, "b1": first.bias, "w2": second.weight.T}
    zero, k = torch.zeros_like(x), module.key(x)
    return inputs | {"q": by_head(zero, heads), "k": by_head(k, heads)}, {"weights": probabilities}


def _bias_alone(rng, bias: torch.Tensor) -> tuple[dict, dict]:
    """Queries of zero, so that the weights are those of the bias [H, T, T] alone."""
    heads, tokens, _ = bias.shape
    q, k = torch.zeros(BATCH, tokens, heads, HEAD_DIM), normal(rng, BATCH, tokens, heads, HEAD_DIM)
    return {"q": q, "k": k}, {"weights": bias.softmax(-1)[None]}


def cpb_timm(rng, length, heads, window, trained):
    modeling_timm = timm_layers("pos_embed_rel")
    module = modeling_timm.RelPosMlp(window, heads, 16, 0, "swin", trained)
    fill(module, rng, 0)
    first, second = module.mlp.fc1, module.mlp.fc2
    second.weight.mul_(0.1)  # away from the sigmoid's flat ends
    inputs, outputs = _bias_alone(rng, module.get_bias()[0])
    return inputs | {"w1": first.weight.T, "b1": first.bias, "w2": second.weight.T}, outputs


def cpb_x_transformers(rng, length, heads, window, trained):
    """Its coordinate of one axis is ours for a window of 9, times ln 8; it has no sigmoid.

    Its activation, SiLU, is a ReLU where what it is given is large: here a million times too large,
    which the second layer takes back.
    """
    modeling_x_transformers, units, large = x_transformers(), 16, 1e6
    module = modeling_x_transformers.DynamicPositionBias(
        units, heads=heads, depth=1, log_distance=True
    )
    inputs = {"w1": normal(rng, 2, units, scale=0.5), "b1": normal(rng, units, scale=0.5)}
    inputs["w2"] = normal(rng, units, heads, scale=0.05)
    (first, *_), second = module.mlp
    first.weight.copy_(large / math.log(8) * inputs["w1"][1:].T)
    first.bias.copy_(large * inputs["b1"])
    second.weight.copy_(inputs["w2"].T / large)
    second.bias.zero_()
    tokens = window[1]
    given, outputs = _bias_alone(rng, 16 * torch.sigmoid(module(tokens, tokens)))
    return inputs | given, outputs


def layoutlmv3_attention(rng, length, num_buckets, max_distance, spatial_buckets, spatial_distance):
    config = transformers.LayoutLMv3Config(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=1,
        rel_pos_bins=num_buckets,
        max_rel_pos=max_distance,
        rel_2d_pos_bins=spatial_buckets,
        max_rel_2d_pos=spatial_distance,
    )
    encoder = fill(modeling_layoutlmv3.LayoutLMv3Encoder(config), rng, 2 * HEAD_DIM)
    module = encoder.layer[0].attention.self
    x = normal(rng, BATCH, length, 2 * HEAD_DIM)
    boxes = torch.from_numpy(rng.integers(0, 1001, (BATCH, length, 4)))
    index = torch.arange(length)[None]
    biases = encoder._cal_1d_pos_emb(index), encoder._cal_2d_pos_emb(boxes)
    out, probabilities = module(x, None, *biases)
    parts = {"q": "query", "k": "key", "v": "value"}
    inputs = {n: by_head(getattr(module, p)(x), 2) for n, p in parts.items()}
    names = {"index": "rel_pos_bias", "x": "rel_pos_x_bias", "y": "rel_pos_y_bias"}
    inputs |= {n: getattr(encoder, p).weight for n, p in names.items()}
    inputs["positions"] = torch.stack([index[0], boxes[0, :, 0], boxes[0, :, 3]], dim=-1)
    return inputs, {"weights": probabilities, "output": by_head(out, 2)}
