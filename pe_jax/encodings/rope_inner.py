"""RoPE over all heads at once: LTX-Video (HaCohen et al., arXiv 2501.00103) and LTX-2, as released.

    angle_c = position[a] · (π/size_a)·base^(j/(n - 1))     for pair c = p + A·j + a of K·E/2 pairs

One series of n frequencies for each of A axes runs over the width of all heads, and the heads are
cut from it: each has frequencies of its own, the first one the slowest, of all axes in turn. n is
as large as fits; the first p = K·E/2 - A·n pairs do not turn.

`sizes` are what positions are counted against, in these models 20 seconds and 2,048 rows and
columns of pixels; the slowest pair makes half a turn within them, the fastest 5,000. They turn by
(π/2)·(2·position/size - 1), which is this and a constant that no product sees. LTX-Video pairs
channels 2i and 2i + 1 ("interleaved"), LTX-2 i and i + E/2 of a head ("half"); its audio has the
axis of time alone:

    rope_inner                                      LTX-Video
    rope_inner(layout='half')                       LTX-2, and for its audio
    rope_inner(layout='half',sizes=(20.0,))
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, checked, one_of_field
from pe_jax.encodings import rope, rope_mixed
from pe_jax.encodings.base import OnAxes
from pe_jax.encodings.terms import Rotation
from pe_jax.validation import is_int, is_real, python_ints, require

SIZES = "pass a tuple of positive numbers, one for each axis"


@python_ints
def frequencies(
    heads: int, head_dim: int, sizes: Sequence[float] = (20.0, 2048.0, 2048.0), base: float = 1e4
) -> jax.Array:
    """Radians per unit of each axis and head, for `rope_mixed.rotate`: float32 [A, K, E/2].

    Raises:
      ValueError: an odd `head_dim`, or fewer than two pairs for each axis; a size that is not above
        0, a base ≤ 1.
    """
    return jnp.asarray(_table(heads, head_dim, sizes, base), jnp.float32)


def _table(heads: int, head_dim: int, sizes: Sequence[float], base: float) -> np.ndarray:
    """`frequencies` in float64, on the host."""
    require(is_int(heads, 1), "heads", heads, "pass an integer of at least 1")
    require(all(is_real(n) and n > 0 for n in sizes), "sizes", sizes, SIZES)
    require(is_real(base) and base > 1, "base", base, "pass a finite number above 1, such as 1e4")
    axes, pairs = len(sizes), heads * head_dim // 2
    require(head_dim % 2 == 0, "head_dim", head_dim, "it rotates pairs: use an even head width")
    fix = f"{axes} axes turn two pairs each: use at least {4 * axes} channels in all heads"
    require(pairs >= 2 * axes, "head_dim", head_dim, fix)
    count, table = pairs // axes, np.zeros((axes, pairs))
    for axis, size in enumerate(sizes):
        series = np.pi / size * float(base) ** (np.arange(count) / (count - 1))
        table[axis, pairs - axes * count + axis :: axes] = series
    return table.reshape(axes, heads, head_dim // 2)


@dataclasses.dataclass(frozen=True)
class RoPEInner(OnAxes):
    """Rotates q and k by positions on as many axes as there are `sizes`; key heads differ.

    Query heads turn as the key head that they share.
    """

    sizes: tuple[float, ...] = checked(
        (20.0, 2048.0, 2048.0),
        SIZES,
        lambda v: isinstance(v, tuple) and len(v) > 0 and all(is_real(n) and n > 0 for n in v),
    )
    base: float = above_field(1e4, 1)
    layout: str = one_of_field("interleaved", rope.LAYOUTS)

    @property
    def axes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One for each size."""
        return len(self.sizes)

    def check(self, dims):
        """A head must be even, and all heads have two pairs for each axis."""
        _table(dims.kv_heads, dims.head_dim, self.sizes, self.base)

    def terms(self, params, dims):
        table = frequencies(dims.kv_heads, dims.head_dim, self.sizes, self.base)
        return (Rotation(self.rotate, self.rotate, table, heads=1),)

    def rotate(self, table, x, positions):
        """R_position x: [..., T, H, E]."""
        return rope_mixed.rotate(x, self.with_axis(positions), table, self.layout)
