"""Stick-breaking attention: Tan et al., "Scaling Stick-Breaking Attention", arXiv 2410.17980.

    β_ij = sigmoid(q_i·k_j/sqrt(E))                     what key j takes of what is left
    weight_ij = β_ij Π_{l = j+1 … i-1} (1 - β_il)       the nearest key takes first

No softmax: the weights of a query add up to 1 less what no key has taken. In logarithms,

    log weight_ij = s_ij - Σ_{l = j … i-1} ln(1 + exp s_il),    s = q·k/sqrt(E)

which is a bias summed along the row, with weights that are not normalized. As in the paper a query
does not see itself, so that the first token's output is zero; with `attend_current` it does. Keys
count in the order of the array, and masked keys take nothing. In a sum of encodings, other biases
multiply the weights after the stick is broken.
"""

import dataclasses

import jax

from pe_jax.config_fields import flag_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import Mask, RowSum, Unnormalized
from pe_jax.numerics.gates import log_sigmoid


@dataclasses.dataclass(frozen=True)
class StickBreaking(Encoding):
    """Each key takes a part of what nearer keys have left; there is no softmax."""

    attend_current: bool = flag_field(False)

    def terms(self, params, dims):
        shares = RowSum(log_left, log_stick, own=True, decays=True)
        masks = () if self.attend_current else (Mask(hide_itself, of_index=True),)
        return (shares, Unnormalized(), *masks)


def log_left(products: jax.Array) -> jax.Array:
    """log(1 - sigmoid(s)), what a key leaves."""
    return log_sigmoid(-products)


def log_stick(_, sums: jax.Array) -> jax.Array:
    """The log of what a key and all nearer ones leave; plus s, of what the key takes."""
    return sums


def hide_itself(_, q, k) -> jax.Array:
    """All pairs but those of a token and itself: bool [B or 1, T, S]."""
    return q.index[:, :, None] != k.index[:, None]
