"""Learned positions on two axes: Dosovitskiy et al., "ViT", arXiv 2010.11929, App. D.4.

    x ← x + [rows[r] ‖ columns[c]]          (factorised, arXiv 2307.06304:  rows[r] + columns[c])

Real positions between two entries interpolate linearly; `positions.resized` gives the positions
that resize a table to a larger image.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import int_field, one_of_field, stddev_field
from pe_jax.encodings import learned
from pe_jax.encodings.base import Claims, Encoding, normal
from pe_jax.encodings.terms import Input
from pe_jax.numerics.position_arrays import as_positions, on_axes
from pe_jax.validation import require

COMBINE = ("concatenate", "sum")


def between(table: jax.Array, positions) -> jax.Array:
    """`learned.lookup`; float32 positions are linear between two rows: [..., D] for a table [L, D].

    Raises:
      ValueError: a known position outside [0, L - 1]. Under a trace such rows are NaN.
      TypeError: half-precision positions.
    """
    positions = as_positions(positions, real=True)
    if jnp.issubdtype(positions.dtype, jnp.integer):
        return learned.lookup(table, positions)
    positions = positions.astype(jnp.float32)
    floor = jnp.floor(positions)
    below, above = (x.astype(jnp.int32) for x in (floor, jnp.ceil(positions)))
    low, high = learned.lookup(table, below), learned.lookup(table, above)
    return low + (positions - floor)[..., None] * (high - low)


@dataclasses.dataclass(frozen=True)
class Learned2D(Encoding):
    """Adds a learned vector of the row and one of the column.

    `combine` "concatenate" gives each half of the channels (ViT); "sum" gives each all of them.
    """

    height: int = int_field(16, 1)
    width: int = int_field(16, 1)
    combine: str = one_of_field("concatenate", COMBINE)
    stddev: float = stddev_field()

    claims = Claims(axes=2, real_positions=True)

    def check(self, dims):
        """Halves need an even model width."""
        ok = self.combine == "sum" or dims.width % 2 == 0
        require(ok, "width", dims.width, "concatenated halves need an even model width")

    def init_shared(self, key, dims):
        """Tables: rows [height, D/2 or D], columns [width, D/2 or D]."""
        channels = dims.width // 2 if self.combine == "concatenate" else dims.width
        rows, columns = (self.height, channels), (self.width, channels)
        return normal(key, self.stddev, rows=rows, columns=columns)

    def inputs(self, shared):
        return (Input(self.rows, (shared["rows"], shared["columns"])),)

    def rows(self, tables, positions, width):
        """The vectors of row and column, side by side or added: [..., D]."""
        pairs = zip(tables, on_axes(positions, 2), strict=True)
        row, column = (between(table, at) for table, at in pairs)
        if self.combine == "sum":
            return row + column
        return jnp.concatenate([row, column], axis=-1)

    def limit(self):
        return min(self.height, self.width)
