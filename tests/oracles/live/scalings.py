"""RoPE for longer contexts."""

import inspect

import torch
import transformers
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.hunyuan_v1_dense import modeling_hunyuan_v1_dense

from tests.oracles.live.common import HEAD_DIM, rotary_inputs


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
    inputs = rotary_inputs(rng, length, head_dim)
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
    inputs = rotary_inputs(rng, length)
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
