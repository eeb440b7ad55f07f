"""CABLE: Veisi et al., "Context-aware Biases for Length Extrapolation", arXiv 2503.08067.

    p_t = softplus(w_h·x_t + b_h)                       a slope for each token and head
    score_ij = q_i·k_j/sqrt(E) - |Σ_{l ≤ i} p_l - Σ_{l ≤ j} p_l|

ALiBi with slopes that each token learns from its context. As log sigmoid(-z) = -softplus(z), this
is FoX (arXiv 2503.02130) with gates of the opposite sign: the two papers found the same bias. This
follows the authors' code (axiomlab/Cable), except that their q·k is not divided by sqrt(E); without
a causal mask the bias is symmetric.
"""

import dataclasses

import jax

from pe_jax.encodings.fox import FoX, project


def slopes(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """softplus(w_h·x_t + b_h) > 0: float32 [*B, T, H]; x [*B, T, D], weight [D, H], bias [H]."""
    return jax.nn.softplus(project(x, weight, bias))


@dataclasses.dataclass(frozen=True)
class CABLE(FoX):
    """Subtracts a sum of slopes that each token and head computes from the layer's input."""

    def steps(self, arrays, x):
        """Minus the slopes."""
        return -slopes(x, **arrays)
