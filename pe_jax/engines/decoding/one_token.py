"""One new token against a cache whose row j holds position j: what a term costs beside NoPE.

Row j is at distance t - j from the token at row t, so what depends on the distance alone lies along
the rows in order. Each such term is evaluated for the n distances that differ (`tables`): up to the
widest horizon, or as many as there are rows. Past the horizon

* biases and q·relative_keys are one constant per head;
* k·relative_queries is one scalar per key and head, known when the key is written (`far`);
* relative values are one vector, for the sum of the far weights.

Every other term of scores is evaluated by its own formula, for one row of pairs.
B batch, S rows, K key heads, H query heads, E and F widths of keys and values, C of a state.
Distances descend along tables, as they do along rows: from n - 1 to 0.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import (
    DistanceBias,
    DistanceTerm,
    RelativeKeys,
    RelativeQueries,
    RelativeState,
    RelativeValues,
    ScoreTerm,
    Side,
    Tokens,
    select,
)
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.numerics.arrays import align


class Rows(NamedTuple):
    """The rows of a cache that the new token may read: k [B, K, S, E] and so on.

    Attributes:
      k: keys as rotated.
      raw: keys before rotations, [B, K, S, E].
      v: [B, K, S, F].
      far: k·relative_queries past the horizon, [B, H, S]; None where there is none.
      states: for each term the keys' [B or 1, H, S, C], or None.
    """

    k: jax.Array
    raw: jax.Array
    v: jax.Array
    far: jax.Array | None
    states: tuple[Any, ...]


class Query(NamedTuple):
    """The new token: x and raw [B, H, E] after and before rotations, states [B or 1, H, C]."""

    x: jax.Array
    raw: jax.Array
    states: tuple[Any, ...]


def distances(terms: tuple, rows: int) -> int:
    """How many distances differ among `rows`: n."""
    horizons = [term.horizon for term in select(terms, DistanceTerm)]
    if not horizons or None in horizons:
        return rows if horizons else 1
    return min(rows, max(max(high, 0) for _, high in horizons) + 1)


def tables(terms: tuple, rows: int) -> tuple[Any, ...]:
    """For each term its values at n distances, float32 [H or 1, n, …]; None for other kinds."""
    away = jnp.arange(distances(terms, rows) - 1, -1, -1, dtype=jnp.int32)
    return tuple(term.at(away) if isinstance(term, DistanceTerm) else None for term in terms)


def far(terms: tuple, held: Any, k_raw: jax.Array, heads: int) -> jax.Array:
    """k·relative_queries past the horizon: float32 [B, H, T] for k_raw [B, K, T, E]."""
    raw, products = k_raw.astype(jnp.float32), []
    for term, table in zip(terms, held, strict=True):
        if isinstance(term, RelativeQueries):
            vectors = _by_key_head(table[:, 0], heads, k_raw.shape[1])
            products.append(jnp.einsum("bkte,kge->bkgt", raw, vectors))
    return _total(products).reshape(len(k_raw), heads, -1)


def attend(
    spec: AttentionSpec, terms: tuple, query: Query, rows: Rows, held: Any, at: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What the token at row `at` reads from its own row and those before it.

    Args:
      spec: the sizes, the window, the sinks.
      terms: what the encoding adds.
      query: the token.
      rows: the cache.
      held: what `tables` gives for S rows.
      at: int32 [].

    Returns:
      The output, float32 [B, H, F], and the logarithm of the sum of exponentials, [B, H, 1].
    """
    n = distances(terms, rows.k.shape[2])
    places, at_row, rows = _view(spec, n, rows, at)
    heads_by_key = len(query.x), rows.k.shape[1], -1  # [B, K, H/K, …]
    s = _products(kinds.split(terms), query.x, rows.k, at - places)
    s = _scores(spec, terms, s, query, rows, held, n, at_row)
    seen = places <= at
    if spec.window is not None:
        seen &= (places > at - spec.window) | (places < spec.sinks)
    s += _pairwise(spec, terms, query, rows, at, places)
    s = jnp.where(seen, s, -jnp.inf)
    top = s.max(-1, keepdims=True)  # a token sees itself: the maximum is finite
    weights = jnp.exp(s - top)
    out = jnp.einsum(
        "bkgs,bksf->bkgf",
        weights.astype(rows.v.dtype).reshape(*heads_by_key, s.shape[-1]),
        rows.v,
        preferred_element_type=jnp.float32,
    ).reshape(*query.x.shape[:2], -1)
    total = weights.sum(-1, keepdims=True)
    out = (out + _values(terms, weights, total, held, n, at_row)) / total
    return out, top + jnp.log(total)


