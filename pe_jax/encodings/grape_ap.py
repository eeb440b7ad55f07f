"""GRAPE-AP, path-integral additive GRAPE: Zhang et al., arXiv 2512.07805, §5, eq. 5.1 to 5.3.

    p_t = W_h x_t                                       C numbers of each token and head
    ψ_il = slope_h·log sigmoid(p_i·R(l) p̂_l / C)        what token l costs on the way to i
    score_ij = q_i·k_j/sqrt(E) + Σ_{l = j+1 … i} ψ_il

p̂ is p divided by its root mean square, R(l) turns all pairs of channels by l radians, and the
slopes are ALiBi's. This follows the authors' code (model-architectures/GRAPE, model `grape-ap-v1`);
the paper divides p_i too. A row's sum runs from the query back, over costs that depend on the
query: unlike FoX's it is not a difference of two sums. Without a causal mask it runs from the end.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import above_field, checked, stddev_field
from pe_jax.encodings import alibi, rope
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import RowSum, State
from pe_jax.numerics.gates import log_sigmoid
from pe_jax.numerics.products import einsum
from pe_jax.validation import is_int

EPSILON = float(jnp.finfo(jnp.float32).eps)  # of the mean square, as `torch.nn.functional.rms_norm`


def turn(p: jax.Array, positions: jax.Array) -> jax.Array:
    """R(l) p̂_l: float32 [*B, T, H, C] for p [*B, T, H, C]."""
    unit = p * jax.lax.rsqrt(jnp.mean(p**2, axis=-1, keepdims=True) + EPSILON)
    # Their rotation is the inverse of RoPE's.
    return rope.rotate(unit, -positions, jnp.ones(p.shape[-1] // 2, jnp.float32))


@dataclasses.dataclass(frozen=True)
class GRAPEAP(Encoding):
    """Subtracts the costs of the tokens between, from `width` numbers per token and head.

    `bias_max` sets the slopes, as in ALiBi; the authors use 8.
    """

    width: int = checked(
        8, "pass an even number of at least 2", lambda v: is_int(v, 2) and v % 2 == 0
    )
    stddev: float = stddev_field()
    bias_max: float = above_field(8.0, 0)

    def init_layer(self, key, dims):
        """W [D, H, C]."""
        shape = (dims.width, dims.heads, self.width)
        return {"weight": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def terms(self, params, dims):
        state = State(factors, params.layer["weight"], width=2 * self.width, of="both")
        slopes = alibi.slopes(dims.heads, self.bias_max)
        more = {"numbers": per_head, "arrays": slopes, "decays": True}
        return (RowSum(log_sigmoid, multiple, state=state, **more),)


def factors(weight: jax.Array, x: jax.Array, positions: jax.Array) -> jax.Array:
    """[p_t / C ‖ R(t) p̂_t]: float32 [*B, T, H, 2C] for x [*B, T, D]."""
    p = einsum("...td,dhc->...thc", x.astype(jnp.float32), weight)
    return jnp.concatenate([p / p.shape[-1], turn(p, positions)], axis=-1)


def per_head(slopes: jax.Array, _) -> jax.Array:
    """[1, H, 1, 1] for slopes [H]."""
    return slopes[None, :, None, None]


def multiple(slopes: jax.Array, sums: jax.Array) -> jax.Array:
    """The sums times their head's slope."""
    return slopes * sums
