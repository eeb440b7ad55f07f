"""Terms of distances in a block of scores with contiguous positions, computed along diagonals.

The distance of pair (a, b) of a block depends on a - b alone. A `Line` has a term's value for each
distance, the greatest first, and pair (a, b) reads entry `offset - a + b`.

H heads, r queries and c keys of a block, n distances, E width of vectors.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.numerics.arrays import repeat_heads, varying_like
from pe_jax.numerics.products import average, multiply


class Pairs(NamedTuple):
    """The values of a term at all pairs of a block, with the methods of a `Line`.

    Attributes:
      values: float32 [H or 1, B or 1, r, c, …].
    """

    values: jax.Array

    def spread(self, rows: int, columns: int) -> jax.Array:
        """Biases of all pairs: [B or 1, H or 1, r, c]."""
        return jnp.moveaxis(self.values, 0, 1)

    def products(self, x: jax.Array, columns: int) -> jax.Array:
        """x [B, H, r, E] times the vectors of all pairs: [B, H, r, c]."""
        return jnp.einsum("bhte,hbtse->bhts", x.astype(jnp.float32), self.values)

    def key_products(self, k: jax.Array, heads: int, rows: int) -> jax.Array:
        """Keys [B, K, c, E] times the vectors of all pairs: [B, H, r, c]."""
        k = repeat_heads(k, heads).astype(jnp.float32)
        return jnp.einsum("bhse,hbtse->bhts", k, self.values)

    def average(self, weights: jax.Array) -> jax.Array:
        """Weights [B, H, r, c] times the vectors [H or 1, B or 1, r, c, F]: [B, H, r, F]."""
        return jnp.einsum("bhts,hbtse->bhte", weights.astype(jnp.float32), self.values)


class Line(NamedTuple):
    """The values of a term at the distances of a block, the greatest first.

    Attributes:
      values: [H or 1, n, …].
      offset: the entry that pair (0, 0) reads; entries before the n values are equal to the first,
        entries after them to the last.
      last: whether pairs that read beyond the last value are visible; else they may read anything.
    """

    values: Any
    offset: int = 0
    last: bool = True

    def spread(self, rows: int, columns: int) -> jax.Array:
        """Biases [H or 1, n] of all pairs: [1, H or 1, r, c], or [1, H or 1, 1, 1] if all are one.

        Values are copied, never computed as differences: one of -1e9 or -inf, which hides pairs,
        would round the others away.
        """
        n = self.values.shape[1]
        if (shared := self._shared_index(n, rows, columns)) is not None:
            return self.values[None, :, shared, None, None]
        skipped, kept = self._corner(rows, columns)
        first = self.offset + skipped - (kept - 1)
        before, end = max(-first, 0), self.offset + columns
        values = self.values[:, max(first, 0) : max(min(end, n), 1)]
        edges = jnp.pad(values, [(0, 0), (before, max(end - n, 0))], mode="edge")
        by_slices, by_shear = (functools.partial(f, rows=kept) for f in (_by_slices, _by_shear))
        corner = jax.lax.platform_dependent(edges, cpu=by_slices, default=by_shear)
        if (skipped, kept) == (0, rows):
            return corner[None]
        widths = [(0, 0), (0, rows - kept), (skipped, 0)]
        inside = jnp.pad(jnp.ones((1, *corner.shape[1:]), bool), widths)
        return jnp.where(inside, jnp.pad(corner, widths), self.values[:, :1, None])[None]

    def _shared_index(self, n: int, rows: int, columns: int) -> int | None:
        """The index of the value that all pairs read, or None if they read several."""
        if n == 1 or self.offset + columns - 1 <= 0:
            return 0
        return n - 1 if self.offset - (rows - 1) >= n - 1 else None

    def _corner(self, rows: int, columns: int) -> tuple[int, int]:
        """How many columns read the first value alone, and how many rows read others too."""
        skipped = min(max(1 - self.offset, 0), columns - 1)
        return skipped, max(min(rows, self.offset + columns - 1), 1)

    def products(self, x: jax.Array, columns: int) -> jax.Array:
        """x [B, H, r, E] times the vectors [H or 1, n, E] of all pairs: [B, H, r, c].

        Or [B, H, r, 1], if all vectors are alike.
        """
        products: Any = multiply(jnp.float32, x.astype(jnp.float32), self._of_rows(x))
        return self.place(products, columns)

    def key_products(self, k: jax.Array, heads: int, rows: int) -> jax.Array:
        """Keys [B, K, c, E] times the vectors of all pairs: [B, H, r, c], or [B, H, 1, c].

        From the side of the keys distances run backwards: pair (b, a) reads entry `offset - b + a`.
        """
        backwards = Line(self.values[:, ::-1], self.values.shape[1] - 1 - self.offset)
        products = backwards.products(repeat_heads(k, heads), rows)
        return jnp.swapaxes(products, 2, 3)

    def average(self, weights: jax.Array) -> jax.Array:
        """Weights [B, H, r, c] times the vectors [H or 1, n, F] of all pairs: [B, H, r, F]."""
        zeros = jnp.zeros((*weights.shape[:3], self.values.shape[1]), jnp.float32)

        def place(x):
            return jnp.broadcast_to(self.place(x, weights.shape[3]), weights.shape)

        (summed,) = jax.vjp(place, varying_like(zeros, (weights, self.values)))[1](weights)
        return average(jnp.float32, summed, self._of_rows(summed))

    def _of_rows(self, x: jax.Array) -> jax.Array:
        """The values for each row of the batch: [B, H or 1, n, E]."""
        return jnp.broadcast_to(self.values, (len(x), *self.values.shape))

    def place(self, x: jax.Array, columns: int) -> jax.Array:
        """y[…, a, b] = x[…, a, offset - a + b], ends repeated: [..., r, n] → [..., r, c].

        A pad and a reshape move each row one column further than the row above. They fill with
        zeros, so the first number of a row is subtracted before and added after.
        """
        *lead, rows, n = x.shape
        if (shared := self._shared_index(n, rows, columns)) is not None:
            return x[..., shared, None]
        first, end = self.offset - (rows - 1), self.offset + columns
        if first >= 0 and end <= n:
            x = x[..., first : end + 1]
            return shear(x if end < n else _pad_last(x, 1))
        start = x[..., :1]
        skipped, kept = self._corner(rows, columns)
        moved = self._moved(x[..., :kept, :] - start[..., :kept, :], skipped, columns - skipped)
        widths = [(0, 0)] * len(lead) + [(0, rows - kept), (skipped, 0)]
        return start + jnp.pad(moved, widths)

    def _moved(self, x: jax.Array, first: int, columns: int) -> jax.Array:
        """`place` from column `first` on, for rows whose first number is 0."""
        *lead, rows, n = x.shape
        offset, end = self.offset + first, self.offset + first + columns
        width = max(rows + n, end)
        y = jax.lax.optimization_barrier(x)
        widths = [(0, 0)] * (len(lead) + 1) + [(0, width + 1 - n)]
        y = jnp.pad(y, widths).reshape(*lead, -1)[..., : rows * width]
        y = y.reshape(*lead, rows, width)[..., offset:end]
        if not self.last or end <= n:
            return y
        index = offset - np.arange(rows)[:, None] + np.arange(columns)
        return jnp.where(index >= n, x[..., -1:], y)


def _pad_last(x: jax.Array, count: int) -> jax.Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)])


@jax.custom_vjp
def shear(x: jax.Array) -> jax.Array:
    """y[…, a, b] = x[…, a, r - 1 - a + b]: [..., r, r + c] → [..., r, c].

    Read as rows of n - 1 numbers instead of n, each row begins one number earlier than the one
    above: two slices, which XLA fuses into the loop that reads y. The last of the n is not read.
    """
    *lead, rows, n = x.shape
    flat = x.reshape(*lead, rows * n)[..., : rows * (n - 1)]
    return flat.reshape(*lead, rows, n - 1)[..., rows - 1 :]


@jax.custom_vjp
def shear_back(y: jax.Array) -> jax.Array:
    """The transpose of `shear`: [..., r, c] → [..., r, r + c], zeros around the c numbers."""
    return jax.lax.platform_dependent(y, cpu=_back_by_rows, default=_back_at_once)


shear.defvjp(lambda x: (shear(x), None), lambda _, d: (shear_back(d),))
shear_back.defvjp(lambda y: (shear_back(y), None), lambda _, d: (shear(d),))


def _back_by_rows(y: jax.Array) -> jax.Array:
    """`shear_back` row by row, which takes half the time on a CPU."""
    *lead, rows, columns = y.shape
    zeros = varying_like(jnp.zeros((*lead, rows + columns), y.dtype), y)

    def place(row, start):
        return jax.lax.dynamic_update_slice_in_dim(zeros, row, start, len(lead))

    starts = jnp.arange(rows - 1, -1, -1, dtype=jnp.int32)
    return jax.vmap(place, in_axes=(-2, 0), out_axes=-2)(y, starts)


def _back_at_once(y: jax.Array) -> jax.Array:
    *lead, rows, columns = y.shape
    n = rows + columns
    padded = jnp.pad(y, [(0, 0)] * len(lead) + [(0, 1), (rows - 1, 0)])
    return padded.reshape(*lead, -1)[..., : rows * n].reshape(*lead, rows, n)


# Biases are the same for all queries. On a CPU, XLA copies slices, and above all adds up their
# gradients, faster than it shears one row; on a TPU it loops over slices, which takes twenty times
# as long.


def _by_slices(values: jax.Array, rows: int) -> jax.Array:
    """y[…, a, b] = x[…, r - 1 - a + b], row by row: [H, r + c - 1] → [H, r, c]."""
    columns = values.shape[-1] - rows + 1

    def row(start):
        return jax.lax.dynamic_slice_in_dim(values, start, columns, 1)

    return jax.vmap(row, out_axes=-2)(jnp.arange(rows - 1, -1, -1, dtype=jnp.int32))


def _by_shear(values: jax.Array, rows: int) -> jax.Array:
    """The same for all rows at once."""
    heads, n = values.shape
    return shear(_pad_last(jnp.broadcast_to(values[:, None], (heads, rows, n)), 1))