def _products(limit: int | None, q: jax.Array, k: jax.Array, away: jax.Array) -> jax.Array:
    """Rotated q [B, H, E] · k [B, K, S, E]: float32 [B, H, S], in the view of each distance [S]."""
    if limit is None:
        views = q[:, :, None]
    else:  # the keys are read once, whole, by a query for each view
        near = align(jnp.arange(q.shape[-1]) < q.shape[-1] // 2, q)
        views = jnp.stack([jnp.where(near, q, 0), jnp.where(near, 0, q)], axis=2)
    rows = views.reshape(len(q), k.shape[1], -1, q.shape[-1])
    s = jnp.einsum("bkge,bkse->bkgs", rows, k, preferred_element_type=jnp.float32)
    s = s.reshape(*views.shape[:3], -1)
    return s[:, :, 0] if limit is None else jnp.where(away < limit, s[:, :, 0], s[:, :, 1])


def _view(spec: AttentionSpec, n: int, rows: Rows, at):
    """The rows that may count: their places, which of them is row `at`, and what they hold.

    A window costs its width and the sinks theirs. Sinks come first; while the window still holds
    them, their rows are doubles, which a place past every token hides.
    """
    count, sinks = rows.k.shape[2], spec.sinks
    size = count if spec.window is None else max(spec.window, n)
    if sinks + size >= count:
        return jnp.arange(count, dtype=jnp.int32), at, rows
    first = jnp.maximum(at - size + 1, 0)

    def cut(x):
        near, lead = jax.lax.dynamic_slice_in_dim(x, first, size, 2), x[:, :, :sinks]
        return jnp.concatenate([lead, near], axis=2) if sinks else near

    lead = jnp.arange(sinks, dtype=jnp.int32)
    lead = jnp.where(lead < first, lead, count)
    places = jnp.concatenate([lead, first + jnp.arange(size, dtype=jnp.int32)])
    return places, at - first + sinks, jax.tree.map(cut, rows)


def _by_key_head(table: jax.Array, heads: int, groups: int) -> jax.Array:
    """[H or 1, …] → [K, H/K, …]: query heads by the key head that they share."""
    whole = jnp.broadcast_to(table, (heads, *table.shape[1:]))
    return whole.reshape(groups, -1, *table.shape[1:])


def _by_distance(x: jax.Array, n: int, at) -> jax.Array:
    """The n rows up to `at` of x [B, H, S, …], zeros before the first row: [B, H, n, …]."""
    begin = jnp.maximum(at - n + 1, 0)
    rows = jax.lax.dynamic_slice_in_dim(x, begin, n, 2)
    rows = jnp.pad(rows, [(n - 1 if axis == 2 else 0, 0) for axis in range(x.ndim)])
    return jax.lax.dynamic_slice_in_dim(rows, at - begin, n, 2)


def _by_row(near: jax.Array, past: jax.Array, rows: int, at) -> jax.Array:
    """[B, H, n] by distance → [B, H, S] by row, `past` [B, H, 1] in the rows farther away."""
    n = near.shape[-1]
    wide = jnp.broadcast_to(past, (*near.shape[:2], rows + n - 1))
    return jax.lax.dynamic_update_slice_in_dim(wide, near, at, 2)[..., n - 1 :]


def _contract(form: str, x: jax.Array, table: jax.Array) -> jax.Array:
    """Contracts x with a table [H or 1, n, E]; `*` is the heads' axis, left out if shared."""
    shared = len(table) == 1
    form = form.replace("*", "" if shared else "h")
    return jnp.einsum(form, x.astype(jnp.float32), table[0] if shared else table)


def _total(parts: list) -> Any:
    """Their sum, without a zero to begin with."""
    return sum(parts[1:], parts[0])


def _scores(
    spec: AttentionSpec, terms: tuple, s: jax.Array, query: Query, rows: Rows, held, n: int, at
) -> jax.Array:
    """Scales q·k [B, H, S] and adds all that has a table."""
    scale = kinds.scale(terms, spec.dims.head_dim)
    near, by_key = jnp.zeros((1, 1, n), jnp.float32), []
    for term, state, table in zip(terms, query.states, held, strict=True):
        if isinstance(term, RelativeKeys):
            raw = term.queries(query.raw[:, :, None])[:, :, 0]
            near += scale * _contract("bhe,*ne->bhn", raw, table)
        elif isinstance(term, RelativeState):
            near += _contract("bhe,*ne->bhn", state, table)
        elif isinstance(term, DistanceBias):
            near += (scale if term.scaled else 1) * table[None]
        elif isinstance(term, RelativeQueries):
            by_key.append(table)
    past = near[..., :1]
    if by_key:
        k = _by_distance(rows.raw, n, at).astype(jnp.float32)
        vectors = _by_key_head(_total(by_key), s.shape[1], k.shape[1])
        # A product with ones takes a fifth of the time of a sum over the last axis (CPU).
        products = (k[:, :, None] * vectors[None]) @ jnp.ones(k.shape[-1], jnp.float32)
        near += scale * products.reshape(len(s), -1, n)
    s *= scale
    if rows.far is not None:
        s += scale * rows.far
        near -= scale * _by_distance(rows.far, n, at)
    if not any(isinstance(term, DistanceTerm) for term in terms):
        return s
    return s + _by_row(near, past, s.shape[-1], at)


def _pairwise(
    spec: AttentionSpec, terms: tuple, query: Query, rows: Rows, at, places: jax.Array
) -> jax.Array | float:
    """Terms without a table, of rows at `places` [S]: [B or 1, H, S], or 0."""
    scale, found = kinds.scale(terms, spec.dims.head_dim), 0.0
    q_tokens, k_tokens = (Tokens(x, x) for x in (at[None, None], places[None]))
    q = Side(query.x[:, :, None], query.raw[:, :, None], (), q_tokens)
    k = Side(rows.k, rows.raw, (), k_tokens)
    for term, q_state, k_state in zip(terms, query.states, rows.states, strict=True):
        if isinstance(term, ScoreTerm) and not isinstance(term, DistanceTerm):
            states = None if q_state is None else q_state[:, :, None], k_state
            found += (scale if term.scaled else 1) * term.scores(q, k, states)[:, :, 0]
    return found


def _values(terms: tuple, weights: jax.Array, total, held: tuple, n: int, at) -> jax.Array | float:
    """Σ weights·relative_values for weights [B, H, S] of sum `total`: [B, H, F], or 0."""
    added = [x for t, x in zip(terms, held, strict=True) if isinstance(t, RelativeValues)]
    if not added:
        return 0.0
    near = _by_distance(weights, n, at)
    near = near.at[..., 0].add((total - near.sum(-1, keepdims=True))[..., 0])
    return _contract("bhn,*nf->bhf", near, _total(added))
