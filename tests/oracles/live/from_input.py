"""What the input decides: gates, states, sinks, sums along the row."""

import importlib.machinery
import importlib.metadata
import importlib.util
import math
import sys
import types
from unittest import mock

import pytest
import torch
from torch import nn
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.inkling import configuration_inkling, modeling_inkling
from transformers.models.inkling2 import configuration_inkling2, modeling_inkling2
from transformers.models.wavlm import modeling_wavlm

from tests.oracles.live.common import (
    BATCH,
    HEAD_DIM,
    attended,
    by_head,
    fill,
    normal,
    random_qkv,
    scaled_products,
    set_identity,
    x_transformers,
)


def wall_fla(rng, length, heads, kv_heads, loud):
    """Its gates are given; ours are computed, so that x has the logits in its place."""
    with mock.patch.dict(sys.modules, _imports_of_wall()):
        modeling_fla = _fla("wall_attn")
    run = modeling_fla.naive_wall_attn
    q = normal(rng, BATCH, length, heads, HEAD_DIM)
    k, v = normal(rng, 2, BATCH, length, kv_heads, HEAD_DIM)
    x = normal(rng, BATCH, length, heads * HEAD_DIM, scale=loud)
    gates = nn.functional.logsigmoid(by_head(x, heads))
    output = run(q, k, v, gates, scale=HEAD_DIM**-0.5)
    return {"q": q, "k": k, "v": v, "x": x}, {"output": output}


