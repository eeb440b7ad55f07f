"""Learned absolute positions: a trained vector per position, as in BERT (arXiv 1810.04805) and GPT.

    x_t ← x_t + table[position_t]

A position outside the table is an error where its value is known, and NaN under a trace: plain JAX
indexing would silently clamp it to the last row.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import int_field, stddev_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import Input
from pe_jax.numerics.arrays import require_array, take
from pe_jax.numerics.position_arrays import as_positions, concrete
from pe_jax.validation import require


def lookup(table: jax.Array, positions) -> jax.Array:
    """`table[positions]`: [..., D] for a table [L, D] and integer positions [...].

    Raises:
      ValueError: a known position outside [0, L). Under a trace such rows are NaN.
      TypeError: positions that are not integers.
    """
    positions = as_positions(positions)
    require_array("table", table)
    require(table.ndim == 2, "table", table.shape, "pass [L, D]")
    length = table.shape[0]
    values = concrete(positions)
    if values is not None and values.size and not 0 <= values.min() <= values.max() < length:
        worst = values.min() if values.min() < 0 else values.max()
        raise ValueError(
            f"positions: {worst} is outside the learned table of length {length};"
            f" keep 0 <= position < {length} or enlarge the table"
        )
    rows = take(table, jnp.clip(positions, 0, length - 1), mode="promise_in_bounds")
    return jnp.where(((positions >= 0) & (positions < length))[..., None], rows, jnp.nan)


@dataclasses.dataclass(frozen=True)
class Learned(Encoding):
    """Adds `table[position]`, with a table of `length` rows drawn from N(0, stddev²)."""

    length: int = int_field(512, 1)
    stddev: float = stddev_field()

    def init_shared(self, key, dims):
        """Table [length, D]."""
        shape = (self.length, dims.width)
        return {"table": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def inputs(self, shared):
        return (Input(table_rows, shared["table"]),)

    def limit(self):
        return self.length


def table_rows(table, positions, width):
    """`lookup` as the function of an `Input`."""
    return lookup(table, positions)
