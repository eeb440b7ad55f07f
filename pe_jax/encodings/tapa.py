"""TAPA: Wang et al., "Token-Aware Phase Attention", arXiv 2509.12635, eq. 12.

    score_mn = q_A·k_A/sqrt(θE) · cos(2π |m - n|^α q_P·k_P/sqrt((1-θ)E))

The first θE channels of q and k are an amplitude, the others a phase: what two tokens say, and not
only how far apart they are, sets how their product oscillates with the distance. The mean score of
random tokens vanishes as they get farther apart (Theorem 3.2), while single scores do not; with
RoPE it goes on to depend on the distance. No parameters: phases are channels of q and k.

The score is even in the distance, so that before and after differ by a causal mask alone. It takes
two products of q and k in the place of one. The paper trains with α = 0.1,
θ = 0.5 and a fifth of RoPE's learning rate.
"""

import dataclasses

from pe_jax.config_fields import above_field, checked
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import PhaseProduct, Scale
from pe_jax.validation import is_real, require


@dataclasses.dataclass(frozen=True)
class TAPA(Encoding):
    """Multiplies a part of q·k by the cosine of the other part times a power of the distance.

    `fraction` is θ, the part of a head that is the amplitude; `power` is α.
    """

    fraction: float = checked(
        0.5, "pass a number between 0 and 1", lambda v: is_real(v) and 0 < v < 1
    )
    power: float = above_field(0.1, 0)

    claims = Claims(real_positions=True)

    def check(self, dims):
        """Both parts must be whole channels, at least one."""
        self._amplitude(dims.head_dim)

    def _amplitude(self, head_dim: int) -> int:
        size = round(head_dim * self.fraction, 6)
        fix = f"it is {size:g} of {head_dim} channels; choose one that is a whole number"
        require(size == int(size) and size > 0, "fraction", self.fraction, fix)
        return int(size)

    def terms(self, params, dims):
        amplitude = self._amplitude(dims.head_dim)
        return (PhaseProduct(amplitude, self.power), Scale(amplitude**-0.5))
