"""No positions, and positions added to the input."""

import torch
import transformers
from torch import nn
from transformers.models.fsmt import modeling_fsmt
from transformers.models.llama4 import modeling_llama4
from transformers.models.marian import modeling_marian
from transformers.models.ministral3 import modeling_ministral3
from transformers.models.mistral_large4 import modeling_mistral_large4
from transformers.models.smollm3 import modeling_smollm3
from transformers.models.vit_mae import modeling_vit_mae

from tests.oracles.live.common import (
    BATCH,
    HEAD_DIM,
    any_places,
    by_head,
    causal_mask,
    fill,
    normal,
    set_identity,
)


def nope_sdpa(rng, length, heads, kv_heads, causal):
    q = normal(rng, BATCH, length, heads, HEAD_DIM)
    k, v = normal(rng, 2, BATCH, length, kv_heads, HEAD_DIM)
    first = (x.transpose(1, 2) for x in (q, k, v))
    out = nn.functional.scaled_dot_product_attention(*first, is_causal=causal, enable_gqa=True)
    return {"q": q, "k": k, "v": v}, {"output": out.transpose(1, 2)}


def sinusoidal_marian(rng, length, dim, layout):
    places = any_places(rng, length)
    module = modeling_marian.MarianSinusoidalPositionalEmbedding(256, dim)
    module.weight.copy_(module.create_weight())
    return {"positions": places}, {"table": module((1, length), position_ids=places)}


def sinusoidal_fsmt(rng, length, dim, layout):
    places = any_places(rng, length)
    table = modeling_fsmt.SinusoidalPositionalEmbedding.get_embedding(256, dim, None)
    return {"positions": places}, {"table": table[places]}


def learned_torch(rng, length, rows):
    table, places = normal(rng, rows, HEAD_DIM), torch.from_numpy(rng.integers(0, rows, length))
    return {"table": table, "positions": places}, {"rows": table[places]}


def log_length_mistral_large4(rng, length, heads):
    module = modeling_mistral_large4.MistralLarge4TextSoftmaxScaling(heads)
    module.scale.copy_(normal(rng, heads))
    module.bias.copy_(normal(rng, heads))
    q = torch.from_numpy(rng.uniform(-1, 1, (BATCH, length, heads, HEAD_DIM)).astype("f"))
    places = any_places(rng, length)
    inputs = {"q": q, "positions": places, "scale": module.scale, "bias": module.bias}
    return inputs, {"q": module(q, places[None], head_dim_first=False)}


def _decoder_layer(rng, length, module, rotary, **more):
    """One layer's attention, on its q, k, v before the encoding."""
    fill(module, rng, 2 * HEAD_DIM)
    set_identity(module.o_proj)
    x = normal(rng, BATCH, length, 2 * HEAD_DIM)
    table = rotary(x, torch.arange(length)[None])
    out, probabilities = module(x, table, causal_mask(length), **more)
    inputs = {name: by_head(getattr(module, f"{name}_proj")(x), 2) for name in "qkv"}
    return inputs, {"weights": probabilities, "output": by_head(out, 2)}


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


def sinusoidal_2d_mae(rng, length, height, width, dim):
    table = modeling_vit_mae.build_2d_sinusoidal_position_embedding(height, width, dim)
    return {}, {"table": table}


def learned_2d_interpolate(rng, length, height, width, to):
    """The table of every place, and the same resized as images are."""
    rows, columns = normal(rng, height, 4), normal(rng, width, 4)
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
    table = normal(rng, *size, 4)
    how = {"size": tuple(to), "align_corners": False}
    if offset:
        how = {"scale_factor": [(n + offset) / m for n, m in zip(to, size, strict=True)]}
    found = nn.functional.interpolate(
        table.permute(2, 0, 1)[None], mode=method, antialias=antialias, **how
    )
    return {"table": table}, {"resized": found[0].permute(1, 2, 0)}
