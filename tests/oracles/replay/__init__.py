"""Our side of every comparison, and the one function that compares; needs no torch.

A `Record` holds what an oracle was given and what it answered. `live` makes records by running
the oracle, `load` reads one from a golden file; `compare` treats both alike.
B batch, T queries, S keys, H heads, E head width, D model width.
"""

import numpy as np

from tests.oracles.replay import absolute, from_input, relative, rotary, scalings, vision
from tests.oracles.replay.records import GOLDEN, Record, load, save

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
    "nope_sdpa": absolute.nope,
    "sinusoidal_marian": absolute.sinusoid,
    "sinusoidal_fsmt": absolute.sinusoid,
    "learned_torch": absolute.lookup,
    "shaw_wav2vec2_bert": relative.shaw_key,
    "shaw_vits": relative.shaw_key_value,
    "transformer_xl_xlnet": relative.transformer_xl,
    "t5_bucket": relative.t5_bucket,
    "t5_attention": relative.t5_attention,
    "deberta_bucket": relative.deberta_bucket,
    "deberta_attention": relative.deberta_attention,
    "rope_llama": rotary.rotary,
    "rope_gpt_neox_partial": rotary.rotary,
    "rope_gptj": rotary.rotary_function,
    "rope_roformer": rotary.rotary_function,
    "rope_mla_deepseek_v3": rotary.latent,
    "rotated_values_deepseek_v4": rotary.rotated_values,
    "lerope_mistral_large4": rotary.learned_frequencies,
    "log_length_mistral_large4": absolute.log_length,
    "pope_x_transformers": rotary.polar,
    "pope_pytorch": rotary.polar,
    "wall_fla": from_input.wall,
    "rope_linear": scalings.rope_scaled,
    "rope_dynamic": scalings.rope_scaled,
    "rope_yarn": scalings.rope_scaled,
    "rope_llama3": scalings.rope_scaled,
    "rope_longrope": scalings.rope_scaled,
    "rope_proportional": scalings.rope_scaled,
    "rope_hunyuan": scalings.rope_hunyuan,
    "rope_gemma3": scalings.rope_gemma3,
    "nope_smollm3": absolute.smollm3,
    "temperature_llama4": absolute.llama4,
    "temperature_ministral3": absolute.ministral3,
    "alibi_bloom": relative.alibi,
    "alibi_mpt": relative.alibi,
    "wavlm_attention": from_input.wavlm,
    "inkling_attention": from_input.inkling,
    "inkling_2": from_input.inkling_2,
    "sink_gpt_oss": from_input.sink,
    "fox_x_transformers": from_input.forgetting,
    "xpos_x_transformers": rotary.xpos,
    "sandwich_attn_gym": relative.sandwich,
    "dpb_x_transformers": relative.dynamic,
    "sinusoidal_2d_mae": absolute.axial_sinusoid,
    "learned_2d_interpolate": absolute.learned_2d,
    "learned_grid_interpolate": absolute.resized_grid,
    "rope_2d_qwen2_vl": vision.rotary_2d,
    "rope_2d_pixtral": vision.rotary_2d,
    "rope_2d_dinov3": vision.rotary_pixels,
    "rope_2d_timm": vision.rotary_pixels,
    "rope_mixed_timm": vision.rotary_mixed,
    "cayley_string_torch": vision.of_parameters,
    "liere_torch": vision.of_parameters,
    "rope_nd_minimax_m3": vision.rotary_nd,
    "mrope_qwen2_vl": vision.rotary_3d,
    "mrope_qwen3_vl": vision.rotary_3d,
    "mrope_ernie4_5_vl": vision.rotary_3d,
    "mrope_glm4v": vision.rotary_3d,
    "mrope_positions": vision.multimodal,
    "swin_bias": vision.swin_bias,
    "swin_beit": vision.swin_class,
    "cpb_swinv2": vision.cpb,
    "cpb_timm": vision.cpb,
    "cpb_x_transformers": vision.cpb,
    "layoutlmv3_attention": vision.layoutlmv3,
    "fox_fla": from_input.forgetting_causal,
    "cope_x_transformers": from_input.cope,
    "path_fla": from_input.path,
    "stick_breaking_fla": from_input.stick_breaking,
}
