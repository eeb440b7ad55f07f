"""LongRoPE: Ding et al., arXiv 2402.13753, §3.1 (eq. 3), as Phi-3 ships it.

    θ'_i = θ_i / factor_i,      q and k each × sqrt(1 + ln s/ln L₀)

The factors were found by search (§3.2): one list for contexts up to the original length L₀, one
beyond (§3.3). The paper may leave the first tokens of a sequence unscaled; Phi-3's released code,
which the second formula is from, does not.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import REQUIRED, checked, int_field
from pe_jax.encodings.scaling.base import Scaling, length_field, require_factor, with_length
from pe_jax.numerics.arrays import align
from pe_jax.validation import is_real, require

FACTORS = "pass a list of numbers above 0, one per frequency"


def is_factors(value: Any) -> bool:
    """Whether these are numbers above 0, at least one."""
    ok = isinstance(value, tuple) and len(value) > 0
    return ok and all(is_real(x) and x > 0 for x in value)


@dataclasses.dataclass(frozen=True)
class LongRoPE(Scaling):
    """A factor for each frequency: `short_factor` up to `original_length`, `long_factor` beyond.

    `length` (None: short) decides. `attention_factor` None is sqrt(1 + ln s/ln L₀) at all lengths,
    s = `factor` being the extended context over the original one; s ≤ 1 gives 1. It is computed
    when the scaling is made: `dataclasses.replace` keeps it; pass None to compute it again. With
    `attention_factors`, two numbers (Phi-3.5-MoE's `short_mscale` and `long_mscale`), it is the
    first up to `original_length`, the second beyond.
    """

    short_factor: tuple[float, ...] = checked(REQUIRED, FACTORS, is_factors)
    long_factor: tuple[float, ...] = checked(REQUIRED, FACTORS, is_factors)
    original_length: int = int_field(REQUIRED, 2)
    length: int | None = length_field()
    factor: float | None = None
    attention_factor: Any = None
    attention_factors: tuple[float, float] | None = None

    def __post_init__(self):
        if self.attention_factors is not None:
            pair, fix = self.attention_factors, "pass two: up to the original length, and beyond"
            require(is_factors(pair) and len(pair) == 2, "attention_factors", pair, fix)
            given, fix = self.attention_factor, f"leave it out: attention_factors={pair!r} has it"
            require(given is None or given in pair, "attention_factor", given, fix)
            object.__setattr__(self, "attention_factor", pair[self._beyond])
        elif self.attention_factor is None:
            factor: Any = self.factor
            ok = is_real(factor) and factor > 0
            fix = "pass the extended context over the original one, or an attention_factor"
            require(ok, "factor", factor, fix)
            log = math.log(max(factor, 1))
            attention_factor = math.sqrt(1 + log / math.log(self.original_length))
            object.__setattr__(self, "attention_factor", attention_factor)
        require_factor(self.attention_factor)

    def __call__(self, theta, base=None):
        """θ_i / factor_i."""
        short, long = self._both(theta)
        return long if self._beyond else short

    @property
    def _beyond(self) -> bool:
        return self.length is not None and self.length > self.original_length

    def _both(self, theta: np.ndarray) -> list[np.ndarray]:
        """The frequencies up to the original length, and those beyond it."""
        theta, scaled = np.asarray(theta, np.float64), []
        for field in ("short_factor", "long_factor"):
            count = len(getattr(self, field))
            fix = f"{theta.size} frequencies are rotated; pass a factor for each"
            require(count == theta.size, f"len({field})", count, fix)
            scaled.append(theta / np.asarray(getattr(self, field), np.float64))
        return scaled

    def of_lengths(self, theta, lengths):
        """One of the two lists for each length."""
        beyond = lengths[..., None] > self.original_length
        short, long = (align(jnp.asarray(x, jnp.float32), beyond) for x in self._both(theta))
        return jnp.where(beyond, long, short)

    def factors(self, lengths):
        """One factor, or one of the two for each length."""
        if self.attention_factors is None:
            return self.attention_factor
        short, long = np.asarray(self.attention_factors, np.float32)
        return jnp.where(lengths > self.original_length, long, short)

    at_length = with_length

    def valid_length(self):
        """L₀ for a `length` up to it, None (all positions) for one beyond; 0 without a length."""
        if self.length is None:
            return 0
        return self.original_length if self.length <= self.original_length else None
