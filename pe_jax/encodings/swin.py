"""Swin's relative position bias: Liu et al., "Swin Transformer", arXiv 2103.14030, §3.2, eq. 4.

    score = q·k/sqrt(E) + table[h, index(dr, dc)]

    index = (dr + H - 1)(2W - 1) + dc + W - 1,      |dr| < H,  |dc| < W

for a window of H × W patches. The released code, too, takes distances as query - key, so that its
tables are ours, transposed: `table.T`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import positions as pos
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import DistanceBias
from pe_jax.numerics.arrays import align, require_array, take
from pe_jax.validation import is_int, require, require_stddev


def lookup(table: jax.Array, distance, height: int, width: int) -> jax.Array:
    """The bias of each distance: [H, *n] for a table [H, (2·height - 1)(2·width - 1)].

    Args:
      table: one row per head.
      distance: (rows, columns), query - key: integers [*n, 2].
      height: rows of the window.
      width: its columns.

    Raises:
      ValueError: a known distance outside the window (under a trace such biases are NaN); a table
        of another size; another number of axes.
      TypeError: distances that are not integers.
    """
    require_array("table", table, 2)
    for name, size in (("height", height), ("width", width)):
        require(is_int(size, 1), name, size, "pass an integer of at least 1")
    distance, sides = pos.as_positions(distance, name="distance"), np.array([height, width])
    pos.check_axes(distance, 2, "distance")
    known = pos.concrete(distance)
    if known is not None and (np.abs(known.astype(np.int64)) >= sides).any():
        worst = known[(np.abs(known.astype(np.int64)) >= sides).any(-1)][0].tolist()
        fix = f"keep |distance| below ({height}, {width}) or enlarge the window"
        raise ValueError(f"distance: {worst} is outside the {height} × {width} window; {fix}")
    sides = align(jnp.asarray(sides, jnp.int32), distance)
    inside = ((distance > -sides) & (distance < sides)).all(-1)
    near = jnp.clip(distance, 1 - sides, sides - 1) + (sides - 1)
    index = near[..., 0] * (2 * width - 1) + near[..., 1]
    rows = (2 * height - 1) * (2 * width - 1)
    return jnp.where(inside, take(table, index, 1, rows), jnp.nan)


@dataclasses.dataclass(frozen=True)
class Swin(Encoding):
    """One scalar per head and distance on a window of `height` × `width`, in every layer."""

    height: int = 7
    width: int = 7
    stddev: float = 0.02

    claims = Claims(axes=2)

    def __post_init__(self):
        for field in ("height", "width"):
            value = getattr(self, field)
            require(is_int(value, 1), field, value, "pass an integer of at least 1")
        require_stddev(self.stddev)

    def init_layer(self, key, dims):
        """Table [H, (2·height - 1)(2·width - 1)]."""
        shape = (dims.heads, (2 * self.height - 1) * (2 * self.width - 1))
        return {"table": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def terms(self, params, dims):
        return (DistanceBias(self.lookup, params.layer["table"]),)

    def lookup(self, table, distance):
        """table[h, index(dr, dc)]: [H, *n]."""
        return lookup(table, distance, self.height, self.width)

    def limit(self):
        return min(self.height, self.width)
