"""RePo: Li et al., "Language Models with Context Re-Positioning", arXiv 2512.14391.

    z_t = W_z (silu(W_g x_t) ⊙ W_c x_t)                   a real position for each head
    score_mn = (R(z_m) q_m)·(R(z_n) k_n) / sqrt(E)

RoPE at positions that a small network reads off each token instead of counting: tokens that matter
to each other can stand close, and others far off or at one place. Nothing counts, so that an
encoder with it alone sees a set of tokens; a causal mask orders them, as with NoPE, from which it
begins: all z are near 0.

As in the authors' code (SakanaAI/repo): D/8 hidden channels, layout "half", OLMo 2's base. Their
models have RoPE in the first layers: `rope(base=5e5)*5,repo*11`. Query heads that share a key head
(not in that code) share its positions.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import above_field, checked, stddev_field
from pe_jax.encodings.base import Encoding, normal
from pe_jax.encodings.rope import turn, waves
from pe_jax.encodings.terms import Rotation, State
from pe_jax.numerics import angles
from pe_jax.numerics.arrays import align
from pe_jax.numerics.products import matmul
from pe_jax.validation import is_int


def places(x: jax.Array, gate: jax.Array, content: jax.Array, final: jax.Array) -> jax.Array:
    """z, where each token is for each key head: float32 [*B, T, K].

    Args:
      x: the layer's input [*B, T, D].
      gate: W_g, float32 [D, C].
      content: W_c, [D, C].
      final: W_z, [C, K].

    Raises:
      TypeError: parameters of half precision, whose positions would be too coarse to rotate by.
    """
    for name, array in {"gate": gate, "content": content, "final": final}.items():
        angles.require_exact(name, array)
    x = x.astype(jnp.float32)
    opening = jax.nn.silu(matmul(x, gate))
    return matmul(opening * matmul(x, content), final)


@dataclasses.dataclass(frozen=True)
class RePo(Encoding):
    """Rotates q and k by positions that a network computes from the layer's input.

    `hidden` None is an eighth of the model's width, as released.
    """

    base: float = above_field(5e5, 1)
    hidden: int | None = checked(
        None, "pass an integer of at least 1, or None", lambda v: v is None or is_int(v, 1)
    )
    stddev: float = stddev_field()

    multiples = (("head_dim", 2, "it rotates pairs: use an even head width"),)

    def init_layer(self, key, dims):
        """`gate` and `content` [D, C], `final` [C, K]: keep them float32."""
        hidden = self.hidden or max(1, dims.width // 8)
        into, final = (dims.width, hidden), (hidden, dims.kv_heads)
        return normal(key, self.stddev, gate=into, content=into, final=final)

    def terms(self, params, dims):
        state = State(Places(dims.heads), params.layer, width=1)
        return (Rotation(self.rotate, self.rotate, state=state),)

    def rotate(self, _, x, positions, state):
        """R(z) x: [..., T, H or K, E] for z [..., T, H, 1]; positions are not read."""
        theta = jnp.asarray(angles.geometric(x.shape[-1], self.base), jnp.float32)
        place = align(state[..., :: state.shape[-2] // x.shape[-2], :], x)
        return turn(x, *waves(place * align(theta, place)))


@dataclasses.dataclass(frozen=True)
class Places:
    """The state of a token: z for each of `heads` query heads, [*B, T, H, 1]."""

    heads: int

    def __call__(self, arrays, x, before):
        place = places(x, **arrays)[..., None]
        return jnp.repeat(place, self.heads // place.shape[-2], axis=-2)
