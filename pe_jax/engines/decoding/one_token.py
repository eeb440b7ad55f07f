"""Attention of one new token to a cache whose row j holds token j.

Row j is at distance t - j from the token at row t, so what depends on the distance alone lies along
the rows in order. Each such term is evaluated for the n distances that differ (`tables`): up to the
widest horizon, or as many as there are rows. Beyond the horizon

* biases and q·relative_keys are one constant per head;
* k·relative_queries is one scalar per key and head, known when the key is written (`beyond`);
* relative values are one vector, for the sum of the weights beyond it.

Every other term of scores is evaluated by its own formula, for one row of pairs.
B batch, S rows, K key heads, H query heads, E and F widths of keys and values.
Distances descend along tables, as they do along rows: from n - 1 to 0. In a ring the newest row is
anywhere, and what lies along the rows is rolled.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import DistanceTerm, RelativeQueries, Side, Tokens, select
from pe_jax.engines import reference
from pe_jax.engines.attention_spec import AttentionSpec


class View(NamedTuple):
    """The rows of the cache that the new token may see."""

    k: Side
    v: jax.Array
    beyond: jax.Array | None
    indices: jax.Array  # of the token in each row: int32 [S]
    at: jax.Array  # the row of the new token: int32 []
    n: int  # how many distances differ
    ring: bool = False  # whether the oldest row follows the token's

    def by_distance(self, x: jax.Array) -> jax.Array:
        """The n rows up to the token's of x [B, H, S, …], zeros before the first: [B, H, n, …]."""
        if self.ring:
            return _roll(x, -self.at - 1, 2)[:, :, -self.n :]
        begin = jnp.maximum(self.at - self.n + 1, 0)
        rows = jax.lax.dynamic_slice_in_dim(x, begin, self.n, 2)
        rows = jnp.pad(rows, [(self.n - 1 if axis == 2 else 0, 0) for axis in range(x.ndim)])
        return jax.lax.dynamic_slice_in_dim(rows, self.at - begin, self.n, 2)

    def by_row(self, near: jax.Array, past: jax.Array) -> jax.Array:
        """[B, H, n] by distance → [B, H, S] by row, `past` [B, H, 1] in the rows farther away."""
        if self.ring:
            wide = jnp.broadcast_to(past, (*near.shape[:2], len(self.indices) - self.n))
            return _roll(jnp.concatenate([wide, near], -1), self.at + 1, -1)
        wide = jnp.broadcast_to(past, (*near.shape[:2], len(self.indices) + self.n - 1))
        return jax.lax.dynamic_update_slice_in_dim(wide, near, self.at, 2)[..., self.n - 1 :]


@functools.partial(jax.jit, static_argnames="axis", inline=True)
def _roll(x: jax.Array, shift: jax.Array, axis: int) -> jax.Array:
    """`jnp.roll` by a traced shift: by a static one it would compile for each shift."""
    return jnp.roll(x, shift, axis)


def distances(terms: tuple, rows: int) -> int:
    """How many distances differ among `rows`: n."""
    horizons = [term.horizon for term in select(terms, DistanceTerm)]
    if not horizons or None in horizons:
        return rows if horizons else 1
    return min(rows, max(max(high, 0) for _, high in horizons) + 1)


def tables(terms: tuple, rows: int) -> tuple[Any, ...]:
    """For each term its values at n distances, float32 [H or 1, n, …]; None for other kinds."""
    away = jnp.arange(distances(terms, rows) - 1, -1, -1, dtype=jnp.int32)
    return tuple(t.at(away) if isinstance(t, DistanceTerm) else None for t in terms)


def beyond(terms: tuple, held: Any, k_raw: jax.Array, heads: int) -> jax.Array:
    """k·relative_queries beyond the horizon: float32 [B, H, T] for k_raw [B, K, T, E]."""
    raw, products = k_raw.astype(jnp.float32), []
    for term, table in zip(terms, held, strict=True):
        if isinstance(term, RelativeQueries):
            vectors = jnp.broadcast_to(table[:, 0], (heads, table.shape[2]))
            vectors = vectors.reshape(k_raw.shape[1], -1, table.shape[2])  # by key head
            products.append(jnp.einsum("bkte,kge->bkgt", raw, vectors))
    return functools.reduce(jnp.add, products).reshape(len(k_raw), heads, -1)


