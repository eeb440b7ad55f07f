"""The oracles themselves: other people's code on random weights and inputs.

Each function builds the oracle, fills its weights with random numbers, runs it, and returns
(inputs, outputs) for `replay.compare`. Needs the extra `oracles`; a case of a library besides torch
and transformers is skipped where that is missing. Output projections are set to the identity, so
that what comes out is the attention itself.
B batch, T queries, S keys, H heads, E head width, D = H·E.
"""

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import math
import pathlib
import sys
import types
from math import prod
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.beit import modeling_beit
from transformers.models.bloom import modeling_bloom
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.deepseek_v4 import modeling_deepseek_v4
from transformers.models.dinov3_vit import modeling_dinov3_vit
from transformers.models.fsmt import modeling_fsmt
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.gptj import modeling_gptj
from transformers.models.hunyuan_v1_dense import modeling_hunyuan_v1_dense
from transformers.models.inkling import configuration_inkling, modeling_inkling
from transformers.models.inkling2 import configuration_inkling2, modeling_inkling2
from transformers.models.layoutlmv3 import modeling_layoutlmv3
from transformers.models.llama import modeling_llama
from transformers.models.llama4 import modeling_llama4
from transformers.models.marian import modeling_marian
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl
from transformers.models.ministral3 import modeling_ministral3
from transformers.models.mistral_large4 import modeling_mistral_large4
from transformers.models.mpt import modeling_mpt
from transformers.models.pixtral import modeling_pixtral
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.roformer import modeling_roformer
from transformers.models.smollm3 import modeling_smollm3
from transformers.models.swin import modeling_swin
from transformers.models.swinv2 import modeling_swinv2
from transformers.models.t5 import modeling_t5
from transformers.models.vit_mae import modeling_vit_mae
from transformers.models.vits import modeling_vits
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert
from transformers.models.wavlm import modeling_wavlm
from transformers.models.xlnet import modeling_xlnet

from tests.oracles.cases import PACKAGES
from tests.oracles.replay import Record

BATCH, HEAD_DIM = 1, 8


def run(case: str, settings: dict, length: int = 12, seed: int = 0) -> Record:
    """Runs one oracle."""
    rng = np.random.default_rng(seed)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    with torch.no_grad():
        inputs, outputs = ORACLES[case](rng, length, **settings)
    for ending, package in PACKAGES.items():
        if case.endswith(ending):
            versions[package] = importlib.metadata.version(package)
    pure = ({name: x.detach().numpy() for name, x in group.items()} for group in (inputs, outputs))
    return Record(case, settings, *pure, versions)


def _normal(rng, *shape, scale=1.0):
    return torch.from_numpy(scale * rng.standard_normal(shape, np.float32))


def _fill(module: nn.Module, rng, width: int) -> nn.Module:
    """Random weights that keep the variance; evaluation mode, so that dropout does nothing."""
    for parameter in module.parameters():
        projection = parameter.ndim > 1 and width in parameter.shape
        parameter.copy_(_normal(rng, *parameter.shape, scale=width**-0.5 if projection else 0.5))
    return module.eval()


def _identity(linear: nn.Linear) -> None:
    linear.weight.copy_(torch.eye(*linear.weight.shape))
    if linear.bias is not None:
        linear.bias.zero_()


