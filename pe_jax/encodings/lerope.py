"""LeRoPE, RoPE with learned frequencies: Mistral Large 4, as released in transformers (no paper).

    θ'_i = θ_i · exp(α_i),      R_m turns pair i by m·θ'_i

α, one number per frequency, is shared by all layers and begins at 0, which is RoPE
(arXiv 2104.09864). exp(α) multiplies the frequencies after a scaling. Mistral Large 4 learns α on
top of YaRN, for half of each head's channels (there the last, here the first), in three layers of
four; the fourth has no rotation:

    lerope(fraction=0.5, layout='interleaved',
           scaling=yarn(factor=2048, original_length=512, attention_factor=1.0))

A step of α turns a pair in proportion to its position. The gradient of α sums terms of that size,
which mostly cancel: it is known to 2⁻²³ of the largest position.
"""

import dataclasses

import jax.numpy as jnp

from pe_jax.encodings import rope
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles
from pe_jax.numerics.arrays import align


@dataclasses.dataclass(frozen=True)
class LeRoPE(RoPE):
    """Rotates q and k by learned frequencies: one factor per frequency, for the whole model."""

    def init_shared(self, key, dims):
        """α [F] for F frequencies, zeros: keep it float32."""
        return {"alpha": jnp.zeros(self.rotary_dim(dims.head_dim) // 2, jnp.float32)}

    def terms(self, params, dims):
        return (Rotation(self.turn, self.turn, params.shared["alpha"], by_length=self.waits),)

    def turn(self, alpha, x, positions, lengths=None):
        """R_m x with θ·exp(α): [..., T, H, E]."""
        angles.require_exact("alpha", alpha)
        theta = self.frequencies(x.shape[-1], lengths)
        theta *= align(jnp.exp(alpha), theta)
        return rope.rotate(x, positions, theta, self.layout, self.factors(lengths))