@functools.partial(jax.jit, static_argnames=("spec", "ring"), inline=True)
def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    beyond: Any,
    tables: Any,
    at: Any,
    ring: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`, for token number `at`, which sees itself and those before it.

    `beyond` [B, H, S] is what the function of that name gave for each key, or None, and `tables`
    what `tables` gives for S rows. Token j lies in row j, or in a `ring` as the indices of the keys
    say.
    """
    view = _view(spec, distances(terms, k.x.shape[2]), k, v, beyond, at, ring)
    q = q._replace(tokens=Tokens(at[None, None], at[None, None]))
    return reference.attend(spec, terms, q, view.k, view.v, lines=_lines(terms, tables, view))


class RowLine(NamedTuple):
    """The values of a term at the distances of one query's row: a `Line` of a cache.

    Past the n distances a term has its value at the farthest of them.
    """

    values: jax.Array  # [H or 1, n, …], the greatest distance first
    view: "View"  # the rows
    beyond: Any  # what relative queries add beyond the horizon, [B, H, S]; or None

    def spread(self, rows: int, columns: int) -> jax.Array:
        """Biases of the row: [1, H or 1, 1, S]."""
        near = self.values[None]
        return self.view.by_row(near, near[..., :1])[:, :, None]

    def products(self, x: jax.Array, columns: int) -> jax.Array:
        """The query [B, H, 1, E] times the vectors of its row: [B, H, 1, S]."""
        near = jnp.einsum("bhe,hne->bhn", x[:, :, 0].astype(jnp.float32), self.values)
        return self.view.by_row(near, near[..., :1])[:, :, None]

    def key_products(self, k: jax.Array, heads: int, rows: int) -> jax.Array:
        """Keys [B, K, S, E] before rotations times the vectors of the row: [B, H, 1, S]."""
        values = jnp.broadcast_to(self.values, (heads, *self.values.shape[1:]))
        values = values.reshape(1, k.shape[1], -1, *values.shape[1:])
        near = self.view.by_distance(k).astype(jnp.float32)[:, :, None] * values
        # A product with ones takes a fifth of the time of a sum over the last axis (CPU).
        near = (near @ jnp.ones(k.shape[-1], jnp.float32)).reshape(len(k), heads, -1)
        if self.beyond is not None:
            near -= self.view.by_distance(self.beyond)
        near = self.view.by_row(near, jnp.zeros_like(near[..., :1]))
        return (near if self.beyond is None else near + self.beyond)[:, :, None]

    def average(self, weights: jax.Array) -> jax.Array:
        """Weights [B, H, 1, S] times the vectors of the row: [B, H, 1, F]."""
        near = self.view.by_distance(weights[:, :, 0])
        past = weights.sum(-1) - near.sum(-1, keepdims=True)
        near = near.at[..., 0].add(past[..., 0])
        return jnp.einsum("bhn,hnf->bhf", near, self.values)[:, :, None]


def _lines(terms: tuple, held: Any, view: "View") -> tuple:
    """For each term its values along the row, or None; the first relative queries have `beyond`."""
    lines, beyond = [], view.beyond
    for term, table in zip(terms, held, strict=True):
        relative = isinstance(term, RelativeQueries)
        line = RowLine(table, view, beyond if relative else None)
        lines.append(None if table is None else line)
        if relative and beyond is not None:  # the sum over all such terms, added once
            beyond = jnp.zeros_like(beyond)
    return tuple(lines)


def _view(
    spec: AttentionSpec, n: int, k: Side, v: jax.Array, beyond: Any, at: jax.Array, ring: bool
) -> View:
    """The rows that the new token may see, where n distances differ.

    A window costs its width and the sinks theirs. Sinks come first; while the window still holds
    them, their rows are duplicates, which an index past every token hides.
    """
    if ring:
        index = k.tokens.index[0]
        k = k._replace(tokens=Tokens(index[None], index[None]))
        newest = jnp.argmax(index == at).astype(jnp.int32)
        return View(k, v, beyond, index, newest, n, ring)
    count, sinks, rows = v.shape[2], spec.sinks, (k.x, k.raw, k.states, v, beyond)
    size = count if spec.window is None else max(spec.window, n)
    index = jnp.arange(count, dtype=jnp.int32)
    if sinks + size < count:
        first = jnp.maximum(at - size + 1, 0)
        lead = jnp.where(index[:sinks] < first, index[:sinks], count)
        index = jnp.concatenate([lead, first + index[:size]])
        at = at - first + sinks

        def cut(x):
            near = jax.lax.dynamic_slice_in_dim(x, first, size, 2)
            return jnp.concatenate([x[:, :, :sinks], near], axis=2) if sinks else near

        rows = jax.tree.map(cut, rows)
    x, raw, states, v, beyond = rows
    return View(Side(x, raw, states, Tokens(index[None], index[None])), v, beyond, index, at, n)
