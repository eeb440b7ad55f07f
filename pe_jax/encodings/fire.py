"""FIRE: Li et al., "Functional Interpolation for Relative Positions", arXiv 2310.04418.

    b(i, j) = f(ψ(|i - j|) / (ψ(max(|L|, i)) + ε)),    ψ(x) = ln(|c|·x + 1),    ε = 1e-6

f is a perceptron from one number to the H heads, through `width` ReLU units; c and the threshold L
are learned. As i ≥ |i - j| under a causal mask, f sees [0, 1] only, at any length. L is a constant,
`length`, times a learned multiplier that begins at 1 (the code in the paper's appendix). Each layer
has its own parameters; with `shared`, all layers share one set (the paper's FIRE-S).

The absolute values make both logarithms finite whatever is learned; a key to the right (no causal
mask) counts by its |distance|, as in the authors' code. Weights begin uniform in ±1/sqrt(fan-in).
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import checked, flag_field, int_field
from pe_jax.encodings.base import Claims, Shareable
from pe_jax.encodings.terms import PairBias
from pe_jax.numerics.arrays import align
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.validation import is_real

EPSILON = 1e-6


def interpolate(q_pos, k_pos, c, threshold) -> jax.Array:
    """ψ(|i - j|)/(ψ(max(|L|, i)) + ε): float32 [*B, T, S], in [0, 1] where 0 ≤ j ≤ i.

    Args:
      q_pos: positions i of the queries, integer or float32 [*B, T].
      k_pos: positions j of the keys [*B, S].
      c: scale of the logarithm, a scalar; its sign has no effect.
      threshold: L, a scalar; its sign has no effect. Rows before it are normalised as row L.

    Raises:
      TypeError: half-precision positions.
    """
    q_pos, k_pos = (as_positions(x, real=True) for x in (q_pos, k_pos))
    distance = jnp.abs(q_pos[..., :, None] - k_pos[..., None, :]).astype(jnp.float32)
    longest = jnp.maximum(q_pos.astype(jnp.float32), jnp.abs(threshold))
    whole = jnp.log1p(jnp.abs(c) * longest) + EPSILON
    return jnp.log1p(jnp.abs(c) * distance) / whole[..., None]


@dataclasses.dataclass(frozen=True)
class FIRE(Shareable):
    """A learned function of the distance, normalised by the query's position."""

    width: int = int_field(32, 1)
    c: float = checked(0.1, "pass a positive number", lambda v: is_real(v) and v > 0)
    length: float = checked(512.0, "pass a positive number", lambda v: is_real(v) and v > 0)
    shared: bool = flag_field(False)

    claims = Claims(real_positions=True)

    def _init(self, key, dims):
        """c and the multiplier of L; w1, b1 [width]; w2 [width, H], b2 [H]."""

        def uniform(key, fan_in, *shape):
            return jax.random.uniform(key, shape, jnp.float32, -1, 1) * fan_in**-0.5

        keys, width = jax.random.split(key, 4), self.width
        return {
            "c": jnp.float32(self.c),
            "multiplier": jnp.float32(1),
            "w1": uniform(keys[0], 1, width),
            "b1": uniform(keys[1], 1, width),
            "w2": uniform(keys[2], width, width, dims.heads),
            "b2": uniform(keys[3], width, dims.heads),
        }

    def terms(self, params, dims):
        return (PairBias(self.bias, self.arrays(params)),)

    def bias(self, arrays, q_pos, k_pos):
        """f(ψ(|i - j|)/ψ(max(L, i))): float32 [*B, H, T, S]."""
        x = interpolate(q_pos, k_pos, arrays["c"], arrays["multiplier"] * self.length)
        x = x[..., None]
        hidden = jax.nn.relu(x * align(arrays["w1"], x) + align(arrays["b1"], x))
        exact = jax.lax.Precision.HIGHEST
        out = jnp.einsum("...tsw,wh->...hts", hidden, arrays["w2"], precision=exact)
        return out + align(arrays["b2"][:, None, None], out)
