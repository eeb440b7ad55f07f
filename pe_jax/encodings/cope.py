"""CoPE, contextual position encoding: Golovneva et al., arXiv 2405.18719.

    g_ij = sigmoid(q_i·k_j)                             does token i count token j?
    p_ij = Σ_{l = j … i} g_il                           how many it counts from j to itself
    score_ij = q_i·(k_j + e[p_ij])                      e[p] between e[⌊p⌋] and e[⌈p⌉]

q is divided by sqrt(E) throughout, as in the authors' code (their listing leaves q·e undivided).
Positions stop at the last vector. They are sums over a whole row, so no engine can work in tiles:
O(L²) memory. Keys are counted in the order of the array; masked keys are not counted. The paper is
causal; without a causal mask a key's position counts all keys from it to the end.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import RowRescore
from pe_jax.validation import is_int, require


def positions(gates: jax.Array, count: int) -> jax.Array:
    """How many keys each query counts from each key on, at most count - 1: [..., T, S].

    Args:
      gates: float32 [..., T, S] within [0, 1], 0 where a key is hidden.
      count: how many vectors there are.
    """
    counted = jax.lax.cumsum(gates, axis=gates.ndim - 1, reverse=True)
    return jnp.minimum(counted, count - 1)


def interpolate(values: jax.Array, places: jax.Array) -> jax.Array:
    """`values` at fractional indices, linear in between: [..., T, S].

    Args:
      values: float32 [..., T, P].
      places: float32 [..., T, S] within [0, P - 1].
    """
    whole = jnp.floor(places)
    low = whole.astype(jnp.int32)
    high = jnp.minimum(low + 1, values.shape[-1] - 1)
    below, above = (jnp.take_along_axis(values, at, axis=-1) for at in (low, high))
    share = places - whole
    return (1 - share) * below + share * above


@dataclasses.dataclass(frozen=True)
class CoPE(Encoding):
    """Adds q·e[p], p being how many keys the gates count: `positions` vectors e for all heads."""

    positions: int = 64

    def __post_init__(self):
        fix = "pass an integer of at least 1"
        require(is_int(self.positions, 1), "positions", self.positions, fix)

    def init_layer(self, key, dims):
        """The vectors [P, E], zeros as in the authors' code."""
        return {"vectors": jnp.zeros((self.positions, dims.head_dim), jnp.float32)}

    def terms(self, params, dims):
        return (RowRescore(self.count, params.layer["vectors"]),)

    def count(self, vectors, scores, bias, q, seen):
        """q·e[p]: float32 [B, H, T, S]."""
        places = positions(jnp.where(seen, jax.nn.sigmoid(scores), 0), self.positions)
        exact = jax.lax.Precision.HIGHEST
        values = jnp.einsum("bhte,pe->bhtp", q, vectors, precision=exact)
        return interpolate(values, places)
