"""Our side of every comparison, and the one function that compares; needs no torch.

A `Record` holds what an oracle was given and what it answered. `live` makes records by running
the oracle, `load` reads one from a golden file; `compare` treats both alike.
B batch, T queries, S keys, H heads, E head width, D model width.
"""

import numpy as np

from tests.oracles.replay.absolute import (
    axial_sinusoid,
    learned_2d,
    llama4,
    log_length,
    lookup,
    ministral3,
    nope,
    resized_grid,
    sinusoid,
    smollm3,
)
from tests.oracles.replay.from_input import (
    cope,
    forgetting,
    forgetting_causal,
    inkling,
    inkling_2,
    path,
    sink,
    stick_breaking,
    wall,
    wavlm,
)
from tests.oracles.replay.records import GOLDEN, Record, load, save
from tests.oracles.replay.relative import (
    alibi,
    deberta_attention,
    deberta_bucket,
    dynamic,
    sandwich,
    shaw_key,
    shaw_key_value,
    t5_attention,
    t5_bucket,
    transformer_xl,
)
from tests.oracles.replay.rotary import (
    latent,
    learned_frequencies,
    polar,
    rotary,
    rotary_function,
    rotated_values,
    xpos,
)
from tests.oracles.replay.scalings import (
    rope_gemma3,
    rope_hunyuan,
    rope_scaled,
)
from tests.oracles.replay.vision import (
    cpb,
    layoutlmv3,
    multimodal,
    of_parameters,
    rotary_2d,
    rotary_3d,
    rotary_mixed,
    rotary_nd,
    rotary_pixels,
    swin_bias,
    swin_class,
)

__all__ = ["GOLDEN", "TOLERANCE", "Record", "compare", "load", "save"]
TOLERANCE = 1e-5  # float32, outputs of order 1, positions below 256


def compare(record: Record, implementation: str = "dense") -> dict[str, float]:
    """The largest error of each output; fails above `TOLERANCE`, or where an integer differs."""
    ours = OURS[record.case](record.settings, record.inputs, implementation)
    assert ours.keys() == record.outputs.keys()
    errors = {}
    for name, want in record.outputs.items():
        got = np.asarray(ours[name])
        assert got.shape == want.shape, f"{record.case} {name}: {got.shape}, oracle {want.shape}"
        gap = np.abs(got.astype(np.float64) - want.astype(np.float64))
        errors[name] = float(gap.max(initial=0))
        allowed = 0 if np.issubdtype(want.dtype, np.integer) else TOLERANCE
        assert errors[name] <= allowed, (  # NaN fails too
            f"{record.case} {name}: off by {errors[name]:.3g} at {np.argwhere(gap > allowed)[:3]}"
            f" with {record.settings}"
        )
    return errors


OURS = {
    "nope_sdpa": nope,
    "sinusoidal_marian": sinusoid,
    "sinusoidal_fsmt": sinusoid,
    "learned_torch": lookup,
    "shaw_wav2vec2_bert": shaw_key,
    "shaw_vits": shaw_key_value,
    "transformer_xl_xlnet": transformer_xl,
    "t5_bucket": t5_bucket,
    "t5_attention": t5_attention,
    "deberta_bucket": deberta_bucket,
    "deberta_attention": deberta_attention,
    "rope_llama": rotary,
    "rope_gpt_neox_partial": rotary,
    "rope_gptj": rotary_function,
    "rope_roformer": rotary_function,
    "rope_mla_deepseek_v3": latent,
    "rotated_values_deepseek_v4": rotated_values,
    "lerope_mistral_large4": learned_frequencies,
    "log_length_mistral_large4": log_length,
    "pope_x_transformers": polar,
    "pope_pytorch": polar,
    "wall_fla": wall,
    "rope_linear": rope_scaled,
    "rope_dynamic": rope_scaled,
    "rope_yarn": rope_scaled,
    "rope_llama3": rope_scaled,
    "rope_longrope": rope_scaled,
    "rope_proportional": rope_scaled,
    "rope_hunyuan": rope_hunyuan,
    "rope_gemma3": rope_gemma3,
    "nope_smollm3": smollm3,
    "temperature_llama4": llama4,
    "temperature_ministral3": ministral3,
    "alibi_bloom": alibi,
    "alibi_mpt": alibi,
    "wavlm_attention": wavlm,
    "inkling_attention": inkling,
    "inkling_2": inkling_2,
    "sink_gpt_oss": sink,
    "fox_x_transformers": forgetting,
    "xpos_x_transformers": xpos,
    "sandwich_attn_gym": sandwich,
    "dpb_x_transformers": dynamic,
    "sinusoidal_2d_mae": axial_sinusoid,
    "learned_2d_interpolate": learned_2d,
    "learned_grid_interpolate": resized_grid,
    "rope_2d_qwen2_vl": rotary_2d,
    "rope_2d_pixtral": rotary_2d,
    "rope_2d_dinov3": rotary_pixels,
    "rope_2d_timm": rotary_pixels,
    "rope_mixed_timm": rotary_mixed,
    "cayley_string_torch": of_parameters,
    "liere_torch": of_parameters,
    "rope_nd_minimax_m3": rotary_nd,
    "mrope_qwen2_vl": rotary_3d,
    "mrope_qwen3_vl": rotary_3d,
    "mrope_positions": multimodal,
    "swin_bias": swin_bias,
    "swin_beit": swin_class,
    "cpb_swinv2": cpb,
    "cpb_timm": cpb,
    "cpb_x_transformers": cpb,
    "layoutlmv3_attention": layoutlmv3,
    "fox_fla": forgetting_causal,
    "cope_x_transformers": cope,
    "path_fla": path,
    "stick_breaking_fla": stick_breaking,
}