def _split(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(-1, (heads, -1))


def _places(rng, length: int) -> torch.Tensor:
    """Positions in any order, 0 and 255 among them."""
    return torch.from_numpy(np.append(rng.integers(0, 256, length - 2), [0, 255]))


def nope_sdpa(rng, length, heads, kv_heads, causal):
    q = _normal(rng, BATCH, length, heads, HEAD_DIM)
    k, v = _normal(rng, 2, BATCH, length, kv_heads, HEAD_DIM)
    first = (x.transpose(1, 2) for x in (q, k, v))
    out = nn.functional.scaled_dot_product_attention(*first, is_causal=causal, enable_gqa=True)
    return {"q": q, "k": k, "v": v}, {"output": out.transpose(1, 2)}


def sinusoidal_marian(rng, length, dim, layout):
    places = _places(rng, length)
    module = modeling_marian.MarianSinusoidalPositionalEmbedding(256, dim)
    module.weight.copy_(module.create_weight())
    return {"positions": places}, {"table": module((1, length), position_ids=places)}


def sinusoidal_fsmt(rng, length, dim, layout):
    places = _places(rng, length)
    table = modeling_fsmt.SinusoidalPositionalEmbedding.get_embedding(256, dim, None)
    return {"positions": places}, {"table": table[places]}


def learned_torch(rng, length, rows):
    table, places = _normal(rng, rows, HEAD_DIM), torch.from_numpy(rng.integers(0, rows, length))
    return {"table": table, "positions": places}, {"rows": table[places]}


def shaw_wav2vec2_bert(rng, length, heads, left, right):
    config = transformers.Wav2Vec2BertConfig(
        hidden_size=heads * HEAD_DIM,
        num_attention_heads=heads,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=left,
        right_max_position_embeddings=right,
        attn_implementation="eager",
    )
    module = _fill(modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention(config), rng, heads * HEAD_DIM)
    _identity(module.linear_out)
    x = _normal(rng, BATCH, length, heads * HEAD_DIM)
    out, probabilities = module(x)
    inputs = {name: _split(getattr(module, f"linear_{name}")(x), heads) for name in "qkv"}
    inputs["keys"] = module.distance_embedding.weight
    return inputs, {"weights": probabilities, "output": _split(out, heads)}


def shaw_vits(rng, length, heads, window):
    config = transformers.VitsConfig(
        hidden_size=heads * HEAD_DIM, num_attention_heads=heads, window_size=window
    )
    module = _fill(modeling_vits.VitsAttention(config), rng, heads * HEAD_DIM)
    _identity(module.out_proj)
    x = _normal(rng, BATCH, length, heads * HEAD_DIM)
    out, probabilities = module(x, output_attentions=True)
    inputs = {name: _split(getattr(module, f"{name}_proj")(x), heads) for name in "qkv"}
    inputs |= {"keys": module.emb_rel_k, "values": module.emb_rel_v}
    return inputs, {"weights": probabilities, "output": _split(out, heads)}


def transformer_xl_xlnet(rng, length, heads, memory, causal):
    """The queries are the last `length` of `memory + length` tokens."""
    config = transformers.XLNetConfig(
        vocab_size=8, d_model=heads * HEAD_DIM, n_layer=1, n_head=heads, d_inner=1, attn_type="bi"
    )
    model = transformers.XLNetModel(config)
    module = _fill(modeling_xlnet.XLNetRelativeAttention(config), rng, heads * HEAD_DIM)
    total = memory + length
    x = _normal(rng, total, BATCH, heads * HEAD_DIM)
    q, k, v = (torch.einsum("tbd,dhe->tbhe", x, w) for w in (module.q, module.k, module.v))
    q = q[memory:]
    r = model.relative_positional_encoding(length, total, bsz=BATCH)
    r = torch.einsum("tbd,dhe->tbhe", r, module.r)
    ahead = torch.arange(total) > torch.arange(memory, total)[:, None]
    mask = (ahead & causal).float()[..., None, None]
    out, probabilities = module.rel_attn_core(q, k, v, r, attn_mask=mask, output_attentions=True)
    inputs = {name: y.transpose(0, 1) for name, y in {"q": q, "k": k, "v": v}.items()}
    inputs |= {"u": module.r_w_bias, "v_bias": module.r_r_bias, "w_r": module.r}
    weights = probabilities.permute(2, 3, 0, 1)
    return inputs, {"weights": weights, "output": out.transpose(0, 1)}


def t5_bucket(rng, length, num_buckets, max_distance, bidirectional):
    distance = torch.arange(-600, 601, dtype=torch.int16)
    buckets = modeling_t5.T5Attention._relative_position_bucket(
        -distance, bidirectional, num_buckets, max_distance
    )
    return {"distance": distance}, {"buckets": buckets.to(torch.int16)}


def t5_attention(rng, length, heads, num_buckets, max_distance, bidirectional):
    config = transformers.T5Config(
        d_model=heads * HEAD_DIM,
        d_kv=HEAD_DIM,
        num_heads=heads,
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max_distance,
        is_decoder=not bidirectional,
        attn_implementation="eager",
    )
    module = modeling_t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    _fill(module, rng, heads * HEAD_DIM)
    _identity(module.o)
    x = _normal(rng, BATCH, length, heads * HEAD_DIM)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(1, 1, length, length)
    if not bidirectional:
        mask.masked_fill_(ahead, torch.finfo(torch.float32).min)
    out, bias, probabilities = module(x, mask)
    inputs = {name: _split(getattr(module, name)(x), heads) for name in "qkv"}
    inputs["table"] = module.relative_attention_bias.weight
    return inputs, {"bias": bias[0], "weights": probabilities, "output": _split(out, heads)}


def deberta_bucket(rng, length, buckets, max_distance):
    """The row of the table, as `disentangled_attention_bias` clamps it."""
    distance = torch.arange(-600, 601, dtype=torch.int16)
    far = modeling_deberta_v2.make_log_bucket_position(distance.long(), buckets, max_distance)
    rows = torch.clamp(far.long() + buckets, 0, 2 * buckets - 1)
    return {"distance": distance}, {"rows": rows.to(torch.int16)}


def deberta_attention(rng, length, heads, buckets, max_distance, shared, causal):
    """With `shared`, positions go through the content's own projections (share_att_key)."""
    config = transformers.DebertaV2Config(
        hidden_size=heads * HEAD_DIM,
        num_attention_heads=heads,
        relative_attention=True,
        position_buckets=-1 if buckets is None else buckets,
        max_relative_positions=max_distance,
        pos_att_type=["c2p", "p2c"],
        share_att_key=shared,
    )
    module = _fill(modeling_deberta_v2.DisentangledSelfAttention(config), rng, heads * HEAD_DIM)
    names = ("key_proj", "query_proj") if shared else ("pos_key_proj", "pos_query_proj")
    w_k, w_q = (getattr(module, name) for name in names)
    w_k.bias.zero_()
    w_q.bias.zero_()
    table = _normal(rng, 2 * (buckets or max_distance), heads * HEAD_DIM)
    x = _normal(rng, BATCH, length, heads * HEAD_DIM)
    seen = torch.ones(1, 1, length, length, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    out, probabilities = module(x, seen, output_attentions=True, rel_embeddings=table)
    parts = {"q": "query", "k": "key", "v": "value"}
    inputs = {n: _split(getattr(module, f"{p}_proj")(x), heads) for n, p in parts.items()}
    inputs |= {"table": table, "w_k": w_k.weight, "w_q": w_q.weight}
    return inputs, {"weights": probabilities, "output": _split(out, heads)}


def _rotary(rng, length, dim=HEAD_DIM):
    """Queries, keys (entries within ±1, so that errors are absolute) and positions."""
    q, k = (torch.from_numpy(rng.uniform(-1, 1, (BATCH, length, 2, dim)).astype("f")) for _ in "qk")
    return {"q": q, "k": k, "positions": _places(rng, length)}


def rope_llama(rng, length, base, layout):
    inputs = _rotary(rng, length)
    config = transformers.LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    table = modeling_llama.LlamaRotaryEmbedding(config)(inputs["q"], inputs["positions"][None])
    q, k = modeling_llama.apply_rotary_pos_emb(inputs["q"], inputs["k"], *table, unsqueeze_dim=2)
    return inputs, {"q": q, "k": k}


def rope_gpt_neox_partial(rng, length, base, fraction, layout):
    inputs = _rotary(rng, length, 2 * HEAD_DIM)
    config = transformers.GPTNeoXConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=2,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": base,
            "partial_rotary_factor": fraction,
        },
    )
    table = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)(inputs["q"], inputs["positions"][None])
    q, k = modeling_gpt_neox.apply_rotary_pos_emb(inputs["q"], inputs["k"], *table, unsqueeze_dim=2)
    return inputs, {"q": q, "k": k}


