"""Relative positions in one dimension: vectors, buckets, slopes."""

import pytest
import torch
import transformers
from transformers.models.bloom import modeling_bloom
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.mpt import modeling_mpt
from transformers.models.t5 import modeling_t5
from transformers.models.vits import modeling_vits
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert
from transformers.models.xlnet import modeling_xlnet

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


def shaw_wav2vec2_bert(rng, length, heads, left, right):
    config = transformers.Wav2Vec2BertConfig(
        hidden_size=heads * HEAD_DIM,
        num_attention_heads=heads,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=left,
        right_max_position_embeddings=right,
        attn_implementation="eager",
    )
    module = fill(modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention(config), rng, heads * HEAD_DIM)
    set_identity(module.linear_out)
    x = normal(rng, BATCH, length, heads * HEAD_DIM)
    out, probabilities = module(x)
    inputs = {name: by_head(getattr(module, f"linear_{name}")(x), heads) for name in "qkv"}
    inputs["keys"] = module.distance_embedding.weight
    return inputs, {"weights": probabilities, "output": by_head(out, heads)}


def shaw_vits(rng, length, heads, window):
    config = transformers.VitsConfig(
        hidden_size=heads * HEAD_DIM, num_attention_heads=heads, window_size=window
    )
    module = fill(modeling_vits.VitsAttention(config), rng, heads * HEAD_DIM)
    set_identity(module.out_proj)
    x = normal(rng, BATCH, length, heads * HEAD_DIM)
    out, probabilities = module(x, output_attentions=True)
    inputs = {name: by_head(getattr(module, f"{name}_proj")(x), heads) for name in "qkv"}
    inputs |= {"keys": module.emb_rel_k, "values": module.emb_rel_v}
    return inputs, {"weights": probabilities, "output": by_head(out, heads)}


def transformer_xl_xlnet(rng, length, heads, memory, causal):
    """The queries are the last `length` of `memory + length` tokens."""
    config = transformers.XLNetConfig(
        vocab_size=8, d_model=heads * HEAD_DIM, n_layer=1, n_head=heads, d_inner=1, attn_type="bi"
    )
    model = transformers.XLNetModel(config)
    module = fill(modeling_xlnet.XLNetRelativeAttention(config), rng, heads * HEAD_DIM)
    total = memory + length
    x = normal(rng, total, BATCH, heads * HEAD_DIM)
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
    fill(module, rng, heads * HEAD_DIM)
    set_identity(module.o)
    x = normal(rng, BATCH, length, heads * HEAD_DIM)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(1, 1, length, length)
    if not bidirectional:
        mask.masked_fill_(ahead, torch.finfo(torch.float32).min)
    out, bias, probabilities = module(x, mask)
    inputs = {name: by_head(getattr(module, name)(x), heads) for name in "qkv"}
    inputs["table"] = module.relative_attention_bias.weight
    return inputs, {"bias": bias[0], "weights": probabilities, "output": by_head(out, heads)}


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
    module = fill(modeling_deberta_v2.DisentangledSelfAttention(config), rng, heads * HEAD_DIM)
    names = ("key_proj", "query_proj") if shared else ("pos_key_proj", "pos_query_proj")
    w_k, w_q = (getattr(module, name) for name in names)
    w_k.bias.zero_()
    w_q.bias.zero_()
    table = normal(rng, 2 * (buckets or max_distance), heads * HEAD_DIM)
    x = normal(rng, BATCH, length, heads * HEAD_DIM)
    seen = torch.ones(1, 1, length, length, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    out, probabilities = module(x, seen, output_attentions=True, rel_embeddings=table)
    parts = {"q": "query", "k": "key", "v": "value"}
    inputs = {n: by_head(getattr(module, f"{p}_proj")(x), heads) for n, p in parts.items()}
    inputs |= {"table": table, "w_k": w_k.weight, "w_q": w_q.weight}
    return inputs, {"weights": probabilities, "output": by_head(out, heads)}


def sandwich_attn_gym(rng, length, heads, width, causal):
    modeling_attn_gym = pytest.importorskip("attn_gym.mods", exc_type=ImportError)
    modify = modeling_attn_gym.generate_sandwich_bias(heads, length, width)
    inputs, place = random_qkv(rng, length, heads, heads), torch.arange(length)
    head, query = torch.arange(heads)[:, None, None], place[:, None]
    scores = modify(scaled_products(inputs), torch.zeros(1, dtype=torch.int64), head, query, place)
    return inputs, attended(scores, inputs["v"], causal)


def dpb_x_transformers(rng, length, heads, hidden, depth, log_distance, causal):
    modeling_x_transformers = x_transformers()
    module = modeling_x_transformers.DynamicPositionBias(
        hidden, heads=heads, depth=depth, log_distance=log_distance
    )
    *layers, last = fill(module, rng, hidden).mlp
    last.weight.mul_(1 if log_distance else 1 / length)  # biases of order 1
    (first, *_), *between = layers
    named = {"w_in": first.weight[:, 0], "b_in": first.bias}
    named |= {"w_out": last.weight.T, "b_out": last.bias}
    if between:
        named["w_hidden"] = torch.stack([linear.weight.T for linear, *_ in between])
        named["b_hidden"] = torch.stack([linear.bias for linear, *_ in between])
    inputs = random_qkv(rng, length, heads, heads)
    scores = scaled_products(inputs) + module(length, length)
    return inputs | named, attended(scores, inputs["v"], causal)


def alibi_bloom(rng, length, heads):
    """Their bias is m·key: under a causal mask the same as -m·distance."""
    config = transformers.BloomConfig(hidden_size=heads * HEAD_DIM, n_head=heads)
    module = fill(modeling_bloom.BloomAttention(config, layer_idx=0), rng, heads * HEAD_DIM)
    set_identity(module.dense)
    x = normal(rng, BATCH, length, heads * HEAD_DIM)
    ones = torch.ones(BATCH, length, dtype=torch.int64)
    alibi = modeling_bloom.build_alibi_tensor(ones, heads, torch.float32)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(1, 1, length, length)
    mask.masked_fill_(ahead, torch.finfo(torch.float32).min)
    out, probabilities = module(x, torch.zeros_like(x), alibi, mask, output_attentions=True)
    qkv = (y.transpose(1, 2) for y in module._reshape(module.query_key_value(x)))
    inputs = dict(zip("qkv", qkv, strict=True))
    return inputs, {"weights": probabilities, "output": by_head(out, heads)}


def alibi_mpt(rng, length, heads):
    """Their bias is m·(key - last): the same up to a constant a row."""
    config = transformers.MptConfig(d_model=heads * HEAD_DIM, n_heads=heads)
    module = fill(modeling_mpt.MptAttention(config, layer_idx=0), rng, heads * HEAD_DIM)
    set_identity(module.out_proj)
    x = normal(rng, BATCH, length, heads * HEAD_DIM)
    alibi = modeling_mpt.build_mpt_alibi_tensor(heads, length)
    ahead = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
    out, probabilities = module(x, alibi, attention_mask=ahead)
    qkv = (by_head(y, heads) for y in module.Wqkv(x).chunk(3, dim=-1))
    inputs = dict(zip("qkv", qkv, strict=True))
    return inputs, {"weights": probabilities, "output": by_head(out, heads)}
