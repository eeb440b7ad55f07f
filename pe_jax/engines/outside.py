"""Steps outside engines: states and rotations before attention, sinks and rotations after it.

Padding gets zeros before anything reads it: a weight of 0 times NaN is NaN.

B batch (any number of axes), T queries, S keys, H query heads, K key heads, E head width, F value
width, C width of a state.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Tokens
from pe_jax.engines.sharded.layout import Contiguous
from pe_jax.numerics.position_arrays import concrete


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
        reads = term.key_width or isinstance(term, kinds.Outside)
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
        for term in kinds.select(terms, kinds.QueryBias):
            x = term.shift(x)
    for term, state in zip(terms, states, strict=True):
        if isinstance(term, kinds.Rotates):
            x = term.rotate(side, x, positions, state, lengths)
    return x


def rotate_values(terms: tuple, v: jax.Array, positions, lengths: Any = None) -> jax.Array:
    """Values [*B, S, K, F] as engines take them and a cache keeps them."""
    for term in kinds.select(terms, kinds.ValueRotation):
        v = term.rotate("v", v, positions, None, lengths)
    return v


def rotate_output(terms: tuple, out: jax.Array, positions, lengths: Any = None) -> jax.Array:
    """Outputs [*B, T, H, F] of rotated values, rotated back by the queries' positions."""
    for term in reversed(kinds.select(terms, kinds.ValueRotation)):
        out = term.rotate("out", out, positions, None, lengths)
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
        if isinstance(term, kinds.ResultTerm):
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


@functools.partial(jax.jit, inline=True)
def hide_padding(q_ids: Any, k_ids: Any, mask: Any, q: Any, k: Any, v: Any, x: Any = None) -> tuple:
    """q, k, v and x with zeros in the place of padding, which then reaches nothing, NaN or not.

    Args:
      q_ids: segments of the queries, [B, T], negative for padding; or None.
      k_ids: the same of the keys.
      mask: bool [B or 1, H or 1, T or 1, S or 1], or None: a key that it hides from every query
        counts as padding, and so does a query that it shows nothing.
      q: [*B, T, H, E].
      k: [*B, S, K, E].
      v: [*B, S, K, F].
      x: the layer's input [*B, T, D], shared by queries and keys; or None. A token in it is padding
        if both its query and its key are.
    """
    queries = True if q_ids is None else q_ids >= 0
    keys = True if k_ids is None else k_ids >= 0
    if mask is not None:
        queries, keys = queries & mask.any((1, 3)), keys & mask.any((1, 2))

    def tokens(are: Any, y: jax.Array, axes: int) -> jax.Array:
        *batch, count = y.shape[: y.ndim - axes]
        are = jnp.broadcast_to(are, (math.prod(batch), count))
        return jnp.where(are.reshape(*batch, count, *(1,) * axes), y, jnp.zeros((), y.dtype))

    x = None if x is None else tokens(queries | keys, x, 1)
    return tokens(queries, q, 2), tokens(keys, k, 2), tokens(keys, v, 2), x
