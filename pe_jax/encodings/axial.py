"""Added positions on two axes: Dosovitskiy et al., "ViT", arXiv 2010.11929, App. D.4, and MAE.

    x ← x + [rows[r] ‖ columns[c]]          learned, a half each (ViT), or the sum of two full ones
    x ← x + [sinusoid(r) ‖ sinusoid(c)]     fixed (He et al., "MAE", arXiv 2111.06377, App. A.1)

Positions are (row, column). MAE's released weights have the columns first: swap the halves of its
table. A learned table is defined at real positions between its places too, by interpolation, which
is how a table is resized to a larger image (`positions.resized`).
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax import positions as pos
from pe_jax.encodings import learned, sinusoidal
from pe_jax.encodings.base import Encoding, is_int, is_real, require

COMBINE = ("concatenate", "sum")


def sinusoid_2d(positions, dim: int, base: float = 1e4, layout: str = "concatenated") -> jax.Array:
    """`sinusoidal.sinusoid` of each axis, side by side: float32 [..., dim] for [..., A].

    Args:
      positions: integers or float32 [..., A].
      dim: channels, a multiple of 2A.
      base: > 1.
      layout: within each axis; "concatenated" is MAE's: sin ‖ cos of the rows, then of the columns.

    Raises:
      ValueError: `dim` that leaves an axis an odd number of channels, and what `sinusoid` raises.
      TypeError: half-precision positions.
    """
    positions = pos.as_positions(positions, real=True)
    axes = positions.shape[-1]
    require(dim % (2 * axes) == 0, "dim", dim, f"pass a multiple of {2 * axes}")
    tables = [
        sinusoidal.sinusoid(positions[..., a], dim // axes, base, layout) for a in range(axes)
    ]
    return jnp.concatenate(tables, axis=-1)


def between(table: jax.Array, positions) -> jax.Array:
    """`learned.lookup`, at float32 positions linear between two rows: [..., D] for a table [L, D].

    Raises:
      ValueError: a known position outside [0, L - 1]. Under a trace such rows are NaN.
      TypeError: half-precision positions.
    """
    positions = pos.as_positions(positions, real=True)
    if jnp.issubdtype(positions.dtype, jnp.integer):
        return learned.lookup(table, positions)
    below, above = (f(positions).astype(jnp.int32) for f in (jnp.floor, jnp.ceil))
    low, high = learned.lookup(table, below), learned.lookup(table, above)
    return low + (positions - below)[..., None] * (high - low)


@dataclasses.dataclass(frozen=True)
class Learned2D(Encoding):
    """Adds a learned vector of the row and one of the column (arXiv 2010.11929, App. D.4).

    combine: "concatenate" gives each half of the channels (ViT); "sum" adds two of the full width
    (factorised, as NaViT; arXiv 2307.06304).
    """

    height: int = 16
    width: int = 16
    combine: str = "concatenate"
    stddev: float = 0.02

    axes = 2
    real_positions = True

    def __post_init__(self):
        for field in ("height", "width"):
            value = getattr(self, field)
            require(is_int(value, 1), field, value, "pass an integer of at least 1")
        require(self.combine in COMBINE, "combine", self.combine, f"choose one of {COMBINE}")
        require(is_real(self.stddev) and self.stddev >= 0, "stddev", self.stddev, "pass >= 0")

    def check(self, dims):
        """Halves need an even model width."""
        ok = self.combine == "sum" or dims.width % 2 == 0
        require(ok, "width", dims.width, "concatenated halves need an even model width")

    def init_shared(self, key, dims):
        """Tables: rows [height, D/2 or D], columns [width, D/2 or D]."""
        each = dims.width // 2 if self.combine == "concatenate" else dims.width
        keys = jax.random.split(key)
        return {
            name: self.stddev * jax.random.normal(k, (length, each), jnp.float32)
            for name, k, length in zip(
                ("rows", "columns"), keys, (self.height, self.width), strict=True
            )
        }

    def embed(self, params, x, positions):
        """X + the vectors of row and column."""
        positions = pos.as_positions(positions, real=True)
        row = between(params.shared["rows"], positions[..., 0])
        column = between(params.shared["columns"], positions[..., 1])
        whole = (
            jnp.concatenate([row, column], -1) if self.combine == "concatenate" else row + column
        )
        return x + whole.astype(x.dtype)

    def limit(self):
        """The shorter table's length."""
        return min(self.height, self.width)


@dataclasses.dataclass(frozen=True)
class Sinusoidal2D(Encoding):
    """Adds sinusoids of the row and of the column, half of the channels each (arXiv 2111.06377)."""

    base: float = 1e4
    layout: str = "concatenated"

    axes = 2
    real_positions = True

    def __post_init__(self):
        require(is_real(self.base) and self.base > 1, "base", self.base, "pass a number above 1")
        known = sinusoidal.LAYOUTS
        require(self.layout in known, "layout", self.layout, f"choose one of {known}")

    def check(self, dims):
        """Two halves of sine and cosine."""
        fix = "two axes of sine and cosine need a multiple of 4"
        require(dims.width % 4 == 0, "width", dims.width, fix)

    def embed(self, params, x, positions):
        """X + [sinusoid(row) ‖ sinusoid(column)]."""
        return x + sinusoid_2d(positions, x.shape[-1], self.base, self.layout).astype(x.dtype)