def rope_gptj(rng, length, layout):
    inputs = _rotary(rng, length)
    table = modeling_gptj.create_sinusoidal_positions(256, HEAD_DIM)[inputs["positions"]][None]
    sin, cos = table.chunk(2, dim=-1)
    turn = modeling_gptj.apply_rotary_pos_emb
    return inputs, {name: turn(inputs[name], sin, cos) for name in ("q", "k")}


def rope_roformer(rng, length, layout):
    inputs = _rotary(rng, length)
    module = modeling_roformer.RoFormerSinusoidalPositionalEmbedding(256, HEAD_DIM)
    module.weight.copy_(module.create_weight())
    table = module((1, length), position_ids=inputs["positions"])[None, None]
    first = (inputs[name].transpose(1, 2) for name in ("q", "k"))
    turn = modeling_roformer.RoFormerSelfAttention.apply_rotary_position_embeddings
    q, k = turn(table, *first)
    return inputs, {"q": q.transpose(1, 2), "k": k.transpose(1, 2)}


def rope_mla_deepseek_v3(rng, length, content, interleave):
    """Latent attention: what reaches its softmax comes from parts of its own projections."""
    config = transformers.DeepseekV3Config(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        num_key_value_heads=2,
        q_lora_rank=None,
        kv_lora_rank=5,
        qk_nope_head_dim=content,
        qk_rope_head_dim=6,
        v_head_dim=HEAD_DIM,
        rope_interleave=interleave,
        attn_implementation="eager",
    )
    module = _fill(modeling_deepseek_v3.DeepseekV3Attention(config, 0), rng, 2 * HEAD_DIM)
    _identity(module.o_proj)
    x, places = _normal(rng, BATCH, length, 2 * HEAD_DIM), _places(rng, length)[None]
    table = modeling_deepseek_v3.DeepseekV3RotaryEmbedding(config)(x, places)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(1, 1, length, length).masked_fill(ahead, torch.finfo(torch.float32).min)
    out, probabilities = module(x, table, mask)
    q = _split(module.q_proj(x), 2)
    latent, k_rotary = module.kv_a_proj_with_mqa(x).split([5, 6], -1)
    k_content, v = _split(module.kv_b_proj(module.kv_a_layernorm(latent)), 2).split(
        [content, HEAD_DIM], -1
    )
    inputs = {"q_content": q[..., :content], "q_rotary": q[..., content:], "positions": places[0]}
    inputs |= {"k_content": k_content, "k_rotary": k_rotary, "v": v}
    return inputs, {"weights": probabilities, "output": _split(out, 2)}


def rotated_values_deepseek_v4(rng, length, window):
    """A layer without compressed keys: one key head, which is the value too, window and sinks."""
    config = transformers.DeepseekV4Config(
        hidden_size=2 * HEAD_DIM,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=HEAD_DIM,
        q_lora_rank=5,
        layer_types=["sliding_attention"],
        mlp_layer_types=["moe"],
        sliding_window=window,
        partial_rotary_factor=0.5,
        o_groups=1,
        o_lora_rank=2 * HEAD_DIM,
        attn_implementation="eager",
    )
    module = _fill(modeling_deepseek_v4.DeepseekV4Attention(config, 0), rng, 2 * HEAD_DIM)
    _identity(module.o_a_proj)
    _identity(module.o_b_proj)
    x, places = _normal(rng, BATCH, length, 2 * HEAD_DIM), torch.arange(length)[None]
    rotary = modeling_deepseek_v4.DeepseekV4RotaryEmbedding(config)
    tables = {"main": rotary(x, places, layer_type="main")}
    away = places[0][:, None] - places[0]
    hidden = (away < 0) | (away >= window)
    mask = torch.zeros(1, 1, length, length).masked_fill(hidden, torch.finfo(torch.float32).min)
    out, probabilities = module(x, tables, places, mask)
    q = module.q_b_norm(_split(module.q_b_proj(module.q_a_norm(module.q_a_proj(x))), 2))
    k = module.kv_norm(module.kv_proj(x))[:, :, None]
    inputs = {"q": q, "k": k, "sinks": module.sinks}
    return inputs, {"weights": probabilities, "output": _split(out, 2)}


