"""Steps outside engines: states and rotations before attention, sinks and rotations after it.

A hidden token affects no result, even if it is NaN. As a weight of 0 times NaN is NaN, engines get
zeros for tokens that are not finite, and queries that see such a token are set to NaN afterwards.

B batch (any number of axes), T queries, S keys, H query heads, K key heads, E head width, F value
width, C width of a state.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from pe_jax.encodings.terms import Tokens
from pe_jax.engines import block
from pe_jax.engines.sharded.layout import Contiguous
from pe_jax.numerics.arrays import varying_like
from pe_jax.numerics.position_arrays import concrete

RARE = "only_if_broken"  # scope of the operations that run only if a token is not finite
FINITE = "pe_jax_finite"  # one boolean per call, which `jax.checkpoint` may save: else recomputed
CHUNK = 256  # queries whose mask is evaluated together


def states(
    terms: tuple, layout: Contiguous, x: Any, positions: Any, tokens: Any, heads: int
) -> list[tuple[Any, ...]]:
    """The states of queries and those of keys, [*B, T, H, C] or None for each term.

    `tokens` are the shapes (*B, T) and (*B, S), `heads` those of queries. A state of the layer's
    input `x` is computed once for both sides.

    Raises:
      ValueError: a state of another shape than its term declares.
    """

    def state(term, side):
        values = layout.state(term.state, x, positions[side])
        rows = (*tokens[side], heads)
        leads = rows, rows[-2:], (1, *rows[-2:])
        if values.shape[:-1] not in leads or values.shape[-1] != term.state.width:
            name, want = type(term).__name__, [*rows, term.state.width]
            raise ValueError(f"{name}: its State gives shape {list(values.shape)}, not {want}")
        return values

    of_queries = [None if t.state is None else state(t, 0) for t in terms]
    of_keys = []
    for term, values in zip(terms, of_queries, strict=True):
        reads = term.reads_keys or term.reads == "outside"
        if term.state is not None and term.state.of != "x" and reads:
            values = state(term, 1)
        of_keys.append(values if reads else None)
    return [tuple(of_queries), tuple(of_keys)]


def rotate(
    terms: tuple, side: str, x: jax.Array, positions, states: tuple, lengths: Any = None
) -> jax.Array:
    """Queries (`side` "q") or keys ("k") [*B, T, H or K, E] after query biases and rotations.

    `lengths` [*B, T] are those of each token's document, for terms that read them (`by_length`).
    """
    if side == "q":
        for term in terms:
            x = term.shift(x)
    for term, state in zip(terms, states, strict=True):
        x = term.rotate(side, x, positions, state, lengths)
    return x


def rotate_values(terms: tuple, v: jax.Array, positions, lengths: Any = None) -> jax.Array:
    """Values [*B, S, K, F] as engines take them and a cache keeps them."""
    for term in terms:
        v = term.rotate_values(v, positions, lengths)
    return v


def rotate_output(terms: tuple, out: jax.Array, positions, lengths: Any = None) -> jax.Array:
    """Outputs [*B, T, H, F] of rotated values, rotated back by the queries' positions."""
    for term in reversed(terms):
        out = term.rotate_output(out, positions, lengths)
    return out


def read_raw(terms: tuple, q_raw: jax.Array, k_raw: jax.Array) -> tuple[Any, Any]:
    """Queries and keys before rotations where terms read them, else None."""
    read = {term.reads_raw for term in terms}
    return q_raw if "q" in read else None, k_raw if "k" in read else None


def rescale(terms: tuple, states: tuple, out: jax.Array, lse: Any) -> tuple[jax.Array, Any]:
    """The output [B, H, T, F] after sinks, or unnormalized, and lse [B, H, T, 1].

    `states` [B or 1, H, T, 1] are those of the queries, for each term.
    """
    for term, state in zip(terms, states, strict=True):
        out, lse = term.rescale(out, lse, state)
    return out, lse


def nan_beyond(length: int | None, sides: tuple[Tokens, ...], results: tuple) -> tuple:
    """Results [B, H, T, …], NaN in batch rows that have a traced position of `length` or more.

    Such a row needs another scaling throughout. Known positions were refused before; padding does
    not count. Results that are None stay so.
    """
    if length is None or all(concrete(side.positions) is not None for side in sides):
        return results
    rows: Any = False
    for side in sides:
        far = (side.positions >= length).reshape(*side.positions.shape[:2], -1).any(-1)
        if side.segments is not None:
            far &= side.segments >= 0
        rows |= far.any(-1)[:, None, None, None]
    return jax.tree.map(lambda x: jnp.where(rows, jnp.nan, x), results)


def heads_first(x: jax.Array) -> jax.Array:
    """[*B, T, H, E] → [B, H, T, E]."""
    return jnp.swapaxes(x.reshape(-1, *x.shape[-3:]), 1, 2)


class Broken(NamedTuple):
    """Which tokens have numbers that are not finite."""

    any: jax.Array  # whether there are any, padding too: bool []
    q: jax.Array  # queries, bool [B, T]
    k: jax.Array  # keys, bool [B, S]


@jax.custom_jvp
def finite(x: jax.Array) -> jax.Array:
    """x with zeros where it is not finite."""
    return jnp.where(jnp.isfinite(x), x, jnp.zeros((), x.dtype))


@finite.defjvp
def _(primals, tangents):
    # Zeroed elements need no gradient: `put_back` writes NaN for the queries that see them. A
    # `where` would keep a mask of all elements for the backward pass.
    return finite(*primals), *tangents


