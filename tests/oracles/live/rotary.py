"""Rotations of queries and keys."""

import pytest
import torch
import transformers
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.deepseek_v4 import modeling_deepseek_v4
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.mistral_large4 import modeling_mistral_large4
from transformers.models.roformer import modeling_roformer

from tests.oracles.live.common import (
    BATCH,
    HEAD_DIM,
    any_places,
    attended,
    by_head,
    fill,
    normal,
    random_qkv,
    rotary_inputs,
    set_identity,
    x_transformers,
)


def rope_llama(rng, length, base, layout):
    inputs = rotary_inputs(rng, length)
    config = transformers.LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    table = modeling_llama.LlamaRotaryEmbedding(config)(inputs["q"], inputs["positions"][None])
    q, k = modeling_llama.apply_rotary_pos_emb(inputs["q"], inputs["k"], *table, unsqueeze_dim=2)
    return inputs, {"q": q, "k": k}


def rope_gpt_neox_partial(rng, length, base, fraction, layout):
    inputs = rotary_inputs(rng, length, 2 * HEAD_DIM)
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
    inputs = rotary_inputs(rng, length)
    table = modeling_gptj.create_sinusoidal_positions(256, HEAD_DIM)[inputs["positions"]][None]
    sin, cos = table.chunk(2, dim=-1)
    turn = modeling_gptj.apply_rotary_pos_emb
    return inputs, {name: turn(inputs[name], sin, cos) for name in ("q", "k")}


def rope_roformer(rng, length, layout):
    inputs = rotary_inputs(rng, length)
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
    module = fill(modeling_deepseek_v3.DeepseekV3Attention(config, 0), rng, 2 * HEAD_DIM)
    set_identity(module.o_proj)
    x, places = normal(rng, BATCH, length, 2 * HEAD_DIM), any_places(rng, length)[None]
    table = modeling_deepseek_v3.DeepseekV3RotaryEmbedding(config)(x, places)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(1, 1, length, length).masked_fill(ahead, torch.finfo(torch.float32).min)
    out, probabilities = module(x, table, mask)
    q = by_head(module.q_proj(x), 2)
    latent, k_rotary = module.kv_a_proj_with_mqa(x).split([5, 6], -1)
    k_content, v = by_head(module.kv_b_proj(module.kv_a_layernorm(latent)), 2).split(
        [content, HEAD_DIM], -1
    )
    inputs = {"q_content": q[..., :content], "q_rotary": q[..., content:], "positions": places[0]}
    inputs |= {"k_content": k_content, "k_rotary": k_rotary, "v": v}
    return inputs, {"weights": probabilities, "output": by_head(out, 2)}


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
    module = fill(modeling_deepseek_v4.DeepseekV4Attention(config, 0), rng, 2 * HEAD_DIM)
    set_identity(module.o_a_proj)
    set_identity(module.o_b_proj)
    x, places = normal(rng, BATCH, length, 2 * HEAD_DIM), torch.arange(length)[None]
    rotary = modeling_deepseek_v4.DeepseekV4RotaryEmbedding(config)
    tables = {"main": rotary(x, places, layer_type="main")}
    away = places[0][:, None] - places[0]
    hidden = (away < 0) | (away >= window)
    mask = torch.zeros(1, 1, length, length).masked_fill(hidden, torch.finfo(torch.float32).min)
    out, probabilities = module(x, tables, places, mask)
    q = module.q_b_norm(by_head(module.q_b_proj(module.q_a_norm(module.q_a_proj(x))), 2))
    k = module.kv_norm(module.kv_proj(x))[:, :, None]
    inputs = {"q": q, "k": k, "sinks": module.sinks}
    return inputs, {"weights": probabilities, "output": by_head(out, 2)}


def lerope_mistral_large4(rng, length, parameters):
    """What its rotation gives, even channels before odd ones, and its positions below 32."""
    inputs = rotary_inputs(rng, length)
    inputs["positions"] = inputs["positions"] % 32
    config = transformers.models.mistral_large4.MistralLarge4TextConfig(
        qk_rope_head_dim=HEAD_DIM, num_hidden_layers=1, rope_parameters=dict(parameters)
    )
    module = modeling_mistral_large4.MistralLarge4TextRotaryEmbedding(config)
    module.alpha.copy_(normal(rng, HEAD_DIM // 2, scale=0.3))
    inputs["alpha"] = module.alpha
    table = module(inputs["q"], inputs["positions"][None])
    turn = modeling_mistral_large4.apply_rotary_pos_emb_interleave
    q, k = turn(inputs["q"], inputs["k"], *table, unsqueeze_dim=2)
    return inputs, {"q": q, "k": k}


def _scores(q, k):
    """Products of rotated queries and keys [B, H, T, E]."""
    return {"scores": torch.einsum("bhte,bhse->bhts", q, k)}


def pope_x_transformers(rng, length, base):
    modeling_x_transformers = x_transformers()
    inputs, heads = rotary_inputs(rng, length), 2
    inputs["positions"] = inputs["positions"] % 32
    module = modeling_x_transformers.PolarEmbedding(HEAD_DIM, heads, base=base)
    module.learned_bias.copy_(normal(rng, heads, 1, HEAD_DIM, scale=4.0))
    angles, phase = module(inputs["positions"])
    q, k = (inputs[name].transpose(1, 2) for name in "qk")
    turn = modeling_x_transformers.apply_polar_pos_emb
    inputs["phase"] = module.learned_bias[:, 0]
    return inputs, _scores(turn(q, angles), turn(k, angles + phase))


def pope_pytorch(rng, length, base):
    modeling_pope_pytorch = pytest.importorskip("PoPE_pytorch.pope", exc_type=ImportError)
    inputs, heads = rotary_inputs(rng, length), 2
    inputs["positions"] = inputs["positions"] % 32
    module = modeling_pope_pytorch.PoPE(HEAD_DIM, heads=heads, theta=base)
    module.bias.copy_(normal(rng, heads, HEAD_DIM, scale=4.0))
    q, k = (inputs[name].transpose(1, 2) for name in "qk")
    inputs["phase"] = module.bias
    return inputs, _scores(*module.apply_pope_to_qk(module(inputs["positions"]), q, k))


def xpos_x_transformers(rng, length, base, scale_base):
    """Its decay has its origin amid the sequence: the products are the same."""
    modeling_x_transformers, inputs = x_transformers(), random_qkv(rng, length, 2, 2)
    kind, turn = (
        modeling_x_transformers.RotaryEmbedding,
        modeling_x_transformers.apply_rotary_pos_emb,
    )
    module = kind(HEAD_DIM, use_xpos=True, scale_base=scale_base, base=base)
    angles, scale = module.forward_from_seq_len(length)
    q, k = (inputs[name].transpose(1, 2) for name in "qk")
    scores = turn(q, angles, scale) @ turn(k, angles, scale**-1).mT / HEAD_DIM**0.5
    return inputs, attended(scores, inputs["v"], True)