def lerope_mistral_large4(rng, length, parameters):
    """What its rotation gives, even channels before odd ones, and its positions below 32."""
    inputs = _rotary(rng, length)
    inputs["positions"] = inputs["positions"] % 32
    config = transformers.models.mistral_large4.MistralLarge4TextConfig(
        qk_rope_head_dim=HEAD_DIM, num_hidden_layers=1, rope_parameters=dict(parameters)
    )
    module = modeling_mistral_large4.MistralLarge4TextRotaryEmbedding(config)
    module.alpha.copy_(_normal(rng, HEAD_DIM // 2, scale=0.3))
    inputs["alpha"] = module.alpha
    table = module(inputs["q"], inputs["positions"][None])
    turn = modeling_mistral_large4.apply_rotary_pos_emb_interleave
    q, k = turn(inputs["q"], inputs["k"], *table, unsqueeze_dim=2)
    return inputs, {"q": q, "k": k}


def log_length_mistral_large4(rng, length, heads):
    module = modeling_mistral_large4.MistralLarge4TextSoftmaxScaling(heads)
    module.scale.copy_(_normal(rng, heads))
    module.bias.copy_(_normal(rng, heads))
    q = torch.from_numpy(rng.uniform(-1, 1, (BATCH, length, heads, HEAD_DIM)).astype("f"))
    places = _places(rng, length)
    inputs = {"q": q, "positions": places, "scale": module.scale, "bias": module.bias}
    return inputs, {"q": module(q, places[None], head_dim_first=False)}


def _scores(q, k):
    """Products of rotated queries and keys [B, H, T, E]."""
    return {"scores": torch.einsum("bhte,bhse->bhts", q, k)}


def pope_x_transformers(rng, length, base):
    modeling_x_transformers = _x_transformers()
    inputs, heads = _rotary(rng, length), 2
    inputs["positions"] = inputs["positions"] % 32
    module = modeling_x_transformers.PolarEmbedding(HEAD_DIM, heads, base=base)
    module.learned_bias.copy_(_normal(rng, heads, 1, HEAD_DIM, scale=4.0))
    angles, phase = module(inputs["positions"])
    q, k = (inputs[name].transpose(1, 2) for name in "qk")
    turn = modeling_x_transformers.apply_polar_pos_emb
    inputs["phase"] = module.learned_bias[:, 0]
    return inputs, _scores(turn(q, angles), turn(k, angles + phase))


def pope_pytorch(rng, length, base):
    modeling_pope_pytorch = pytest.importorskip("PoPE_pytorch.pope", exc_type=ImportError)
    inputs, heads = _rotary(rng, length), 2
    inputs["positions"] = inputs["positions"] % 32
    module = modeling_pope_pytorch.PoPE(HEAD_DIM, heads=heads, theta=base)
    module.bias.copy_(_normal(rng, heads, HEAD_DIM, scale=4.0))
    q, k = (inputs[name].transpose(1, 2) for name in "qk")
    inputs["phase"] = module.bias
    return inputs, _scores(*module.apply_pope_to_qk(module(inputs["positions"]), q, k))


def wall_fla(rng, length, heads, kv_heads, loud):
    """Its gates are given; ours are computed, so that x has the logits in its place."""
    with mock.patch.dict(sys.modules, _imports_of_wall()):
        modeling_fla = _fla("wall_attn")
    run = modeling_fla.naive_wall_attn
    q = _normal(rng, BATCH, length, heads, HEAD_DIM)
    k, v = _normal(rng, 2, BATCH, length, kv_heads, HEAD_DIM)
    x = _normal(rng, BATCH, length, heads * HEAD_DIM, scale=loud)
    gates = nn.functional.logsigmoid(_split(x, heads))
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


def _x_transformers():
    """x-transformers' one file of models; the test is skipped where it is missing."""
    return pytest.importorskip("x_transformers.x_transformers", exc_type=ImportError)


def _qkv(rng, length, heads, kv_heads) -> dict[str, torch.Tensor]:
    shapes = {"q": heads, "k": kv_heads, "v": kv_heads}
    return {n: _normal(rng, BATCH, length, count, HEAD_DIM) for n, count in shapes.items()}


def _attended(scores: torch.Tensor, v: torch.Tensor, causal: bool) -> dict[str, torch.Tensor]:
    """Weights and output for scores [B, H, T, T] and values [B, T, H, E]."""
    if causal:
        scores = scores + _causal(scores.shape[-1])
    probabilities = scores.softmax(-1)
    output = torch.einsum("bhts,bshe->bthe", probabilities, v)
    return {"weights": probabilities, "output": output}


def _products(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.einsum("bthe,bshe->bhts", inputs["q"], inputs["k"]) / HEAD_DIM**0.5


def fox_x_transformers(rng, length, heads, causal):
    """Its gates of the other direction are others: given the same, it is ours."""
    modeling_x_transformers, width = _x_transformers(), heads * HEAD_DIM
    module = modeling_x_transformers.DataDependentAlibi(width, heads, causal=causal)
    inputs = _qkv(rng, length, heads, heads) | {"x": _normal(rng, BATCH, length, width)}
    inputs["weight"] = _normal(rng, width, heads, scale=width**-0.5)
    inputs["bias"] = 2 + _normal(rng, heads)  # its plain sums keep their digits if they stay small
    gates, directions = module.to_forget_gates[0], 1 if causal else 2
    gates.weight.copy_(inputs["weight"].T.repeat(directions, 1))
    gates.bias.copy_(inputs["bias"].repeat(directions))
    scores = _products(inputs) + module(inputs["x"])
    return inputs, _attended(scores, inputs["v"], causal)


def xpos_x_transformers(rng, length, base, scale_base):
    """Its decay has its origin amid the sequence: the products are the same."""
    modeling_x_transformers, inputs = _x_transformers(), _qkv(rng, length, 2, 2)
    kind, turn = (
        modeling_x_transformers.RotaryEmbedding,
        modeling_x_transformers.apply_rotary_pos_emb,
    )
    module = kind(HEAD_DIM, use_xpos=True, scale_base=scale_base, base=base)
    angles, scale = module.forward_from_seq_len(length)
    q, k = (inputs[name].transpose(1, 2) for name in "qk")
    scores = turn(q, angles, scale) @ turn(k, angles, scale**-1).mT / HEAD_DIM**0.5
    return inputs, _attended(scores, inputs["v"], True)


def sandwich_attn_gym(rng, length, heads, width, causal):
    modeling_attn_gym = pytest.importorskip("attn_gym.mods", exc_type=ImportError)
    modify = modeling_attn_gym.generate_sandwich_bias(heads, length, width)
    inputs, place = _qkv(rng, length, heads, heads), torch.arange(length)
    head, query = torch.arange(heads)[:, None, None], place[:, None]
    scores = modify(_products(inputs), torch.zeros(1, dtype=torch.int64), head, query, place)
    return inputs, _attended(scores, inputs["v"], causal)


def _log(theta: torch.Tensor) -> torch.Tensor:
    """Frequencies as logarithms: their errors are then relative. 0 becomes -69."""
    return torch.log(theta.double() + 1e-30)


def rope_scaled(rng, length, head_dim, longest, target, parameters):
    """Frequencies for sequences of `target` tokens, and what cos and sin make of q and k."""
    config = transformers.GPTNeoXConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=longest,
        rope_parameters={"partial_rotary_factor": 1.0, **parameters},
    )
    theta, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=target)
    inputs = _rotary(rng, length, head_dim)
    inputs["positions"] = inputs["positions"] % 32  # float32 frequencies err by 10⁻⁷ of an angle
    module = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)
    module.inv_freq, module.attention_scaling = nn.Buffer(theta), factor
    forward = inspect.unwrap(type(module).forward)  # without its own choice of frequencies
    table = forward(module, inputs["q"], inputs["positions"][None])
    q, k = modeling_gpt_neox.apply_rotary_pos_emb(inputs["q"], inputs["k"], *table, unsqueeze_dim=2)
    outputs = {"log_theta": _log(theta), "attention_factor": torch.tensor(factor)}
    return inputs, outputs | {"q": q, "k": k}


