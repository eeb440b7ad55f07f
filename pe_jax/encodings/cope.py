"""CoPE, contextual position encoding: Golovneva et al., arXiv 2405.18719.

    g_ij = sigmoid(q_i·k_j)                             does token i count token j?
    p_ij = Σ_{l = j … i} g_il                           how many it counts from j to itself
    score_ij = q_i·(k_j + e[p_ij])                      e[p] between e[⌊p⌋] and e[⌈p⌉]

q is divided by sqrt(E) throughout, as in the authors' code (their listing leaves q·e undivided).
Positions stop at the last vector: a tile in which every query has counted that far has one bias per
row and computes no gates. The score has a kink where a position is whole, so its gradient with
respect to the gates jumps there. Keys are counted in the order of the array; masked keys are not.
The paper is causal; without a causal mask a key's position counts all keys from it to the end.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import int_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import RowSum
from pe_jax.encodings.terms.rows import interpolate
from pe_jax.numerics.products import einsum


@dataclasses.dataclass(frozen=True)
class CoPE(Encoding):
    """Adds q·e[p], p being how many keys the gates count: `positions` vectors e for all heads."""

    positions: int = int_field(64, 1)

    def init_layer(self, key, dims):
        """The vectors [P, E], zeros as in the authors' code."""
        return {"vectors": jnp.zeros((self.positions, dims.head_dim), jnp.float32)}

    def terms(self, params, dims):
        last, vectors = float(self.positions - 1), params.layer["vectors"][None]
        counted = {"numbers": products, "arrays": vectors, "own": True, "limit": last}
        return (RowSum(jax.nn.sigmoid, interpolate, **counted),)


def products(vectors: jax.Array, q: jax.Array) -> jax.Array:
    """Each query's products with all vectors [1, P, E]: [B, H, T, P] for q [B, H, T, E]."""
    return einsum("bhte,pe->bhtp", q, vectors[0])
