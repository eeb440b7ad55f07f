"""Terms of distances in a block of scores with contiguous positions: along diagonals.

Pair (a, b) of a block is at a distance that depends on a - b alone. A term has a value for each
distance, the greatest first, and pair (a, b) reads number `offset - a + b` of them: a `Line`.

H heads, r queries and c keys of a block, n distances, E width of vectors.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.numerics.arrays import varying_like


class Line(NamedTuple):
    """The values of a term at the distances of a block, the greatest first.

    Attributes:
      values: [H or 1, n, …].
      offset: which of them pair (0, 0) reads; what lies before or after the n values is their first
        or their last one.
      last: whether pairs that read beyond the last value are visible; else they may read anything.
    """

    values: Any
    offset: int = 0
    last: bool = True

    def reversed(self) -> "Line":
        """The same seen from the keys: pair (b, a) reads number `offset - b + a`."""
        n = self.values.shape[1]
        return Line(self.values[:, ::-1], n - 1 - self.offset)

    def spread(self, rows: int, columns: int) -> jax.Array:
        """Biases [H or 1, n] of all pairs: [H or 1, r, c], or [H or 1, 1, 1] if all are alike."""
        n = self.values.shape[1]
        if n == 1:
            return self.values[..., None]
        first = self.offset - (rows - 1)
        before, end = max(-first, 0), first + rows + columns - 1
        kept = self.values[:, max(first, 0) : max(min(end, n), 1)]
        edges = jnp.pad(kept, [(0, 0), (before, max(end - n, 0))], mode="edge")
        by_slices, by_shear = (functools.partial(f, rows=rows) for f in (_by_slices, _by_shear))
        return jax.lax.platform_dependent(edges, cpu=by_slices, default=by_shear)

    def products(self, x: jax.Array, columns: int) -> jax.Array:
        """x [B, H, r, E] times the vectors [H or 1, n, E] of all pairs: [B, H, r, c].

        Or [B, H, r, 1], if all vectors are alike.
        """
        form = "bhre,hne->bhrn" if len(self.values) > 1 else "bhre,ne->bhrn"
        vectors = self.values if len(self.values) > 1 else self.values[0]
        return self.place(jnp.einsum(form, x.astype(jnp.float32), vectors), columns)

    def average(self, weights: jax.Array) -> jax.Array:
        """Weights [B, H, r, c] times the vectors [H or 1, n, F] of all pairs: [B, H, r, F]."""
        form = "bhrn,hnf->bhrf" if len(self.values) > 1 else "bhrn,nf->bhrf"
        vectors = self.values if len(self.values) > 1 else self.values[0]
        zeros = jnp.zeros((*weights.shape[:3], self.values.shape[1]), jnp.float32)

        def place(x):
            return jnp.broadcast_to(self.place(x, weights.shape[3]), weights.shape)

        (summed,) = jax.vjp(place, varying_like(zeros, (weights, vectors)))[1](weights)
        return jnp.einsum(form, summed, vectors)

    def place(self, x: jax.Array, columns: int) -> jax.Array:
        """y[…, a, b] = x[…, a, offset - a + b], ends repeated: [..., r, n] → [..., r, c].

        To move each row one further than the row above takes a pad and a reshape. What lies beside
        the n numbers is zero there: they are measured from the first.
        """
        *lead, rows, n = x.shape
        if n == 1:
            return x
        first, end = self.offset - (rows - 1), self.offset + columns
        if first >= 0 and end <= n:
            return shear(x[..., first:end])
        start = x[..., :1]
        left = max(-self.offset, 0)
        width = max(rows + n, end) + left
        moved = jax.lax.optimization_barrier(x - start)
        widths = [(0, 0)] * (len(lead) + 1) + [(left, width + 1 - n - left)]
        moved = jnp.pad(moved, widths).reshape(*lead, -1)[..., : rows * width]
        moved = moved.reshape(*lead, rows, width)[..., self.offset + left : end + left]
        y = start + moved
        if not self.last or end <= n:
            return y
        index = self.offset - np.arange(rows)[:, None] + np.arange(columns)
        return jnp.where(index >= n, x[..., -1:], y)


def shear(x: jax.Array) -> jax.Array:
    """y[…, a, b] = x[…, a, r - 1 - a + b]: [..., r, r + c - 1] → [..., r, c].

    A slice and two reshapes: each row begins one element earlier than the row above. XLA fuses them
    into the loop that reads y: no copy is made.
    """
    *lead, rows, width = x.shape
    if rows == 1:
        return x
    flat = x.reshape(*lead, rows * width)[..., rows - 1 : -1]
    return flat.reshape(*lead, rows, width - 1)[..., : width - rows + 1]


# Of biases, which all queries share. On a CPU, XLA copies slices, and above all adds up their
# gradients, faster than it shears one row; for a TPU it makes a loop of them, which takes twenty
# times as long.


def _by_slices(values: jax.Array, rows: int) -> jax.Array:
    """y[…, a, b] = x[…, r - 1 - a + b], row by row: [H, r + c - 1] → [H, r, c]."""
    columns = values.shape[-1] - rows + 1

    def row(start):
        return jax.lax.dynamic_slice_in_dim(values, start, columns, 1)

    return jax.vmap(row, out_axes=-2)(jnp.arange(rows - 1, -1, -1, dtype=jnp.int32))


def _by_shear(values: jax.Array, rows: int) -> jax.Array:
    """The same, of all rows at once."""
    return shear(jnp.broadcast_to(values[:, None], (len(values), rows, values.shape[-1])))
