"""The scores of pairs (`scores`), and the values averaged with weights (`values`).

The dense engine calls these for all queries and keys, the tiled engine and rings for a tile,
decoding for one query and a cache: each is a block. (Kernels have the same formulas in `tiles.py`.)
Terms are evaluated by their definitions, or at contiguous positions along diagonals, where the
engine has a `Line` for them.

B batch, T queries, S keys, H query heads, K key heads, E and F widths of keys and values.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines.attention_spec import AttentionSpec

LOWEST = -1e30  # below any score; finite, so that differences are never NaN


def multiply(q: jax.Array, k: jax.Array) -> jax.Array:
    """[B, H, T, E] and [B, K, S, E]: float32 [B, H, T, S]. Each key is read once."""
    rows = _by_key_head(q, k)
    s = jnp.einsum("bhte,bhse->bhts", rows, k, preferred_element_type=jnp.float32)
    return s.reshape(*q.shape[:3], k.shape[2])


def average(weights: jax.Array, v: jax.Array) -> jax.Array:
    """Weights [B, H, T, S] times values [B, K, S, F]: float32 [B, H, T, F]."""
    rows = _by_key_head(weights.astype(v.dtype), v)
    out = jnp.einsum("bhts,bhsf->bhtf", rows, v, preferred_element_type=jnp.float32)
    return out.reshape(*weights.shape[:3], v.shape[3])


def _by_key_head(x: jax.Array, k: jax.Array) -> jax.Array:
    """Rows of the H/K heads that share a key head, one after the other: [B, K, H/K·T, …]."""
    batch, heads, rows, width = x.shape
    return x.reshape(batch, k.shape[1], heads // k.shape[1] * rows, width)


def require_known(terms: tuple, known: tuple[str, ...], engine: str) -> None:
    """Raises ValueError for a term that reads more than an engine has, or is of an unknown kind."""
    for term in terms:
        if term.reads not in ("outside", *known):
            raise ValueError(f"{engine} has no {type(term).__name__}")


def prepare(spec: AttentionSpec, terms: tuple, q: Side, k: Side) -> tuple[Side, Side]:
    """Both sides with each term's states of tokens, computed once per call."""
    scale = spec.scale_of(terms)
    prepared = [t.prepare(q, k, s, scale) for t, *s in zip(terms, q.states, k.states, strict=True)]
    rows, columns = zip(*prepared, strict=True) if prepared else ((), ())
    return q._replace(states=rows), k._replace(states=columns)


def visible(spec: AttentionSpec, terms: tuple, q: Tokens, k: Tokens) -> jax.Array:
    """Which pairs are visible: bool [B or 1, 1, T, S]."""
    pairs = spec.mask(q, k)
    for term in terms:
        if (term_pairs := term.visible(q, k)) is not None:
            pairs = pairs & term_pairs
    return pairs


def scores(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    pairs: Any = None,
    *,
    lines: Any = None,
    bias: Any = None,
    before: tuple = (),
    multiply: Callable = multiply,
    term_scores: Callable | None = None,
) -> tuple[jax.Array, tuple]:
    """The scores of a block before the mask, float32 [B, H, T, S]; and the sums its rows carry on.

    Args:
      spec: the sizes and options.
      terms: what the encoding adds.
      q: the queries, with the states that `prepare` gives.
      k: the keys.
      pairs: which pairs are visible, bool [B or 1, H or 1, T, S]; read by sums along rows, by
        terms of whole rows, and by the cap. None: all.
      lines: for each term a `Line` of the block, or None; None: none has one.
      bias: a further bias.
      before: for each term that sums along rows, the sums to the right, [B, H, T, 1].
      multiply: q·k in one view.
      term_scores: the scores of a term without a line; None: `Term.scores`.
    """
    scale, content, carried = spec.scale_of(terms), None, []
    pairs_of_states = tuple(zip(q.states, k.states, strict=True))
    for term, states in zip(terms, pairs_of_states, strict=True):
        if (product := term.products(q, k, states)) is not None:
            content = scale * product
    if content is None:
        content = _products(scale, kinds.views(terms), q, k, multiply)
    s, sums = content, iter(before)
    lines = lines or (None,) * len(terms)
    for term, states, line in zip(terms, pairs_of_states, lines, strict=True):
        if term.reads == "later keys":
            added, after = term.row_bias(content, states, pairs, next(sums))
            carried.append(after)
        elif line is not None:
            added = term.along(line, q, k, states)
        elif term_scores is not None:
            added = term_scores(term, q, k, states)
        else:
            added = term.scores(q, k, states)
        if added is None:
            continue
        if term.scaled:
            s = s + scale * added
        else:
            bias = added if bias is None else bias + added
    rescored = [term.rescore(s, bias, q, scale, pairs) for term in terms]
    for added in (bias, *rescored):
        s = s if added is None else s + added
    cap = spec.cap_of(terms)
    if cap is not None:  # a bias of -inf hides a pair, whatever the cap; a hidden score may be NaN
        hidden = s < jnp.finfo(s.dtype).min
        hidden = hidden if pairs is None else hidden | ~pairs
        s = jnp.where(hidden, s, cap * jnp.tanh(jnp.where(hidden, 0, s) / cap))
    return s, tuple(carried)


def _products(scale: float, views: Any, q: Side, k: Side, multiply: Callable) -> jax.Array:
    """q·k times the scale: the queries are scaled, unless that would round them once more."""
    exact = q.x.dtype == jnp.float32
    q = q._replace(x=scale * q.x) if exact else q
    product = multiply(q.x, k.x) if views is None else views.products(multiply, q, k)
    return product if exact else scale * product


def start_of_rows(terms: tuple, shape: tuple[int, ...]) -> tuple:
    """The sums that rows carry into their last block: zeros [B, H, T, 1] per term that sums."""
    sums = [term for term in terms if term.reads == "later keys"]
    return tuple(jnp.zeros((*shape, 1), jnp.float32) for _ in sums)


def values(
    terms: tuple,
    weights: jax.Array,
    q: Tokens,
    k: Tokens,
    v: jax.Array,
    *,
    lines: Any = None,
    average: Callable = average,
) -> jax.Array:
    """The values of a block averaged with weights [B, H, T, S]: float32 [B, H, T, F]."""
    out = average(weights, v)
    for term, line in zip(terms, lines or (None,) * len(terms), strict=True):
        if line is None:
            q_side, k_side = (Side(weights, None, (), tokens) for tokens in (q, k))
            added = term.values(weights, q_side, k_side)
        else:
            added = term.values_along(line, weights)
        out = out if added is None else out + added
    return out
