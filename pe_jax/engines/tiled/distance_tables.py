"""Terms of distances in tables: what each adds for n distances, and what it is multiplied by."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import (
    DistanceBias,
    RelativeKeys,
    RelativeQueries,
    RelativeState,
    RelativeValues,
    select,
)
from pe_jax.engines.tiled.ways import Vectors, add_up


class DistanceTables(NamedTuple):
    """All terms of distances of a call, for n distances; None where there is no such term."""

    bias: Any  # the biases' sum, float32 [H, n]
    keys: Any  # vectors that meet queries before rotations: [H or 1, n, E]
    shifted: tuple[Any, ...]  # for each term with a bias `u` of queries, its own: [H or 1, n, E]
    states: tuple[Any, ...]  # vectors that meet the queries' states, term by term: [H or 1, n, C]
    queries: Any  # vectors that meet keys: [H or 1, n, E]
    values: Any  # vectors that the weights average: [H or 1, n, F]

    @property
    def per_query(self) -> list[jax.Array]:
        """What queries meet, in the order of `features`."""
        return [*([] if self.keys is None else [self.keys]), *self.shifted, *self.states]


def evaluate(terms: tuple, distance: jax.Array, scale: float) -> DistanceTables:
    """All terms of distances at `distance` [n]; biases of scaled kinds are scaled here."""
    keys = select(terms, RelativeKeys)
    return DistanceTables(
        bias_at(select(terms, DistanceBias), distance, scale),
        add_up(term.at(distance) for term in keys if term.u is None),
        tuple(term.at(distance) for term in keys if term.u is not None),
        tuple(term.at(distance) for term in select(terms, RelativeState)),
        add_up(term.at(distance) for term in select(terms, RelativeQueries)),
        add_up(term.at(distance) for term in select(terms, RelativeValues)),
    )


def bias_at(terms: Iterable[Any], distance: jax.Array, scale: float) -> Any:
    """The sum of biases at `distance` [n], scaled where their kinds are: [H, n], or None."""
    return add_up(scale * term.at(distance) if term.scaled else term.at(distance) for term in terms)


def query_biases(terms: tuple) -> tuple[jax.Array, ...]:
    """`u` [H, E] of each term that `DistanceTables.shifted` has vectors of."""
    return tuple(term.u for term in select(terms, RelativeKeys) if term.u is not None)


def features(
    tables: DistanceTables, biases: tuple[jax.Array, ...], q: Vectors, scale: float
) -> jax.Array:
    """What the vectors of `per_query` are dotted with, side by side: float32 [b, h, T, C].

    Args:
      tables: says which there are.
      biases: what `query_biases` gives.
      q: the queries.
      scale: what scaled kinds are multiplied by.
    """
    parts = []
    if tables.keys is not None or biases:
        raw = q.raw.astype(jnp.float32)
        parts = [scale * raw] if tables.keys is not None else []
        parts += [scale * (raw + u[None, :, None]) for u in biases]
    parts += [state for state in q.states if state is not None]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def side_by_side(vectors: list[jax.Array], heads: int) -> Any:
    """Vectors [h or 1, …, C] of several terms as one; None where there are none."""
    if len(vectors) < 2:
        return vectors[0] if vectors else None
    return jnp.concatenate([jnp.broadcast_to(x, (heads, *x.shape[1:])) for x in vectors], axis=-1)


def products(x: jax.Array, vectors: jax.Array) -> jax.Array:
    """X [b, h, T, C] times vectors [h or 1, n, C]: float32 [b, h, T, n]."""
    return jnp.matmul(x, jnp.swapaxes(vectors, -1, -2))


def distances(rows: int, columns: int, gap) -> jax.Array:
    """Row minus column, plus `gap`: [r, c]."""
    row, column = (jnp.arange(n, dtype=jnp.int32) for n in (rows, columns))
    return gap + row[:, None] - column[None]


def shear(x: jax.Array) -> jax.Array:
    """y[…, r, c] = x[…, r, rows - 1 - r + c]: [..., rows, rows + columns - 1] → [..., r, c].

    A slice and two reshapes: each row begins one element earlier than the row above. XLA fuses them
    into the loop that reads y: no copy is made.
    """
    *lead, rows, width = x.shape
    if rows == 1:
        return x
    flat = x.reshape(*lead, rows * width)[..., rows - 1 : -1]
    return flat.reshape(*lead, rows, width - 1)[..., : width - rows + 1]


def spread(windows: jax.Array, rows: int) -> jax.Array:
    """y[…, r, c] = x[…, rows - 1 - r + c]: [*n, rows + columns - 1] → [*n, r, c].

    On a CPU, XLA copies slices, and above all adds up their gradients, faster than it shears one
    row; for a TPU it makes a loop of them, which takes twenty times as long.
    """
    cpu, default = (functools.partial(how, rows=rows) for how in (by_slices, by_shear))
    return jax.lax.platform_dependent(windows, cpu=cpu, default=default)


def by_slices(windows: jax.Array, rows: int) -> jax.Array:
    """`spread`, row by row."""
    axis, columns = windows.ndim - 1, windows.shape[-1] - rows + 1

    def row(start):
        return jax.lax.dynamic_slice_in_dim(windows, start, columns, axis)

    return jax.vmap(row, out_axes=-2)(jnp.arange(rows - 1, -1, -1, dtype=jnp.int32))


def by_shear(windows: jax.Array, rows: int) -> jax.Array:
    """`spread`, of all rows at once."""
    *lead, width = windows.shape
    return shear(jnp.broadcast_to(windows[..., None, :], (*lead, rows, width)))
