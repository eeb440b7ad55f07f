"""One new token against a cache whose row j holds token j: what a term costs beside NoPE.

Row j is at distance t - j from the token at row t, so what depends on the distance alone lies along
the rows in order. Each such term is evaluated for the n distances that differ (`tables`): up to the
widest horizon, or as many as there are rows. Past the horizon

* biases and q·relative_keys are one constant per head;
* k·relative_queries is one scalar per key and head, known when the key is written (`far`);
* relative values are one vector, for the sum of the far weights.

Every other term of scores is evaluated by its own formula, for one row of pairs.
B batch, S rows, K key heads, H query heads, E and F widths of keys and values.
Distances descend along tables, as they do along rows: from n - 1 to 0. In a ring the newest row is
anywhere, and what lies along the rows is turned.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import DistanceTerm, Side, Tokens, select
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.reference import LOWEST
from pe_jax.numerics.arrays import align


class View(NamedTuple):
    """The rows that may count."""

    k: Side
    v: jax.Array
    far: jax.Array | None
    places: jax.Array  # of each row in the cache: int32 [S]
    at: jax.Array  # which row is the new token's: int32 []
    n: int  # how many distances differ
    turns: bool = False  # whether the rows are a ring, whose oldest one follows the token's

    def by_distance(self, x: jax.Array) -> jax.Array:
        """The n rows up to the token's of x [B, H, S, …], zeros before the first: [B, H, n, …]."""
        if self.turns:
            return jnp.roll(x, -self.at - 1, 2)[:, :, -self.n :]
        begin = jnp.maximum(self.at - self.n + 1, 0)
        rows = jax.lax.dynamic_slice_in_dim(x, begin, self.n, 2)
        rows = jnp.pad(rows, [(self.n - 1 if axis == 2 else 0, 0) for axis in range(x.ndim)])
        return jax.lax.dynamic_slice_in_dim(rows, self.at - begin, self.n, 2)

    def by_row(self, near: jax.Array, past: jax.Array) -> jax.Array:
        """[B, H, n] by distance → [B, H, S] by row, `past` [B, H, 1] in the rows farther away."""
        if self.turns:
            wide = jnp.broadcast_to(past, (*near.shape[:2], len(self.places) - self.n))
            return jnp.roll(jnp.concatenate([wide, near], -1), self.at + 1, -1)
        wide = jnp.broadcast_to(past, (*near.shape[:2], len(self.places) + self.n - 1))
        return jax.lax.dynamic_update_slice_in_dim(wide, near, self.at, 2)[..., self.n - 1 :]


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
        if isinstance(term, kinds.RelativeQueries):
            vectors = _by_key_head(table[:, 0], heads, k_raw.shape[1])
            products.append(jnp.einsum("bkte,kge->bkgt", raw, vectors))
    return functools.reduce(jnp.add, products).reshape(len(k_raw), heads, -1)


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    far: Any,
    held: Any,
    at: Any,
    turns: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`, for token number `at`, which sees itself and those before it.

    `far` [B, H, S] is what `far` gave for each key, or None, and `held` what `tables` gives for S
    rows. Token j lies in row j, or where the rows take `turns`, as the indices of the keys say.
    """
    view = _view(spec, distances(terms, k.x.shape[2]), k, v, far, at, turns)
    q = q._replace(tokens=Tokens(at[None, None], at[None, None]))
    scale = spec.scale_of(terms)
    seen = view.places <= at
    if spec.window is not None:
        seen &= (view.places > at - spec.window) | (view.places < spec.sinks)
    seen = align(seen, q.x)
    for term in select(terms, kinds.Mask):
        seen = seen & term.shows(q.tokens, view.k.tokens)
    if (place := kinds.decay(terms)) is None:
        s = _products(kinds.views(terms), q.x[:, :, 0], view.k.x, at, view.places)
    else:
        s = terms[place].products(q, view.k, (q.states[place], view.k.states[place]))[:, :, 0]
    summed = _sums(scale, terms, s, q, view.k, seen)
    s = _scores(scale, terms, s, q, view, held) + _pairwise(scale, terms, q, view.k) + summed
    cap = spec.logit_cap
    s = s if cap is None else cap * jnp.tanh(s / cap)
    s = jnp.where(seen[:, :, 0], s, -jnp.inf)
    top = jnp.maximum(s.max(-1, keepdims=True), LOWEST / 2)  # finite where nothing is seen too
    weights = jnp.exp(s - top)
    total = weights.sum(-1, keepdims=True)
    out = _average(weights, view.v) + _values(terms, weights, total, view, held)
    some = total > 0
    total = jnp.where(some, total, 1)
    lse = jnp.where(some, top + jnp.log(total), LOWEST)
    return (out / total)[:, :, None], lse[:, :, None]


def _products(
    views: kinds.Views | None, q: jax.Array, k: jax.Array, at: jax.Array, places: jax.Array
) -> jax.Array:
    """Rotated q [B, H, E] · k [B, K, S, E], in the view that scores each pair: float32 [B, H, S].

    The token stands at `at` [], the keys at `places` [S].
    """
    if views is None:
        of_queries = q[:, :, None]
    else:  # the keys are read once, whole, by a query for each view
        of_queries = q.reshape(*q.shape[:2], views.count, -1)
        if not views.shared_keys:  # in its place among zeros
            own = jnp.eye(views.count, dtype=bool)[None, None, :, :, None]
            placed = jnp.where(own, of_queries[:, :, :, None], 0)
            of_queries = placed.reshape(*of_queries.shape[:3], -1)
    rows = of_queries.reshape(len(q), k.shape[1], -1, k.shape[-1])
    s = jnp.einsum("bkge,bkse->bkgs", rows, k, preferred_element_type=jnp.float32)
    s = s.reshape(*of_queries.shape[:3], -1)
    if views is None:
        return s[:, :, 0]
    view, scores = views.of(at, places), s[:, :, 0]
    for n in range(1, views.count):
        scores = jnp.where(align(view == n, scores), s[:, :, n], scores)
    return scores


def _view(
    spec: AttentionSpec, n: int, k: Side, v: jax.Array, far: Any, at: jax.Array, turns: bool
) -> View:
    """The rows that may count, where n distances differ.

    A window costs its width and the sinks theirs. Sinks come first; while the window still holds
    them, their rows are doubles, which a place past every token hides.
    """
    if turns:
        places = k.tokens.index[0]
        k = k._replace(tokens=Tokens(places[None], places[None]))
        newest = jnp.argmax(places == at).astype(jnp.int32)
        return View(k, v, far, places, newest, n, turns)
    count, sinks, rows = v.shape[2], spec.sinks, (k.x, k.raw, k.states, v, far)
    size = count if spec.window is None else max(spec.window, n)
    places = jnp.arange(count, dtype=jnp.int32)
    if sinks + size < count:
        first = jnp.maximum(at - size + 1, 0)
        lead = jnp.where(places[:sinks] < first, places[:sinks], count)
        places = jnp.concatenate([lead, first + places[:size]])
        at = at - first + sinks

        def cut(x):
            near = jax.lax.dynamic_slice_in_dim(x, first, size, 2)
            return jnp.concatenate([x[:, :, :sinks], near], axis=2) if sinks else near

        rows = jax.tree.map(cut, rows)
    x, raw, states, v, far = rows
    return View(Side(x, raw, states, Tokens(places[None], places[None])), v, far, places, at, n)


def _by_key_head(table: jax.Array, heads: int, groups: int) -> jax.Array:
    """[H or 1, …] → [K, H/K, …]: query heads by the key head that they share."""
    whole = jnp.broadcast_to(table, (heads, *table.shape[1:]))
    return whole.reshape(groups, -1, *table.shape[1:])


def _contract(form: str, x: jax.Array, table: jax.Array) -> jax.Array:
    """Contracts x with a table [H or 1, n, E]; `*` is the heads' axis, left out if shared."""
    shared = len(table) == 1
    form = form.replace("*", "" if shared else "h")
    return jnp.einsum(form, x.astype(jnp.float32), table[0] if shared else table)


def _scores(scale: float, terms: tuple, s: jax.Array, q: Side, view: View, held: Any) -> jax.Array:
    """Scales q·k [B, H, S] and adds all that has a table."""
    near, by_key = jnp.zeros((1, 1, view.n), jnp.float32), []
    for term, state, table in zip(terms, q.states, held, strict=True):
        if isinstance(term, kinds.RelativeKeys):
            near += scale * _contract("bhe,*ne->bhn", term.queries(q.raw)[:, :, 0], table)
        elif isinstance(term, kinds.RelativeState):
            near += _contract("bhe,*ne->bhn", state[:, :, 0], table)
        elif isinstance(term, kinds.DistanceBias):
            near += (scale if term.scaled else 1) * table[None]
        elif isinstance(term, kinds.RelativeQueries):
            by_key.append(table)
    past = near[..., :1]
    if by_key:
        k = view.by_distance(view.k.raw).astype(jnp.float32)
        vectors = _by_key_head(functools.reduce(jnp.add, by_key), s.shape[1], k.shape[1])
        # A product with ones takes a fifth of the time of a sum over the last axis (CPU).
        products = (k[:, :, None] * vectors[None]) @ jnp.ones(k.shape[-1], jnp.float32)
        near += scale * products.reshape(len(s), -1, view.n)
    s *= scale
    if view.far is not None:
        s += scale * view.far
        near -= scale * view.by_distance(view.far)
    return s + view.by_row(near, past) if select(terms, DistanceTerm) else s


def _pairwise(scale: float, terms: tuple, q: Side, k: Side) -> jax.Array | float:
    """Terms without a table: [B or 1, H, S], or 0."""
    added = 0.0
    for term, *states in zip(terms, q.states, k.states, strict=True):
        if isinstance(term, kinds.ScoreTerm) and not isinstance(term, DistanceTerm):
            added += (scale if term.scaled else 1) * term.scores(q, k, states)[:, :, 0]
    return added


def _sums(
    scale: float, terms: tuple, s: jax.Array, q: Side, k: Side, seen: jax.Array
) -> jax.Array | float:
    """Biases of sums along the row, for unscaled q·k [B, H, S]: [B, H, S], or 0."""
    added, content = 0.0, scale * s[:, :, None]
    for term, *states in zip(terms, q.states, k.states, strict=True):
        if isinstance(term, kinds.RowSum):
            added += term.bias(content, q, scale, states, seen)[:, :, 0]
    return added


def _average(weights: jax.Array, v: jax.Array) -> jax.Array:
    """Σ weights·v for weights [B, H, S] and v [B, K, S, F]: float32 [B, H, F]."""
    rows = weights.astype(v.dtype).reshape(*v.shape[:2], -1, v.shape[2])
    out = jnp.einsum("bkgs,bksf->bkgf", rows, v, preferred_element_type=jnp.float32)
    return out.reshape(*weights.shape[:2], -1)


def _values(
    terms: tuple, weights: jax.Array, total: jax.Array, view: View, held: Any
) -> jax.Array | float:
    """Σ weights·relative_values for weights [B, H, S] of sum `total`: [B, H, F], or 0."""
    added = [x for t, x in zip(terms, held, strict=True) if isinstance(t, kinds.RelativeValues)]
    if not added:
        return 0.0
    near = view.by_distance(weights)
    near = near.at[..., 0].add((total - near.sum(-1, keepdims=True))[..., 0])
    return _contract("bhn,*nf->bhf", near, functools.reduce(jnp.add, added))
