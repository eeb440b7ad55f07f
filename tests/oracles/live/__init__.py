"""The oracles themselves: other people's code on random weights and inputs.

Each function builds the oracle, fills its weights with random numbers, runs it, and returns
(inputs, outputs) for `replay.compare`. Needs the extra `oracles`; a case of a library besides torch
and transformers is skipped where that is missing. Output projections are set to the identity, so
that what comes out is the attention itself.
B batch, T queries, S keys, H heads, E head width, D = H·E.
"""

import importlib.metadata

import numpy as np
import torch
import transformers

from tests.oracles.cases import PACKAGES
from tests.oracles.live.absolute import (
    learned_2d_interpolate,
    learned_grid_interpolate,
    learned_torch,
    log_length_mistral_large4,
    nope_sdpa,
    nope_smollm3,
    sinusoidal_2d_mae,
    sinusoidal_fsmt,
    sinusoidal_marian,
    temperature_llama4,
    temperature_ministral3,
)
from tests.oracles.live.from_input import (
    cope_x_transformers,
    fox_fla,
    fox_x_transformers,
    inkling_2,
    inkling_attention,
    path_fla,
    sink_gpt_oss,
    stick_breaking_fla,
    wall_fla,
    wavlm_attention,
)
from tests.oracles.live.relative import (
    alibi_bloom,
    alibi_mpt,
    deberta_attention,
    deberta_bucket,
    dpb_x_transformers,
    sandwich_attn_gym,
    shaw_vits,
    shaw_wav2vec2_bert,
    t5_attention,
    t5_bucket,
    transformer_xl_xlnet,
)
from tests.oracles.live.rotary import (
    lerope_mistral_large4,
    pope_pytorch,
    pope_x_transformers,
    rope_gpt_neox_partial,
    rope_gptj,
    rope_llama,
    rope_mla_deepseek_v3,
    rope_roformer,
    rotated_values_deepseek_v4,
    xpos_x_transformers,
)
from tests.oracles.live.scalings import rope_gemma3, rope_hunyuan, rope_scaled
from tests.oracles.live.vision import (
    cayley_string_torch,
    cpb_swinv2,
    cpb_timm,
    cpb_x_transformers,
    layoutlmv3_attention,
    liere_torch,
    mrope_positions,
    mrope_qwen2_vl,
    mrope_qwen3_vl,
    rope_2d_dinov3,
    rope_2d_pixtral,
    rope_2d_qwen2_vl,
    rope_2d_timm,
    rope_mixed_timm,
    rope_nd_minimax_m3,
    swin_beit,
    swin_bias,
)
from tests.oracles.replay import Record


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
    "dpb_x_transformers": dpb_x_transformers,
    "sinusoidal_2d_mae": sinusoidal_2d_mae,
    "learned_2d_interpolate": learned_2d_interpolate,
    "learned_grid_interpolate": learned_grid_interpolate,
    "rope_2d_qwen2_vl": rope_2d_qwen2_vl,
    "rope_2d_pixtral": rope_2d_pixtral,
    "rope_2d_dinov3": rope_2d_dinov3,
    "rope_2d_timm": rope_2d_timm,
    "rope_mixed_timm": rope_mixed_timm,
    "cayley_string_torch": cayley_string_torch,
    "liere_torch": liere_torch,
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
