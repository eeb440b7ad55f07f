"""RoPE with learned frequencies of several axes: Heo et al., "RoPE-Mixed", arXiv 2403.13298.

    angle_i = row · θ_i^row + column · θ_i^column,    both learned for each layer, head and pair i

A pair of channels turns along any direction of the image, diagonals too; axial RoPE (`rope_2d`)
turns a pair along one axis only. Positions are indices of patches (`positions.grid`).

Frequencies begin with lengths base^(-4i/E), i < E/4, base 10, in two orthogonal directions, which
each head draws. The paper's code and timm have the column's frequencies first, the row's second:
`frequencies=theirs[::-1]`. With fewer key heads than query heads, the queries of a key head share
its frequencies, or their products would depend on more than the distance.

A scaling (`rope_scaling`) for larger images changes an axis' learned frequencies in the proportion
in which it changes base^(-4i/E), as LeRoPE's does.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, checked, one_of_field
from pe_jax.encodings import rope
from pe_jax.encodings.base import OnAxes
from pe_jax.encodings.scaling.base import Scaling, by_axis, require_within
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles
from pe_jax.numerics.arrays import require_array
from pe_jax.validation import is_int, python_ints, require


@python_ints
def initial(
    key: jax.Array, heads: int, head_dim: int, base: float = 10.0, axes: int = 2
) -> jax.Array:
    """Frequencies before training: float32 [axes, heads, head_dim/2], of rows and of columns.

    Unless there are two axes, they have length base^(-2i/E) and a random direction.

    Raises:
      ValueError: `head_dim` is not a multiple of 4 (of 2, unless `axes` is 2); `base` ≤ 1; `axes`
        is not an integer of at least 1.
    """
    require(is_int(axes, 1), "axes", axes, "pass an integer of at least 1")
    if axes != 2:
        series = jnp.asarray(angles.geometric(head_dim, base), jnp.float32)
        drawn = jax.random.normal(key, (axes, heads, head_dim // 2), jnp.float32)
        return drawn / jnp.linalg.norm(drawn, axis=0)[None] * series[None, None]
    fix = "pass a multiple of 4: pairs in two directions"
    require(head_dim % 4 == 0, "head_dim", head_dim, fix)
    lengths = jnp.asarray(angles.geometric(head_dim // 2, base), jnp.float32)
    direction = jax.random.uniform(key, (heads, 1), jnp.float32, maxval=2 * jnp.pi)
    direction = jnp.concatenate([direction, direction + jnp.pi / 2], axis=1)  # [heads, 2]
    waves = jnp.stack([jnp.sin(direction), jnp.cos(direction)])[..., None]  # row, column
    return (waves * lengths[None, None, None]).reshape(2, heads, head_dim // 2)


@python_ints
def growth(pairs: int, base: float, scalings: Sequence[Scaling | None]) -> np.ndarray:
    """What scalings multiply frequencies of a `base` by, one or None for each axis: float64 [A, F].

    Raises:
      ValueError: an odd number F of `pairs` on two axes; scalings that do not fit it, or depend on
        a length that they do not have.
    """
    directions = 2 if len(scalings) == 2 else 1  # of the series that `initial` begins with
    theta = angles.geometric(2 * pairs // directions, base)
    factors = [rope.scaled(theta, base, own) / theta for own in scalings]
    return np.tile(factors, directions)


def rotate(
    x: jax.Array,
    positions,
    frequencies: jax.Array,
    layout: str = "interleaved",
    attention_factor: float = 1.0,
) -> jax.Array:
    """Turns pair i of head h by the sum over axes of position × frequencies[axis, h, i].

    Args:
      x: [..., T, H, E].
      positions: integers or float32 [T, A] or [..., T, A], any sign.
      frequencies: float32 [A, K, F], 2F ≤ E and K a divisor of H: consecutive heads share.
      layout: "half" or "interleaved".
      attention_factor: multiplies the rotated channels: that of the scaling.

    Returns:
      The shape and dtype of x (the angles and the rotation are float32).

    Raises:
      ValueError: frequencies of other axes, heads that K does not divide, more frequencies than
        pairs, an unknown layout, what `rope.rotate` refuses of positions.
      TypeError: half-precision positions or frequencies; x or frequencies that are not arrays of
        floats.
    """
    require_array("x", x, 3)
    require_array("frequencies", frequencies, 3)
    *more, count, heads, pairs = frequencies.shape
    fix = f"x has {x.shape[-2]} heads of {x.shape[-1]} channels; pass [A, K, F]"
    ok = heads > 0 and x.shape[-2] % heads == 0 and 2 * pairs <= x.shape[-1]
    require(ok and not more, "frequencies", frequencies.shape, fix)
    require(layout in rope.LAYOUTS, "layout", layout, f"choose one of {', '.join(rope.LAYOUTS)}")
    angle = angles.angles(positions, frequencies.reshape(count, heads * pairs))
    angle = angle.reshape(*angle.shape[:-1], heads, pairs)
    angle = jnp.repeat(angle, x.shape[-2] // heads, axis=-2)
    return rope.turn(x, *rope.waves(angle, attention_factor), layout)


@dataclasses.dataclass(frozen=True)
class RoPEMixed(OnAxes):
    """Rotates q and k by learned mixtures of the axes; `base` gives initial values only.

    `scaling` (one of `rope_scaling`) is one for all axes, or one or None for each; as each pair
    turns by all axes, their attention factors must be the same.
    """

    base: float = above_field(10.0, 1)
    layout: str = one_of_field("interleaved", rope.LAYOUTS)
    axes: int = checked(2, "pass an integer of at least 2, or lerope", lambda v: is_int(v, 2))
    scaling: Scaling | tuple[Scaling | None, ...] | None = None

    def __post_init__(self):
        fix = f"their attention factors are {self._factors}; pass attention_factor=1.0 to each"
        require(len({*self._factors}) == 1, "scaling", self.scaling, fix)

    @property
    def _factors(self) -> tuple[float, ...]:
        each = by_axis(self.scaling, self.axes)
        return tuple(1.0 if own is None else own.attention_factor for own in each)

    def check(self, dims):
        """Pairs in two directions need a multiple of 4 channels, others an even number."""
        factor = 4 if self.axes == 2 else 2
        fix = f"pairs in {'two' if factor == 4 else 'any'} directions: use a multiple of {factor}"
        require(dims.head_dim % factor == 0, "head_dim", dims.head_dim, fix)
        growth(dims.head_dim // 2, self.base, by_axis(self.scaling, self.axes))

    def init_layer(self, key, dims):
        """Frequencies [A, K, E/2], of rows and of columns, for each key head: keep them float32."""
        return {"frequencies": initial(key, dims.kv_heads, dims.head_dim, self.base, self.axes)}

    def terms(self, params, dims):
        frequencies = params.layer["frequencies"]
        return (Rotation(self.rotate, self.rotate, frequencies, heads=1),)

    def rotate(self, frequencies, x, positions):
        """R_position x: [..., T, H, E]."""
        if self.scaling is not None:
            angles.require_exact("frequencies", frequencies)
            scalings = by_axis(self.scaling, self.axes)
            require_within(scalings, positions)
            factors = growth(frequencies.shape[-1], self.base, scalings)
            factors = jnp.asarray(factors[:, None], jnp.float32)
            frequencies = jnp.asarray(frequencies, jnp.float32) * factors
        return rotate(x, positions, frequencies, self.layout, self._factors[0])