def rope_hunyuan(rng, length, head_dim, alpha):
    """NTK-aware, under the name "dynamic" with an alpha; YaRN's keys are there and not read."""
    config = transformers.HunYuanDenseV1Config(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        rope_parameters={
            "rope_type": "dynamic",
            "rope_theta": 1e4,
            "factor": 1.0,
            "alpha": alpha,
            "beta_fast": 32,
            "mscale": 1.0,
        },
    )
    module = modeling_hunyuan_v1_dense.HunYuanDenseV1RotaryEmbedding(config)
    return {}, {"log_theta": _log(module.inv_freq)}


def rope_gemma3(rng, length, factor):
    """Two bases: of sliding and of full attention (which the larger models scale linearly)."""
    inputs = _rotary(rng, length)
    scaling = {"rope_type": "linear", "factor": factor} if factor else {"rope_type": "default"}
    config = transformers.Gemma3TextConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        head_dim=HEAD_DIM,
        num_hidden_layers=6,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {**scaling, "rope_theta": 1e6},
        },
    )
    module = modeling_gemma3.Gemma3RotaryEmbedding(config)
    inputs["positions"] = inputs["positions"] % 32
    outputs = {}
    for layer, kind in enumerate(config.layer_types):
        table = module(inputs["q"], inputs["positions"][None], kind)
        turn = modeling_gemma3.apply_rotary_pos_emb
        q, k = turn(inputs["q"], inputs["k"], *table, unsqueeze_dim=2)
        outputs |= {f"q{layer}": q, f"k{layer}": k}
    return inputs, outputs


def _causal(length: int) -> torch.Tensor:
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    return torch.zeros(1, 1, length, length).masked_fill(ahead, torch.finfo(torch.float32).min)


def _decoder_layer(rng, length, module, rotary, **more):
    """One layer's attention, on its q, k, v before the encoding."""
    _fill(module, rng, 2 * HEAD_DIM)
    _identity(module.o_proj)
    x = _normal(rng, BATCH, length, 2 * HEAD_DIM)
    table = rotary(x, torch.arange(length)[None])
    out, probabilities = module(x, table, _causal(length), **more)
    inputs = {name: _split(getattr(module, f"{name}_proj")(x), 2) for name in "qkv"}
    return inputs, {"weights": probabilities, "output": _split(out, 2)}


DECODER = {
    "hidden_size": 2 * HEAD_DIM,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "attn_implementation": "eager",
}


def nope_smollm3(rng, length, layer):
    config = transformers.SmolLM3Config(**DECODER)
    module = modeling_smollm3.SmolLM3Attention(config, layer)
    return _decoder_layer(rng, length, module, modeling_smollm3.SmolLM3RotaryEmbedding(config))


def temperature_llama4(rng, length, layer, attn_scale, floor_scale):
    tuning = {"attn_temperature_tuning": True, "attn_scale": attn_scale, "floor_scale": floor_scale}
    config = transformers.Llama4TextConfig(**DECODER, **tuning, use_qk_norm=False)
    module = modeling_llama4.Llama4TextAttention(config, layer)
    return _decoder_layer(rng, length, module, modeling_llama4.Llama4TextRotaryEmbedding(config))


def temperature_ministral3(rng, length, beta, original):
    """It reads the length of its temperature from the settings of RoPE."""
    more = {"llama_4_scaling_beta": beta, "original_max_position_embeddings": original}
    parameters = {**DECODER["rope_parameters"], **more}
    config = transformers.Ministral3Config(**{**DECODER, "rope_parameters": parameters})
    module = modeling_ministral3.Ministral3Attention(config, 0)
    rotary = modeling_ministral3.Ministral3RotaryEmbedding(config)
    places = torch.arange(length)[None]
    return _decoder_layer(rng, length, module, rotary, position_ids=places)


def alibi_bloom(rng, length, heads):
    """Their bias is m·key: under a causal mask the same as -m·distance."""
    config = transformers.BloomConfig(hidden_size=heads * HEAD_DIM, n_head=heads)
    module = _fill(modeling_bloom.BloomAttention(config, layer_idx=0), rng, heads * HEAD_DIM)
    _identity(module.dense)
    x = _normal(rng, BATCH, length, heads * HEAD_DIM)
    ones = torch.ones(BATCH, length, dtype=torch.int64)
    alibi = modeling_bloom.build_alibi_tensor(ones, heads, torch.float32)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(1, 1, length, length)
    mask.masked_fill_(ahead, torch.finfo(torch.float32).min)
    out, probabilities = module(x, torch.zeros_like(x), alibi, mask, output_attentions=True)
    qkv = (y.transpose(1, 2) for y in module._reshape(module.query_key_value(x)))
    inputs = dict(zip("qkv", qkv, strict=True))
    return inputs, {"weights": probabilities, "output": _split(out, heads)}


