"""Products whose amplitude is a cosine of another product in the GPU kernels: TAPA.

    s_ij = a_ij·cos(φ_ij),    φ_ij = size·|i - j|^power·p_ij

a is the product of the first channels of q and k, p that of the others, which kernels read as
factors. Both are products of matrices; only the cosine is of pairs (numerics/turns.py).
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.numerics.turns import cosine_of, part, sine_of


@dataclasses.dataclass(frozen=True)
class Phase:
    """The static part of a `PhaseProduct`."""

    amplitude: int  # channels of the amplitude
    power: float
    size: float

    @classmethod
    def of(cls, term: Any, width: int) -> "Phase":
        """That of a term, for heads of this width."""
        return cls(term.amplitude, term.power, term.size(width))


class Wave(NamedTuple):
    """A tile's product; pairs are [owned, visited]."""

    product: Any
    amplitude: Any
    slope: Any  # of the angle, by p
    turn: Any  # the angle, in turns from -1/2 to 1/2
    cosine: Any


def evaluate(tile: Any, amplitude: jax.Array) -> Wave:
    """The product of a tile, from that of the first channels."""
    phase = tile.plan.phase
    slope = phase.size * jnp.abs(tile.distance()).astype(jnp.float32) ** phase.power
    turns = slope / math.tau * tile.factors_product()
    turn = part(turns)
    cosine = cosine_of(turn)
    return Wave(amplitude * cosine, amplitude, slope, turn, cosine)


def gradients(tile: Any, of: Wave, d_s: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of the scores by the amplitude, and of p, from that of the scores."""
    d_product = d_s * of.amplitude * sine_of(of.turn) * of.slope * -tile.plan.scale
    return d_s * of.cosine, d_product
