"""Inkling's relative logits: Thinking Machines, 2026; `inkling` and `inkling2` in transformers.

    r_i = W x_i;    score_ij = τ_i·(scale·q_i·k_j + r_i·P[:, i - j])    for 0 ≤ i - j < extent
    τ_i = 1 + a·ln(max((i + 1)/floor, 1))

Farther keys have no bias. x is the layer's input; W gives each head C numbers, and the heads of a
layer share P [C, extent]. As in the released code of both versions:
https://github.com/huggingface/transformers/tree/v5.23.0/src/transformers/models/inkling

* Inkling: q and k are RMS-normed per head and multiplied by 1/E, not 1/sqrt(E): set `qk_norm`
  of the model and `scale` of `attention`. Sliding layers have extent = window and no `floor`.
* Inkling 2: no norms; q, k and r are scaled down to at most `clip_qk` = 512^½ and `clip_states` =
  8, and each query has a sink: `inkling(clip_qk=…,clip_states=8.0)+sink(from_input=True)`. Its
  learned scales of q and r are factors of the projections.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import checked, int_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import RelativeState, Rotation, State
from pe_jax.numerics.arrays import align, take
from pe_jax.numerics.products import einsum
from pe_jax.validation import is_int, is_real, require


def log_scale(positions, floor: int, attn_scale: float = 0.1) -> jax.Array:
    """τ = 1 + a·ln(max((position + 1)/floor, 1)): float32, the shape of `positions`."""
    count = jnp.asarray(positions).astype(jnp.float32) + 1
    return 1 + attn_scale * jnp.log(jnp.maximum(count / floor, 1.0))


def clip_norm(x: jax.Array, most: float | None) -> jax.Array:
    """Vectors [..., E] scaled down to an L2 norm of at most `most` (None: as they are)."""
    if most is None:
        return x
    wide = x.astype(jnp.float32)
    # the norm of zeros has no gradient; the released code's 1e-6 keeps clipped norms just below
    squares = jnp.maximum(jnp.square(wide).sum(-1, keepdims=True), 1e-30)
    return (wide * jnp.minimum(most / (jnp.sqrt(squares) + 1e-6), 1)).astype(x.dtype)


def profile(profiles: jax.Array, distance: jax.Array) -> jax.Array:
    """The profiles [C, extent] at distances [*n], zeros outside: float32 [1, *n, C]."""
    extent = profiles.shape[1]
    rows = jnp.moveaxis(take(profiles, jnp.clip(distance, 0, extent - 1), 1), 0, -1)
    inside = (distance >= 0) & (distance < extent)
    return jnp.where(inside[..., None], rows, 0)[None]


@dataclasses.dataclass(frozen=True)
class Inkling(Encoding):
    """A bias by distance: each token mixes the layer's profiles, with weights from its input.

    Attributes:
      extent: distances below it have a bias.
      width: C, how many profiles.
      floor: position from which scores grow with the logarithm; None: they do not.
      attn_scale: a.
      clip_states: largest L2 norm of r; None: unbounded.
      clip_qk: largest L2 norm of each query and key.
    """

    extent: int = int_field(1024, 1)
    width: int = int_field(16, 1)
    floor: int | None = None
    attn_scale: float = checked(0.1, "pass a finite number", is_real)
    clip_states: float | None = None
    clip_qk: float | None = None

    def __post_init__(self):
        fix = "pass an integer of at least 1, in tokens, or None"
        require(self.floor is None or is_int(self.floor, 1), "floor", self.floor, fix)
        for name in ("clip_states", "clip_qk"):
            value = getattr(self, name)
            ok = value is None or (is_real(value) and value > 0)
            require(ok, name, value, "pass a positive number, or None")

    @property
    def claims(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """With a floor, scores depend on absolute positions."""
        return Claims(one_sided=True, absolute_rotation=self.floor is not None)

    def init_layer(self, key, dims):
        """W [D, H, C], which keeps the variance of x, and small profiles [C, extent]."""
        weight, profiles = jax.random.split(key)
        shape = (dims.width, dims.heads, self.width)
        return {
            "weight": dims.width**-0.5 * jax.random.normal(weight, shape, jnp.float32),
            "profiles": 0.02 * jax.random.normal(profiles, (self.width, self.extent), jnp.float32),
        }

    def terms(self, params, dims):
        arrays, of = params.layer["weight"], "x" if self.floor is None else "both"
        state = State(self.mix, arrays, width=self.width, of=of)
        horizon = (-1, self.extent)
        bias = RelativeState(profile, params.layer["profiles"], state=state, horizon=horizon)
        clips = self.clip_qk is not None
        queries = self.queries if clips or self.floor is not None else None
        keys = self.keys if clips else None
        return (bias,) if queries is None else (bias, Rotation(queries, keys))

    def mix(self, weight, x, positions):
        """τ·r [*B, T, H, C]."""
        r = einsum("...d,dhc->...hc", x.astype(jnp.float32), weight)
        return self.sharpen(clip_norm(r, self.clip_states), positions)

    def queries(self, _, q, positions):
        """q clipped, then times τ."""
        return self.sharpen(clip_norm(q, self.clip_qk), positions)

    def keys(self, _, k, positions):
        """k clipped."""
        return clip_norm(k, self.clip_qk)

    def sharpen(self, x, positions):
        """τ·x for x [*B, T, H, n]."""
        if self.floor is None:
            return x
        factor = log_scale(positions, self.floor, self.attn_scale)
        return (x.astype(jnp.float32) * align(factor[..., None, None], x)).astype(x.dtype)
