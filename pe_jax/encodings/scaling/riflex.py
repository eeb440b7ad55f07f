"""RIFLEx: Zhao et al., "RIFLEx", arXiv 2502.15894, eq. 7–8, for videos longer than trained on.

    θ'_k = min(θ_k, 0.9·2π/(L₀·s)),      k = argmin_i |N_i - N|,      N_i = 2π/θ_i

A longer video repeats itself after about N frames, near the period N_k of one of the frequencies,
the intrinsic one. It is slowed down until L₀·s frames are less than one period; the others stay.
The 0.9, and the rounding of periods before they are compared, are the authors' code's
(thu-ml/RIFLEx). N is observed in samples, and is not L₀: HunyuanVideo, trained on 33 latent frames,
repeats after about 48, so that of its 8 frequencies (base 256) k = 4, of period 50.

A video's other axes stay: `rope_nd(scaling=(riflex(…), None, None))`, where time is the first.
Frequencies are counted from 1; L₀ and N are in latent frames, as positions are.
"""

import dataclasses
import math

import numpy as np

from pe_jax.config_fields import REQUIRED, above_field, checked, int_field
from pe_jax.encodings.scaling.base import Scaling
from pe_jax.validation import is_int, is_real, require


@dataclasses.dataclass(frozen=True)
class RIFLEx(Scaling):
    """The `intrinsic`-th frequency (from 1) is lowered to turn `margin` times in L₀·`factor`.

    With `repetition` instead, it is the one whose period is nearest to that number of frames.
    """

    factor: float = above_field(REQUIRED, 0)
    original_length: int = int_field(REQUIRED, 1)
    intrinsic: int | None = None
    repetition: int | None = None
    margin: float = checked(0.9, "pass a number in (0, 1]", lambda v: is_real(v) and 0 < v <= 1)

    def __post_init__(self):
        exactly_one = (self.intrinsic is None) != (self.repetition is None)
        fix = f"pass this or repetition (it is {self.repetition!r}), not both"
        require(exactly_one, "intrinsic", self.intrinsic, fix)
        ok, fix = (
            self.repetition is None or is_int(self.repetition, 1),
            "pass an integer of at least 1",
        )
        require(ok, "repetition", self.repetition, fix)
        ok = self.intrinsic is None or is_int(self.intrinsic, 1)
        require(ok, "intrinsic", self.intrinsic, "pass which frequency: 1 is the fastest")

    def __call__(self, theta, base=None):
        """θ with θ_k at most margin·2π/(L₀·s)."""
        theta = np.array(theta, np.float64)
        k = self.intrinsic
        if k is None:
            gaps = np.abs(np.round(2 * math.pi / theta) - (self.repetition or 0))
            k = 1 + int(np.argmin(gaps))
        require(k <= theta.size, "intrinsic", k, f"there are {theta.size} frequencies")
        longest = self.original_length * self.factor
        theta[k - 1] = min(theta[k - 1], self.margin * 2 * math.pi / longest)
        return theta