def alibi_mpt(rng, length, heads):
    """Their bias is m·(key - last): the same up to a constant a row."""
    config = transformers.MptConfig(d_model=heads * HEAD_DIM, n_heads=heads)
    module = _fill(modeling_mpt.MptAttention(config, layer_idx=0), rng, heads * HEAD_DIM)
    _identity(module.out_proj)
    x = _normal(rng, BATCH, length, heads * HEAD_DIM)
    alibi = modeling_mpt.build_mpt_alibi_tensor(heads, length)
    ahead = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
    out, probabilities = module(x, alibi, attention_mask=ahead)
    qkv = (_split(y, heads) for y in module.Wqkv(x).chunk(3, dim=-1))
    inputs = dict(zip("qkv", qkv, strict=True))
    return inputs, {"weights": probabilities, "output": _split(out, heads)}


def wavlm_attention(rng, length, heads, num_buckets, max_distance):
    width = heads * HEAD_DIM
    module = modeling_wavlm.WavLMAttention(width, heads, 0.0, num_buckets, max_distance)
    _fill(module, rng, width)
    _identity(module.out_proj)
    x = _normal(rng, BATCH, length, width)
    out, _, bias = module(x)
    inputs = {name: _split(getattr(module, f"{name}_proj")(x), heads) for name in "qkv"}
    inputs |= {"x": x, "table": module.rel_attn_embed.weight}
    inputs |= {"weight": module.gru_rel_pos_linear.weight, "bias": module.gru_rel_pos_linear.bias}
    inputs["scale"] = module.gru_rel_pos_const.flatten()
    return inputs, {"bias": bias[:heads], "output": _split(out, heads)}


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
    module = _fill(modeling_inkling.InklingAttention(config, layer_idx=0), rng, heads * HEAD_DIM)
    _identity(module.o_proj)
    x = _normal(rng, BATCH, length, heads * HEAD_DIM)
    out, weights = module(x, _ahead(length))
    v = module.v_sconv(module.v_proj(x))
    inputs = {
        "q": module.q_norm(_split(module.q_proj(x), heads)),
        "k": module.k_norm(_split(module.k_sconv(module.k_proj(x)), kv_heads)),
        "v": _split(v, kv_heads),
        "x": x,
        "weight": module.r_proj.weight,
        "profiles": module.rel_logits_proj.proj,
    }
    return inputs, {"weights": weights, "output": _split(out, heads)}


def inkling_2(rng, length, heads, kv_heads, extent, states, floor, clip_states, clip_qk):
    """Scales of q and r are put into their projections; the gate of the output is one half."""
    kind = configuration_inkling2.Inkling2TextConfig
    config = _inkling(kind, heads, kv_heads, extent, states, floor)
    config.rel_l2_clip_threshold, config.qk_l2_clip_threshold = clip_states, clip_qk
    module = modeling_inkling2.Inkling2FullAttention(config, layer_idx=0)
    _fill(module, rng, heads * HEAD_DIM)
    _identity(module.o_proj)
    module.gate_proj.weight.zero_()
    x = _normal(rng, BATCH, length, heads * HEAD_DIM)
    places = torch.arange(length)[None]
    out, weights = module(x, x, x, _ahead(length), position_ids=places)
    v = _split(module.v_sconv(module.v_proj(x), x), kv_heads)
    inputs = {
        "q": _split(module.q_proj(x), heads) * module.q_l2_clip.scale,
        "k": _split(module.k_sconv(module.k_proj(x), x), kv_heads),
        "v": module.v_norm(v),
        "x": x,
        "weight": module.rel_l2_clip.scale.flatten()[:, None] * module.r_proj.weight,
        "profiles": module.rel_logits_proj.proj,
        "sink": module.sink_proj.weight,
    }
    return inputs, {"weights": weights, "output": 2 * _split(out, heads)}


def sink_gpt_oss(rng, length, heads, kv_heads):
    q = _normal(rng, BATCH, heads, length, HEAD_DIM)
    k, v = (_normal(rng, BATCH, kv_heads, length, HEAD_DIM) for _ in range(2))
    module = types.SimpleNamespace(
        sinks=_normal(rng, heads), num_key_value_groups=heads // kv_heads, training=False
    )
    mask, scale = _ahead(length), HEAD_DIM**-0.5
    out, weights = modeling_gpt_oss.eager_attention_forward(module, q, k, v, mask, scale)
    inputs = {name: x.transpose(1, 2) for name, x in zip("qkv", (q, k, v), strict=True)}
    return inputs | {"sinks": module.sinks}, {"weights": weights, "output": out}


def sinusoidal_2d_mae(rng, length, height, width, dim):
    table = modeling_vit_mae.build_2d_sinusoidal_position_embedding(height, width, dim)
    return {}, {"table": table}


def learned_2d_interpolate(rng, length, height, width, to):
    """The table of every place, and the same resized as images are."""
    rows, columns = _normal(rng, height, 4), _normal(rng, width, 4)
    table = torch.cat(
        [rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)], dim=-1
    )
    resized = nn.functional.interpolate(
        table.permute(2, 0, 1)[None], size=tuple(to), mode="bilinear", align_corners=False
    )
    flat = resized[0].permute(1, 2, 0).flatten(0, 1)
    return {"rows": rows, "columns": columns}, {"table": table.flatten(0, 1), "resized": flat}


def learned_grid_interpolate(rng, length, size, to, method, antialias, offset=0.0):
    """A table resized as tables of images are; with an offset, as DINOv2's released code does."""
    table = _normal(rng, *size, 4)
    how = {"size": tuple(to), "align_corners": False}
    if offset:
        how = {"scale_factor": [(n + offset) / m for n, m in zip(to, size, strict=True)]}
    found = nn.functional.interpolate(
        table.permute(2, 0, 1)[None], mode=method, antialias=antialias, **how
    )
    return {"table": table}, {"resized": found[0].permute(1, 2, 0)}