def _fla(name: str) -> types.ModuleType:
    """One plain file of fla-core, `ops/<name>/naive.py`: the package itself imports triton.

    The test is skipped where fla-core is not installed.
    """
    try:
        path = importlib.metadata.distribution("fla-core").locate_file(f"fla/ops/{name}/naive.py")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fla-core is missing: install the extra `oracles`")
    spec = importlib.util.spec_from_file_location(f"naive_{name}", str(path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _imports_of_wall() -> dict[str, types.ModuleType]:
    """What its plain file imports: a constant, and a running sum, whose own needs a GPU."""

    def cumsum(x, cu_seqlens=None, scale=1.0):
        return scale * x.cumsum(1)

    constant, sums = (types.ModuleType(f"fla.ops.utils.{n}") for n in ("constant", "cumsum"))
    constant.RCP_LN2, sums.chunk_global_cumsum = 1 / math.log(2), cumsum
    parents = [types.ModuleType(name) for name in ("fla", "fla.ops", "fla.ops.utils")]
    return {module.__name__: module for module in (*parents, constant, sums)}


def fox_x_transformers(rng, length, heads, causal):
    """Its gates of the other direction are others: given the same, it is ours."""
    modeling_x_transformers, width = x_transformers(), heads * HEAD_DIM
    module = modeling_x_transformers.DataDependentAlibi(width, heads, causal=causal)
    inputs = random_qkv(rng, length, heads, heads) | {"x": normal(rng, BATCH, length, width)}
    inputs["weight"] = normal(rng, width, heads, scale=width**-0.5)
    inputs["bias"] = 2 + normal(rng, heads)  # its plain sums keep their digits if they stay small
    gates, directions = module.to_forget_gates[0], 1 if causal else 2
    gates.weight.copy_(inputs["weight"].T.repeat(directions, 1))
    gates.bias.copy_(inputs["bias"].repeat(directions))
    scores = scaled_products(inputs) + module(inputs["x"])
    return inputs, attended(scores, inputs["v"], causal)


def wavlm_attention(rng, length, heads, num_buckets, max_distance):
    width = heads * HEAD_DIM
    module = modeling_wavlm.WavLMAttention(width, heads, 0.0, num_buckets, max_distance)
    fill(module, rng, width)
    set_identity(module.out_proj)
    x = normal(rng, BATCH, length, width)
    out, _, bias = module(x)
    inputs = {name: by_head(getattr(module, f"{name}_proj")(x), heads) for name in "qkv"}
    inputs |= {"x": x, "table": module.rel_attn_embed.weight}
    inputs |= {"weight": module.gru_rel_pos_linear.weight, "bias": module.gru_rel_pos_linear.bias}
    inputs["scale"] = module.gru_rel_pos_const.flatten()
    return inputs, {"bias": bias[:heads], "output": by_head(out, heads)}


def _inkling(kind, heads, kv_heads, extent, states, floor):
    """A config of one full layer of either version."""
    return kind(
        hidden_size=heads * HEAD_DIM,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=HEAD_DIM,
        d_rel=states,
        rel_extent=extent,
        log_scaling_n_floor=floor,
        layer_types=["hybrid"],
        attn_implementation="eager",
    )


def _ahead(length):
    """The causal mask as added to scores."""
    return torch.full((1, 1, length, length), -torch.inf).triu(1)


def inkling_attention(rng, length, heads, kv_heads, extent, states, floor):
    """With its short convolutions of keys and values, which are the model's."""
    kind = configuration_inkling.InklingTextConfig
    config = _inkling(kind, heads, kv_heads, extent, states, floor)
    module = fill(modeling_inkling.InklingAttention(config, layer_idx=0), rng, heads * HEAD_DIM)
    set_identity(module.o_proj)
    x = normal(rng, BATCH, length, heads * HEAD_DIM)
    out, weights = module(x, _ahead(length))
    v = module.v_sconv(module.v_proj(x))
    inputs = {
        "q": module.q_norm(by_head(module.q_proj(x), heads)),
        "k": module.k_norm(by_head(module.k_sconv(module.k_proj(x)), kv_heads)),
        "v": by_head(v, kv_heads),
        "x": x,
        "weight": module.r_proj.weight,
        "profiles": module.rel_logits_proj.proj,
    }
    return inputs, {"weights": weights, "output": by_head(out, heads)}


def inkling_2(rng, length, heads, kv_heads, extent, states, floor, clip_states, clip_qk):
    """Scales of q and r are put into their projections; the gate of the output is one half."""
    kind = configuration_inkling2.Inkling2TextConfig
    config = _inkling(kind, heads, kv_heads, extent, states, floor)
    config.rel_l2_clip_threshold, config.qk_l2_clip_threshold = clip_states, clip_qk
    module = modeling_inkling2.Inkling2FullAttention(config, layer_idx=0)
    fill(module, rng, heads * HEAD_DIM)
    set_identity(module.o_proj)
    module.gate_proj.weight.zero_()
    x = normal(rng, BATCH, length, heads * HEAD_DIM)
    places = torch.arange(length)[None]
    out, weights = module(x, x, x, _ahead(length), position_ids=places)
    v = by_head(module.v_sconv(module.v_proj(x), x), kv_heads)
    inputs = {
        "q": by_head(module.q_proj(x), heads) * module.q_l2_clip.scale,
        "k": by_head(module.k_sconv(module.k_proj(x), x), kv_heads),
        "v": module.v_norm(v),
        "x": x,
        "weight": module.rel_l2_clip.scale.flatten()[:, None] * module.r_proj.weight,
        "profiles": module.rel_logits_proj.proj,
        "sink": module.sink_proj.weight,
    }
    return inputs, {"weights": weights, "output": 2 * by_head(out, heads)}


def sink_gpt_oss(rng, length, heads, kv_heads):
    q = normal(rng, BATCH, heads, length, HEAD_DIM)
    k, v = (normal(rng, BATCH, kv_heads, length, HEAD_DIM) for _ in range(2))
    module = types.SimpleNamespace(
        sinks=normal(rng, heads), num_key_value_groups=heads // kv_heads, training=False
    )
    mask, scale = _ahead(length), HEAD_DIM**-0.5
    out, weights = modeling_gpt_oss.eager_attention_forward(module, q, k, v, mask, scale)
    inputs = {name: x.transpose(1, 2) for name, x in zip("qkv", (q, k, v), strict=True)}
    return inputs | {"sinks": module.sinks}, {"weights": weights, "output": out}


def fox_fla(rng, length, heads, kv_heads):
    """Gates near 1: its running sum is one float32 number, and rounds what is large."""
    modeling_fla, inputs = _fla("forgetting_attn"), random_qkv(rng, length, heads, kv_heads)
    width, run = heads * HEAD_DIM, modeling_fla.naive_forgetting_attn
    gates = {"x": normal(rng, BATCH, length, width), "bias": 4 + normal(rng, heads)}
    gates["weight"] = normal(rng, width, heads, scale=width**-0.5)
    logs = nn.functional.logsigmoid(gates["x"] @ gates["weight"] + gates["bias"])
    return inputs | gates, {"output": run(*inputs.values(), logs)}


def path_fla(rng, length, heads):
    modeling_fla, inputs = _fla("path_attn"), random_qkv(rng, length, heads, heads)
    width, run = heads * HEAD_DIM, modeling_fla.naive_path_attn
    more = {"x": normal(rng, BATCH, length, width), "bias": normal(rng, heads)}
    more["weight"] = normal(rng, width, heads, scale=width**-0.5)
    more["directions"] = normal(rng, width, heads, HEAD_DIM)
    w = torch.einsum("btd,dhe->bthe", more["x"], more["directions"])
    w = w * (w.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    strength = 2 * torch.sigmoid(more["x"] @ more["weight"] + more["bias"])
    gates = torch.zeros(BATCH, length, heads)
    out = run(*inputs.values(), w, strength, gates, HEAD_DIM**-0.5)
    return inputs | more, {"output": out}


def stick_breaking_fla(rng, length, heads, kv_heads, attend_current):
    modeling_fla, inputs = _fla("stickbreaking_attn"), random_qkv(rng, length, heads, kv_heads)
    run = modeling_fla.naive_stickbreaking_attn
    out, left = run(*inputs.values(), attend_current=attend_current)
    return inputs, {"output": out, "left": left}


def cope_x_transformers(rng, length, heads, positions):
    """It is given scores that are masked already, and queries that are scaled."""
    modeling_x_transformers = x_transformers()
    inputs = random_qkv(rng, length, heads, heads)
    module = modeling_x_transformers.CoPE(HEAD_DIM, heads, positions)
    module.pos_emb.copy_(normal(rng, positions, HEAD_DIM))
    q, k, v = (x.transpose(1, 2) for x in inputs.values())
    q = q * HEAD_DIM**-0.5
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (q @ k.mT).masked_fill(ahead, -torch.finfo(torch.float32).max)
    probabilities = (scores + module(q, scores)).softmax(-1)
    outputs = {"weights": probabilities, "output": (probabilities @ v).transpose(1, 2)}
    return inputs | {"vectors": module.pos_emb}, outputs
