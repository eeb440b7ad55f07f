"""YaRN: Peng et al., arXiv 2309.00071, §3.2 ("NTK-by-parts") and §3.4.

    θ'_i = (1 - ramp_i)·θ_i + ramp_i·θ_i/s,      q and k each × (0.1·ln s + 1)

The ramp goes from 0 at the channel c(β_fast) to 1 at c(β_slow), where the wave of channel c(r)
turns r times within the original context L₀:

    c(r) = d·ln(L₀/(2πr))/(2·ln base)

The paper's ramp is linear in r; this one, linear in the channel, is that of the authors' code.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from pe_jax.config_fields import REQUIRED, above_field, flag_field, int_field
from pe_jax.encodings.scaling.base import Scaling, require_factor
from pe_jax.validation import is_real, require


@dataclasses.dataclass(frozen=True)
class YaRN(Scaling):
    """NTK by parts: waves that turn often within `original_length` stay, slow ones are divided.

    Between `beta_fast` and `beta_slow` turns lies a ramp over the channels, from whole channel to
    whole channel if `truncate`. `attention_factor` None is the paper's 0.1·ln s + 1; with both
    `mscale` and `mscale_all_dim` (DeepSeek), the ratio of those with 0.1·mscale in place of 0.1.
    DeepSeek's models also multiply the scale of their scores, which is not part of RoPE.
    `dataclasses.replace` keeps the attention factor: pass None to compute it again.
    """

    factor: float = above_field(REQUIRED, 0)
    original_length: int = int_field(REQUIRED, 1)
    beta_fast: float = above_field(32.0, 0)
    beta_slow: float = above_field(1.0, 0)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = flag_field(True)
    attention_factor: Any = None

    def __post_init__(self):
        fix = f"must be at least beta_slow={self.beta_slow!r}"
        require(self.beta_fast >= self.beta_slow, "beta_fast", self.beta_fast, fix)
        for field in ("mscale", "mscale_all_dim"):
            value = getattr(self, field)
            ok = value is None or (is_real(value) and value >= 0)
            require(ok, field, value, "pass a number of at least 0, or None")
        if self.attention_factor is None:
            both = self.mscale and self.mscale_all_dim
            over, under = (self.mscale, self.mscale_all_dim) if both else (1.0, 0.0)
            log = math.log(max(self.factor, 1.0))
            ratio = (0.1 * over * log + 1) / (0.1 * under * log + 1)  # pyright: ignore
            object.__setattr__(self, "attention_factor", ratio)
        require_factor(self.attention_factor)

    def __call__(self, theta, base=None):
        """(1 - ramp)·θ + ramp·θ/s. Without `base`, it is read off the frequencies."""
        theta = np.asarray(theta, np.float64)
        dim = 2 * theta.size
        fix = "pass it: one frequency does not determine the base"
        require(dim > 2 or base is not None, "base", base, fix)
        log_base = -dim / 2 * math.log(theta[1]) if base is None else math.log(base)

        def channel(turns: float) -> float:
            """The i whose wave turns `turns` times within the original length."""
            return dim * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * log_base)

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)  # sic: not d/2 - 1
        high += 0.001 * (low == high)
        ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
        return (1 - ramp) * theta + ramp * theta / self.factor