def _rotary_axes(rng, length, dim, axes):
    """As `_rotary`, with positions on several axes."""
    inputs = _rotary(rng, length, dim)
    inputs["positions"] = torch.stack([_places(rng, length) for _ in range(axes)], dim=-1)
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
    inputs = _rotary(rng, prefix + height * width)
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
    inputs = _rotary(rng, height * width)
    del inputs["positions"]
    module = modeling_timm.RotaryEmbeddingDinoV3(HEAD_DIM, temperature=base).eval()
    return inputs, _turned_by_timm(modeling_timm, inputs, module.get_embed([height, width]), True)


def rope_mixed_timm(rng, length, height, width):
    modeling_timm = timm_layers("pos_embed_sincos")
    inputs = _rotary(rng, height * width)
    del inputs["positions"]
    module = modeling_timm.RotaryEmbeddingMixed(2 * HEAD_DIM, depth=1, num_heads=2)
    module.freqs.copy_(_normal(rng, *module.freqs.shape, scale=0.5))
    table = module.get_embed([height, width])[0]
    inputs["frequencies"] = module.freqs[:, 0]
    return inputs, _turned_by_timm(modeling_timm, inputs, table, False)


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
    config.rope_parameters = {
        "rope_type": "default",
        "rope_theta": base,
        "mrope_section": sections,
    }
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
    _fill(module, rng, 0)
    return {"table": module.relative_position_bias_table}, {"bias": module()[0]}


def swin_beit(rng, length, heads, side, to):
    config = transformers.BeitConfig(
        num_attention_heads=heads, hidden_size=heads, image_size=4 * side, patch_size=4
    )
    module = _fill(modeling_beit.BeitRelativePositionBias(config), rng, 0)
    return {"table": module.relative_position_bias_table}, {"bias": module(tuple(to))[0]}


def cpb_swinv2(rng, length, heads, window, trained):
    """Queries of zero, so that the weights are those of the bias alone, without their cosines."""
    config = transformers.Swinv2Config()
    kind = modeling_swinv2.Swinv2SelfAttention
    module = kind(config, heads * HEAD_DIM, heads, window, trained)
    _fill(module, rng, 0)
    module.query.weight.zero_()
    module.query.bias.zero_()
    first, _, second = module.continuous_position_bias_mlp
    second.weight.mul_(0.1)  # away from the sigmoid's flat ends
    x = _normal(rng, BATCH, window[0] * window[1], heads * HEAD_DIM)
    _, probabilities = module(x, output_attentions=True)
    inputs = {"w1": first.weight.T, "b1": first.bias, "w2": second.weight.T}
    zero, k = torch.zeros_like(x), module.key(x)
    return inputs | {"q": _split(zero, heads), "k": _split(k, heads)}, {"weights": probabilities}


def _bias_alone(rng, bias: torch.Tensor) -> tuple[dict, dict]:
    """Queries of zero, so that the weights are those of the bias [H, T, T] alone."""
    heads, tokens, _ = bias.shape
    q, k = torch.zeros(BATCH, tokens, heads, HEAD_DIM), _normal(rng, BATCH, tokens, heads, HEAD_DIM)
    return {"q": q, "k": k}, {"weights": bias.softmax(-1)[None]}


def cpb_timm(rng, length, heads, window, trained):
    modeling_timm = timm_layers("pos_embed_rel")
    module = modeling_timm.RelPosMlp(window, heads, 16, 0, "swin", trained)
    _fill(module, rng, 0)
    first, second = module.mlp.fc1, module.mlp.fc2
    second.weight.mul_(0.1)  # away from the sigmoid's flat ends
    inputs, outputs = _bias_alone(rng, module.get_bias()[0])
    return inputs | {"w1": first.weight.T, "b1": first.bias, "w2": second.weight.T}, outputs


def cpb_x_transformers(rng, length, heads, window, trained):
    """Its coordinate of one axis is ours for a window of 9, times ln 8; it has no sigmoid.

    Its activation, SiLU, is a ReLU where what it is given is large: here a million times too large,
    which the second layer takes back.
    """
    modeling_x_transformers, units, large = _x_transformers(), 16, 1e6
    module = modeling_x_transformers.DynamicPositionBias(
        units, heads=heads, depth=1, log_distance=True
    )
    inputs = {"w1": _normal(rng, 2, units, scale=0.5), "b1": _normal(rng, units, scale=0.5)}
    inputs["w2"] = _normal(rng, units, heads, scale=0.05)
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
    encoder = _fill(modeling_layoutlmv3.LayoutLMv3Encoder(config), rng, 2 * HEAD_DIM)
    module = encoder.layer[0].attention.self
    x = _normal(rng, BATCH, length, 2 * HEAD_DIM)
    boxes = torch.from_numpy(rng.integers(0, 1001, (BATCH, length, 4)))
    index = torch.arange(length)[None]
    biases = encoder._cal_1d_pos_emb(index), encoder._cal_2d_pos_emb(boxes)
    out, probabilities = module(x, None, *biases)
    parts = {"q": "query", "k": "key", "v": "value"}
    inputs = {n: _split(getattr(module, p)(x), 2) for n, p in parts.items()}
    names = {"index": "rel_pos_bias", "x": "rel_pos_x_bias", "y": "rel_pos_y_bias"}
    inputs |= {n: getattr(encoder, p).weight for n, p in names.items()}
    inputs["positions"] = torch.stack([index[0], boxes[0, :, 0], boxes[0, :, 3]], dim=-1)
    return inputs, {"weights": probabilities, "output": _split(out, 2)}


