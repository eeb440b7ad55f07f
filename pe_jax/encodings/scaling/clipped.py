"""Clipped RoPE: Li et al., arXiv 2602.05258, who call it CoPE (here `cope` is Golovneva's).

    θ'_i = θ_i · ½·(1 + cos(π·j/(n - 1))),      j = 0 … n - 1 for the n slowest θ_i, in order

Waves that do not turn once within the context L₀ of training show angles that were never seen when
positions go beyond it. They are slowed down, the slowest to a stop, by half a cosine: a sharp cut
(`hard`: θ'_i = 0 for all n) leaves sidelobes in the score as a function of the distance.
"""

import dataclasses
import math

import numpy as np

from pe_jax.config_fields import flag_field
from pe_jax.encodings.scaling.base import Scaling
from pe_jax.validation import is_int, require


@dataclasses.dataclass(frozen=True)
class ClippedRoPE(Scaling):
    """The `slowest` n frequencies are tapered to 0, the others stay; with `hard`, all n are 0.

    `slowest` None: those whose period 2π/θ exceeds `original_length`. The authors' code
    (hrlics/CoPE) has 20 of 64 for Llama 3 8B, trained at 8,192 tokens, where 29 do. As there, a
    single frequency is not tapered.
    """

    slowest: int | None = None
    original_length: int | None = None
    hard: bool = flag_field(False)

    def __post_init__(self):
        exactly_one = (self.slowest is None) != (self.original_length is None)
        fix = f"pass this or original_length (it is {self.original_length!r}), not both"
        require(exactly_one, "slowest", self.slowest, fix)
        ok, fix = is_int(self.original_length, 1), "pass an integer of at least 1"
        require(ok or self.slowest is not None, "original_length", self.original_length, fix)
        ok = self.slowest is None or is_int(self.slowest, 0)
        require(ok, "slowest", self.slowest, "pass a number of frequencies, 0 or more")

    def __call__(self, theta, base=None):
        """θ · ½(1 + cos) of the slowest n, or 0."""
        theta = np.array(theta, np.float64)
        if self.original_length is None:
            count = min(self.slowest or 0, theta.size)
        else:
            count = int((2 * math.pi / theta > self.original_length).sum())
        taper = 0.5 * (1 + np.cos(np.linspace(0, math.pi, count)))
        theta[theta.size - count :] *= np.zeros(count) if self.hard else taper
        return theta
