"""Rotated values: GTA (Miyato et al., arXiv 2310.10375) on a line, as DeepSeek-V4 has it.

    out_m = R_{-m} Σ_n a_mn R_n v_n = Σ_n a_mn R_{n-m} v_n

Values turn as keys do in RoPE, and the output turns back by the position of its query: what is read
from a token depends on how far away it is. Weights are not touched, so `rope+rotated_values` has
both. The first layers of DeepSeek-V4 (https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash-Base)
use that with one key head whose key is also the value, a window of 128 and sink logits:
`rope(fraction=0.125,layout='interleaved')+rotated_values(fraction=0.125,layout='interleaved')`; its
other layers add compressed keys. It rotates the last channels of a head: put them first.

RoFormer's `rotary_value` turns values and never turns them back, which is something else.
"""

import dataclasses

from pe_jax.encodings.rope import RoPE, rotate
from pe_jax.encodings.terms import ValueRotation


@dataclasses.dataclass(frozen=True)
class RotatedValues(RoPE):
    """RoPE of the values, undone at the query's position; the fields are RoPE's.

    The attention factor of a scaling is not applied: only rotations are undone.
    """

    def terms(self, params, dims):
        return (ValueRotation(self.rotate_values, self.rotate_outputs, by_length=self.waits),)

    def rotate_values(self, _, v, positions, lengths=None):
        """R_n v: [..., S, K, F]."""
        return rotate(v, positions, self.frequencies(v.shape[-1], lengths), self.layout)

    def rotate_outputs(self, _, out, positions, lengths=None):
        """R_{-m} out: [..., T, H, F]."""
        return rotate(out, positions, -self.frequencies(out.shape[-1], lengths), self.layout)