def fox_fla(rng, length, heads, kv_heads):
    modeling_fla, inputs = _fla("forgetting_attn"), _qkv(rng, length, heads, kv_heads)
    width, run = heads * HEAD_DIM, modeling_fla.naive_forgetting_attn
    gates = {"x": _normal(rng, BATCH, length, width), "bias": _normal(rng, heads)}
    gates["weight"] = _normal(rng, width, heads, scale=width**-0.5)
    logs = nn.functional.logsigmoid(gates["x"] @ gates["weight"] + gates["bias"])
    return inputs | gates, {"output": run(*inputs.values(), logs)}


def path_fla(rng, length, heads):
    modeling_fla, inputs = _fla("path_attn"), _qkv(rng, length, heads, heads)
    width, run = heads * HEAD_DIM, modeling_fla.naive_path_attn
    more = {"x": _normal(rng, BATCH, length, width), "bias": _normal(rng, heads)}
    more["weight"] = _normal(rng, width, heads, scale=width**-0.5)
    more["directions"] = _normal(rng, width, heads, HEAD_DIM)
    w = torch.einsum("btd,dhe->bthe", more["x"], more["directions"])
    w = w * (w.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    strength = 2 * torch.sigmoid(more["x"] @ more["weight"] + more["bias"])
    gates = torch.zeros(BATCH, length, heads)
    out = run(*inputs.values(), w, strength, gates, HEAD_DIM**-0.5)
    return inputs | more, {"output": out}


def stick_breaking_fla(rng, length, heads, kv_heads, attend_current):
    modeling_fla, inputs = _fla("stickbreaking_attn"), _qkv(rng, length, heads, kv_heads)
    run = modeling_fla.naive_stickbreaking_attn
    out, left = run(*inputs.values(), attend_current=attend_current)
    return inputs, {"output": out, "left": left}


def cope_x_transformers(rng, length, heads, positions):
    """It is given scores that are masked already, and queries that are scaled."""
    modeling_x_transformers = _x_transformers()
    inputs = _qkv(rng, length, heads, heads)
    module = modeling_x_transformers.CoPE(HEAD_DIM, heads, positions)
    module.pos_emb.copy_(_normal(rng, positions, HEAD_DIM))
    q, k, v = (x.transpose(1, 2) for x in inputs.values())
    q = q * HEAD_DIM**-0.5
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (q @ k.mT).masked_fill(ahead, -torch.finfo(torch.float32).max)
    probabilities = (scores + module(q, scores)).softmax(-1)
    outputs = {"weights": probabilities, "output": (probabilities @ v).transpose(1, 2)}
    return inputs | {"vectors": module.pos_emb}, outputs


ORACLES = {
    "nope_sdpa": nope_sdpa,
    "sinusoidal_marian": sinusoidal_marian,
    "sinusoidal_fsmt": sinusoidal_fsmt,
    "learned_torch": learned_torch,
    "shaw_wav2vec2_bert": shaw_wav2vec2_bert,
    "shaw_vits": shaw_vits,
    "transformer_xl_xlnet": transformer_xl_xlnet,
    "t5_bucket": t5_bucket,
    "t5_attention": t5_attention,
    "deberta_bucket": deberta_bucket,
    "deberta_attention": deberta_attention,
    "rope_llama": rope_llama,
    "rope_gpt_neox_partial": rope_gpt_neox_partial,
    "rope_gptj": rope_gptj,
    "rope_roformer": rope_roformer,
    "rope_mla_deepseek_v3": rope_mla_deepseek_v3,
    "rotated_values_deepseek_v4": rotated_values_deepseek_v4,
    "lerope_mistral_large4": lerope_mistral_large4,
    "log_length_mistral_large4": log_length_mistral_large4,
    "pope_x_transformers": pope_x_transformers,
    "pope_pytorch": pope_pytorch,
    "wall_fla": wall_fla,
    "rope_linear": rope_scaled,
    "rope_dynamic": rope_scaled,
    "rope_yarn": rope_scaled,
    "rope_llama3": rope_scaled,
    "rope_longrope": rope_scaled,
    "rope_proportional": rope_scaled,
    "rope_hunyuan": rope_hunyuan,
    "rope_gemma3": rope_gemma3,
    "nope_smollm3": nope_smollm3,
    "temperature_llama4": temperature_llama4,
    "temperature_ministral3": temperature_ministral3,
    "alibi_bloom": alibi_bloom,
    "alibi_mpt": alibi_mpt,
    "wavlm_attention": wavlm_attention,
    "inkling_attention": inkling_attention,
    "inkling_2": inkling_2,
    "sink_gpt_oss": sink_gpt_oss,
    "fox_x_transformers": fox_x_transformers,
    "xpos_x_transformers": xpos_x_transformers,
    "sandwich_attn_gym": sandwich_attn_gym,
    "sinusoidal_2d_mae": sinusoidal_2d_mae,
    "learned_2d_interpolate": learned_2d_interpolate,
    "learned_grid_interpolate": learned_grid_interpolate,
    "rope_2d_qwen2_vl": rope_2d_qwen2_vl,
    "rope_2d_pixtral": rope_2d_pixtral,
    "rope_2d_dinov3": rope_2d_dinov3,
    "rope_2d_timm": rope_2d_timm,
    "rope_mixed_timm": rope_mixed_timm,
    "rope_nd_minimax_m3": rope_nd_minimax_m3,
    "mrope_qwen2_vl": mrope_qwen2_vl,
    "mrope_qwen3_vl": mrope_qwen3_vl,
    "mrope_positions": mrope_positions,
    "swin_bias": swin_bias,
    "swin_beit": swin_beit,
    "cpb_swinv2": cpb_swinv2,
    "cpb_timm": cpb_timm,
    "cpb_x_transformers": cpb_x_transformers,
    "layoutlmv3_attention": layoutlmv3_attention,
    "fox_fla": fox_fla,
    "cope_x_transformers": cope_x_transformers,
    "path_fla": path_fla,
    "stick_breaking_fla": stick_breaking_fla,
}
