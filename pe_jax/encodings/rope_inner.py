"""RoPE over all heads at once: LTX-Video (HaCohen et al., arXiv 2501.00103) and LTX-2, as released.

    angle_c = (π/2)·base^(j/(n - 1)) · position[a]     for pair c = p + A·j + a of all K·E/2 pairs

One series of n frequencies for each of A axes runs over the whole width, and the heads are cut from
it: each has frequencies of its own, the first the slowest, of all axes in turn. n is as large as
fits; the p = K·E/2 - A·n pairs that are left, the first ones, do not turn.

Positions lie in [-1, 1]: 2·frame/20 - 1, 2·row/2048 - 1 and 2·column/2048 - 1 in these models,
in seconds and pixels. The fastest pair turns 5,000 times within them, and float32 positions
give its angle within 2e-3. LTX-Video pairs channels 2i and 2i + 1 ("interleaved"), LTX-2 i and
i + E/2 of a head ("half"), and its audio has the axis of time alone: `rope_inner(axes=1)`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, checked, one_of_field
from pe_jax.encodings import rope, rope_mixed
from pe_jax.encodings.base import OnAxes
from pe_jax.encodings.terms import Rotation
from pe_jax.validation import is_int, python_ints, require


@python_ints
def frequencies(heads: int, head_dim: int, axes: int = 3, base: float = 1e4) -> jax.Array:
    """Radians per unit of each axis and head, for `rope_mixed.rotate`: float32 [A, K, E/2].

    Raises:
      ValueError: an odd `head_dim`, or fewer than two pairs for each axis.
    """
    return jnp.asarray(_table(heads, head_dim, axes, base), jnp.float32)


def _table(heads: int, head_dim: int, axes: int, base: float) -> np.ndarray:
    """`frequencies` in float64, on the host."""
    pairs = heads * head_dim // 2
    require(head_dim % 2 == 0, "head_dim", head_dim, "it rotates pairs: use an even head width")
    count = pairs // axes
    fix = f"{axes} axes turn two pairs each: use at least {4 * axes} channels in all heads"
    require(count >= 2, "head_dim", head_dim, fix)
    series = np.pi / 2 * float(base) ** (np.arange(count) / (count - 1))
    table = np.zeros((axes, pairs))
    for axis in range(axes):
        table[axis, pairs - axes * count + axis :: axes] = series
    return table.reshape(axes, heads, head_dim // 2)


@dataclasses.dataclass(frozen=True)
class RoPEInner(OnAxes):
    """Rotates q and k by positions in [-1, 1] on `axes`; each key head has other frequencies.

    Query heads turn as the key head that they share.
    """

    axes: int = checked(3, "pass an integer of at least 1", lambda v: is_int(v, 1))
    base: float = above_field(1e4, 1)
    layout: str = one_of_field("interleaved", rope.LAYOUTS)

    def check(self, dims):
        """A head must be even, and all heads have two pairs for each axis."""
        _table(dims.kv_heads, dims.head_dim, self.axes, self.base)

    def terms(self, params, dims):
        table = frequencies(dims.kv_heads, dims.head_dim, self.axes, self.base)
        return (Rotation(self.rotate, self.rotate, table, heads=1),)

    def rotate(self, table, x, positions):
        """R_position x: [..., T, H, E]."""
        return rope_mixed.rotate(x, self.with_axis(positions), table, self.layout)
