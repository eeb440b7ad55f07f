"""The oracles themselves: Hugging Face's and PyTorch's code on random weights and inputs.

Each function builds the oracle, fills its weights with random numbers, runs it, and returns
(inputs, outputs) for `replay.compare`. Needs the extra `oracles` (torch, transformers). Output
projections are set to the identity, so that what comes out is the attention itself.
B batch, T queries, S keys, H heads, E head width, D = H·E.
"""

import inspect

import numpy as np
import torch
import transformers
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom import modeling_bloom
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.fsmt import modeling_fsmt
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.hunyuan_v1_dense import modeling_hunyuan_v1_dense
from transformers.models.llama import modeling_llama
from transformers.models.llama4 import modeling_llama4
from transformers.models.marian import modeling_marian
from transformers.models.ministral3 import modeling_ministral3
from transformers.models.mpt import modeling_mpt
from transformers.models.roformer import modeling_roformer
from transformers.models.smollm3 import modeling_smollm3
from transformers.models.t5 import modeling_t5
from transformers.models.vits import modeling_vits
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert
from transformers.models.xlnet import modeling_xlnet

from tests.oracles.replay import Record

BATCH, HEAD_DIM = 1, 8


def run(case: str, settings: dict, length: int = 12, seed: int = 0) -> Record:
    """Runs one oracle."""
    rng = np.random.default_rng(seed)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    with torch.no_grad():
        inputs, outputs = ORACLES[case](rng, length, **settings)
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
}
