"""A cache of a layer with a window: rows of the sinks, then as many as the window, reused in order.

Row j < sinks holds token j. The others hold the last `window` tokens: a new token takes the row of
the one that leaves the window.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds


class RingBuffer(NamedTuple):
    """Which token lies in which row."""

    window: int
    sinks: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.sinks + self.window

    def row(self, token: jax.Array) -> jax.Array:
        """The row of each token."""
        row = self.sinks + (token - self.sinks) % self.window
        return jnp.where(token < self.sinks, token, row)

    def tokens(self, length: jax.Array, later: jax.Array) -> jax.Array:
        """The token in each row after `length` tokens: int32 [rows]; `later` in empty rows."""
        row = jnp.arange(self.rows, dtype=jnp.int32)
        token = length - 1 - (length - 1 - row) % self.window
        token = jnp.where(row < self.sinks, row, token)
        filled = (token < length) & (token >= jnp.minimum(row, self.sinks))
        return jnp.where(filled, token, later)

    def write(self, old: jax.Array, new: jax.Array, start: jax.Array, axis: int) -> jax.Array:
        """Writes tokens from number `start` on to their rows; of several for one row the last."""
        token = start + jnp.arange(new.shape[axis], dtype=jnp.int32)
        stays = (token >= start + new.shape[axis] - self.window) | (token < self.sinks)
        rows = jnp.where(stays, self.row(token), self.rows)  # past the end: dropped
        at = (*(slice(None),) * axis, rows)
        return old.at[at].set(new.astype(old.dtype), mode="drop")


def ring_buffer(terms: tuple, capacity: int, window: int | None, sinks: int) -> RingBuffer | None:
    """The ring buffer for these terms; None where all of `capacity` tokens are kept in order.

    Sums along rows need tokens in order, and sinks may be at any distance, while tables of
    distances only cover the window's rows.
    """
    if window is None or sinks + window >= capacity or kinds.sums_rows(terms):
        return None
    if sinks and kinds.select(terms, kinds.DistanceTerm):
        return None
    return RingBuffer(window, sinks)
