"""Products whose amplitude is a cosine of another product in the GPU kernels: TAPA.

    s_ij = a_ij·cos(φ_ij),    φ_ij = size·|i - j|^power·p_ij

a is the product of the first channels of q and k, p that of the others, which kernels read as
factors. Both are products of matrices; only the cosine is of pairs. The angle is in turns, so that
its whole turns are taken off exactly; what is left is summed by its power series, within 10⁻⁶.
Triton's own cosine reduces any angle, in ten times as many instructions.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


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


TERMS = 9
COSINE, SINE = (
    [(-1) ** n * math.tau ** (2 * n + odd) / math.factorial(2 * n + odd) for n in range(TERMS)]
    for odd in (0, 1)
)


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
    turn = turns - jnp.floor(turns + 0.5)
    cosine = _series(COSINE, turn * turn)
    return Wave(amplitude * cosine, amplitude, slope, turn, cosine)


def gradients(tile: Any, of: Wave, d_s: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of the scores by the amplitude, and of p, from that of the scores."""
    sine = of.turn * _series(SINE, of.turn * of.turn)
    return d_s * of.cosine, d_s * of.amplitude * sine * of.slope * -tile.plan.scale


def _series(numbers: list[float], x: jax.Array) -> jax.Array:
    """Σ_n numbers_n x^n."""
    total = jnp.full(x.shape, numbers[-1], jnp.float32)
    for number in numbers[-2::-1]:
        total = total * x + number
    return total