@jax.custom_jvp
def nan_where(wrong: jax.Array, x: jax.Array) -> jax.Array:
    """x with NaN where `wrong`; gradients pass unchanged."""
    return jnp.where(wrong, jnp.nan, x)


@nan_where.defjvp
def _(primals, tangents):
    return nan_where(*primals), tangents[1]


@functools.partial(jax.jit, inline=True)
def set_aside(
    ids: tuple, q: jax.Array, k: jax.Array, v: jax.Array, x: Any = None
) -> tuple[tuple[jax.Array, jax.Array, jax.Array, Any], Broken]:
    """The arrays with zeros where they are not finite, and which tokens these are.

    A program gains only elementwise passes: tokens are searched only if an element is not finite.

    Args:
      ids: segments of queries and of keys, [B or 1, T] each or None; negative for padding.
      q: [*B, T, H, E].
      k: [*B, S, K, E].
      v: [*B, S, K, F].
      x: the layer's input [*B, T, D] where terms read it, shared by queries and keys; or None.
    """
    # Heads lead in what engines read: in this order XLA checks what a product has just written.
    q, k, v = (jnp.swapaxes(y, -3, -2) for y in (q, k, v))
    arrays = (q, k, v) if x is None else (q, k, v, x)
    all_finite = functools.reduce(jnp.logical_and, (jnp.isfinite(y).all() for y in arrays))
    all_finite = checkpoint_name(all_finite, FINITE)

    def broken(y, axes=(-3, -1)):
        marks = ~jnp.isfinite(y).all(axes)
        return marks.reshape(-1, marks.shape[-1])

    def tokens():
        queries, keys = broken(q), broken(k) | broken(v)
        if x is not None:
            queries, keys = (marks | broken(x, -1) for marks in (queries, keys))
        is_token = (True if y is None else y >= 0 for y in ids)
        marks = tuple(a & b for a, b in zip((queries, keys), is_token, strict=True))
        return varying_like(marks, (arrays, ids))

    shapes = jax.eval_shape(tokens)

    def none():
        return varying_like(tuple(jnp.zeros(y.shape, bool) for y in shapes), (arrays, ids))

    with jax.named_scope(RARE):
        queries, keys = jax.lax.cond(all_finite, none, tokens)
    q, k, v = (jnp.swapaxes(finite(y), -3, -2) for y in (q, k, v))
    return (q, k, v, None if x is None else finite(x)), Broken(~all_finite, queries, keys)


def hide_padding(ids: Any, x: Any, axes: int = 1) -> Any:
    """x [*B, T, …], or None, with zeros for tokens whose id [B, T] is negative; `axes` after T."""
    if ids is None or x is None:
        return x
    real = (ids >= 0).reshape(*x.shape[: x.ndim - axes], *(1,) * axes)
    return jnp.where(real, x, jnp.zeros((), x.dtype))


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _put_back(
    spec: Any, chunk: int, terms: tuple, q: Any, k: Any, mask: Any, broken: Broken, results: tuple
) -> tuple:
    """Results [B, H, T, …], or None, with NaN for queries that are broken or see a broken key.

    Args:
      spec: the `AttentionSpec` of the call.
      chunk: how many queries are checked together, in O(S) memory; only if a token is broken.
      terms: the terms that hide pairs.
      q: the tokens of the queries.
      k: the tokens of the keys.
      mask: hides more pairs, bool [B, H or 1, T or 1, S or 1]; or None.
      broken: which tokens are broken.
      results: what an engine returned.
    """
    count: Any = broken.q.shape[1]
    symbolic = bool(jax.export.is_symbolic_dim(count))
    size = count if symbolic else min(count, chunk)

    def chunk_sees(start: Any) -> jax.Array:
        def cut(x: jax.Array, axis: int) -> jax.Array:
            shared = x.shape[axis] != count
            return x if shared else jax.lax.dynamic_slice_in_dim(x, start, size, axis)

        rows = jax.tree.map(lambda x: cut(x, 1), q)
        pairs = block.visible(spec, terms, rows, k)
        pairs = pairs if mask is None else pairs & cut(mask, 2)
        return (pairs & broken.k[:, None, None, :]).any((1, 3))

    def all_see() -> jax.Array:
        if size == count:
            return chunk_sees(0)
        starts = np.minimum(np.arange(0, count, size), count - size).astype(np.int32)
        chunks = jax.lax.map(chunk_sees, jnp.asarray(starts))  # the last two may overlap
        whole = jnp.moveaxis(chunks[:-1], 0, 1).reshape(chunks.shape[1], -1)
        last = count - whole.shape[1]
        return jnp.concatenate([whole, chunks[-1][:, size - last :]], axis=1)

    with jax.named_scope(RARE):
        wrong = jax.lax.cond(broken.any, all_see, lambda: jnp.zeros_like(broken.q))
    wrong = (broken.q | wrong)[:, None, :, None]
    return jax.tree.map(functools.partial(nan_where, wrong), results)


def put_back(broken: Broken, call: Any, implementation: Any, results: tuple) -> tuple:
    """The results of a `dispatch.Call`, NaN where a query is broken or sees a broken key."""
    terms = tuple(term for term in call.terms if term.hides)
    pairs = getattr(implementation, "keywords", {}).get("mask")  # an array, for `reference`
    tokens = call.q.tokens, call.k.tokens
    return _put_back(call.spec, CHUNK, terms, *tokens, pairs, broken, results)
