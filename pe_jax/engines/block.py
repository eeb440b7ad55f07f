"""The scores of pairs (`scores`), and the values averaged with weights (`values`).

The dense engine calls these for all queries and keys, the tiled engine and rings for a tile,
decoding for one query and a cache: each is a block. (Kernels have the same formulas in `tiles.py`.)
Terms are evaluated by their definitions, or at contiguous positions along diagonals, where the
engine has a `Line` for them.

B batch, T queries, S keys, H query heads, K key heads, E and F widths of keys and values.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.numerics.arrays import repeat_heads

LOWEST = -1e30  # below any score; finite, so that differences are never NaN


@functools.partial(jax.jit, inline=True)  # outside of jit one program
def multiply(q: jax.Array, k: jax.Array) -> jax.Array:
    """[B, H, T, E] and [B, K, S, E]: float32 [B, H, T, S]. Each key is read once."""
    rows = _by_key_head(q, k)
    s = jnp.einsum("bhte,bhse->bhts", rows, k, preferred_element_type=jnp.float32)
    return s.reshape(*q.shape[:3], k.shape[2])


@functools.partial(jax.jit, inline=True)
def average(weights: jax.Array, v: jax.Array) -> jax.Array:
    """Weights [B, H, T, S] times values [B, K, S, F]: float32 [B, H, T, F]."""
    rows = _by_key_head(weights.astype(v.dtype), v)
    out = jnp.einsum("bhts,bhsf->bhtf", rows, v, preferred_element_type=jnp.float32)
    return out.reshape(*weights.shape[:3], v.shape[3])


def _by_key_head(x: jax.Array, k: jax.Array) -> jax.Array:
    """Rows of the H/K heads that share a key head, one after the other: [B, K, H/K·T, …]."""
    batch, heads, rows, width = x.shape
    return x.reshape(batch, k.shape[1], heads // k.shape[1] * rows, width)


PAIRS = (  # what any engine of blocks does with a term
    *(kinds.AroundEngine, kinds.ScoreTerm, kinds.ProductTerm, kinds.RelativeValues),
    *(kinds.PairRescore, kinds.Mask, kinds.TracedScalars),
)


def require_known(terms: tuple, engine: str, protocols: tuple = (*PAIRS, kinds.RowTerm)) -> None:
    """Raises ValueError for a term whose protocol an engine does not have."""
    for term in terms:
        if not isinstance(term, protocols):
            raise ValueError(f"{engine} has no {type(term).__name__}")


def prepare(spec: AttentionSpec, terms: tuple, q: Side, k: Side) -> tuple[Side, Side]:
    """Both sides with each term's states of tokens, computed once per call."""
    scale = spec.scale_of(terms)
    prepared = [t.prepare(q, k, s, scale) for t, *s in zip(terms, q.states, k.states, strict=True)]
    rows, columns = zip(*prepared, strict=True) if prepared else ((), ())
    return q._replace(states=rows), k._replace(states=columns)


def with_products(spec: AttentionSpec, terms: tuple, q: Side, k: Side) -> tuple[Side, Side]:
    """q and k with further channels, whose products are those of the states of `TokenProduct`s.

    They are rounded as q and k are.
    """
    rows, columns, batch = [q.x], [k.x], q.x.shape[0]
    for term, *states in zip(terms, q.states, k.states, strict=True):
        if isinstance(term, kinds.TokenProduct):
            factors = (
                jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in kinds.halves(term.state, states)
            )
            row, column = factors
            rows.append((row / spec.scale_of(terms)).astype(q.x.dtype))
            columns.append(column.astype(k.x.dtype))
    if len(rows) == 1:
        return q, k
    columns[0] = repeat_heads(k.x, q.x.shape[1])
    x, y = (jnp.concatenate(arrays, axis=-1) for arrays in (rows, columns))
    return q._replace(x=x), k._replace(x=y)


def products_as_channels(
    spec: AttentionSpec, terms: tuple, q: Side, k: Side
) -> tuple[tuple, Side, Side]:
    """Terms without any `TokenProduct`, and q and k `with_products`, where nothing is rounded.

    One product of more channels takes less time than two and their sum. Terms that read q·k apart
    from biases, key heads that several heads share, and devices other than a CPU, which round q·k
    by default, leave all as it is.
    """
    readers = kinds.ProductTerm, kinds.PairRescore, kinds.RowTerm
    exact = q.x.dtype == k.x.dtype == jnp.float32 and jax.default_backend() == "cpu"
    alone = kinds.views(terms) is None and not kinds.select(terms, *readers)
    if not (exact and alone and q.x.shape[1] == k.x.shape[1]):
        return terms, q, k
    kept = [not isinstance(term, kinds.TokenProduct) for term in terms]
    q, k = with_products(spec, terms, q, k)
    rows, columns = (tuple(itertools.compress(side.states, kept)) for side in (q, k))
    terms = tuple(itertools.compress(terms, kept))
    return terms, q._replace(states=rows), k._replace(states=columns)


def visible(spec: AttentionSpec, terms: tuple, q: Tokens, k: Tokens) -> jax.Array:
    """Which pairs are visible: bool [B or 1, 1, T, S]."""
    pairs = spec.mask(q, k)
    for term in kinds.select(terms, kinds.Mask):
        pairs = pairs & term.visible(q, k)
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
    """The scores of a block before the mask, float32 [B, H, T, S]; and what its rows carry on.

    Args:
      spec: the sizes and options.
      terms: what the encoding adds.
      q: the queries, with the states that `prepare` gives.
      k: the keys.
      pairs: which pairs are visible, bool [B or 1, H or 1, T, S]; read by sums along rows and by
        the cap. None: all.
      lines: for each term a `Line` of the block, or None; None: none has one.
      bias: a further bias.
      before: for each term what the block on the right carries, [B, H, T, carry], or None;
        (): no term does.
      multiply: q·k in one view.
      term_scores: the scores of a term without a line; None: `ScoreTerm.scores`.
    """
    scale, carried, products = spec.scale_of(terms), list(before), None
    lines = lines or (None,) * len(terms)
    each = list(zip(terms, zip(q.states, k.states, strict=True), lines, strict=True))
    for n, (term, states, _) in enumerate(each):  # at most one
        if isinstance(term, kinds.ProductTerm):
            products = scale * term.products(q, k, states)
        elif isinstance(term, kinds.RowTerm) and term.replaces:
            added, carried[n] = term.row(q, k, states, None, pairs, before[n])
            products = scale * added
    if products is None:
        products = _products(scale, kinds.views(terms), q, k, multiply)
    s = products
    for n, (term, states, line) in enumerate(each):
        if isinstance(term, kinds.RowTerm) and not term.replaces:
            added, carried[n] = term.row(q, k, states, products, pairs, before[n])
            bias = added if bias is None else bias + added
        if not isinstance(term, kinds.ScoreTerm):
            continue
        if isinstance(term, kinds.DistanceScores) and line is not None:
            added = term.along(line, q, k, states)
        else:
            evaluate = functools.partial(term_scores, term) if term_scores else term.scores
            added = evaluate(q, k, states)
        if term.scaled:
            s = s + scale * added
        else:
            bias = added if bias is None else bias + added
    rescores = kinds.select(terms, kinds.PairRescore)
    rescored = [term.rescore(s, bias) for term in rescores]
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
    """What rows carry into their last block: zeros [B, H, T, carry] of a `RowTerm`, else None."""
    return tuple(
        jnp.zeros((*shape, term.carry), jnp.float32) if isinstance(term, kinds.RowTerm) else None
        for term in terms
    )


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
        if isinstance(term, kinds.RelativeValues):
            out = out + (term.pairs(q, k) if line is None else line).average(weights)
    return out


def side_by_side(
    attend: Callable, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`attend(spec, terms, q, k, v)`, the tokens of each document side by side if they are not.

    As this is known at run time, distances are read from positions.
    """
    batch = len(q.x)
    vectors, tokens = (q._replace(tokens=None), k._replace(tokens=None), v), (q.tokens, k.tokens)
    vectors, tokens = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (batch, *x.shape[1:])), (vectors, tokens)
    )
    ids = tokens[0].segments
    order = jnp.argsort(ids, axis=1, stable=True)
    ends = [(x[:, 1:] != x[:, :-1]).sum() for x in (ids, jnp.take_along_axis(ids, order, 1))]
    adjacent = ends[0] == ends[1]

    def moved(order, axis, tree):
        take = jax.vmap(functools.partial(jnp.take, axis=axis - 1))
        return jax.lax.cond(
            adjacent, lambda x: x, lambda x: jax.tree.map(lambda y: take(y, order), x), tree
        )

    (q, k, v), (q_tokens, k_tokens) = moved(order, 2, vectors), moved(order, 1, tokens)
    spec = of_moved(spec)
    sides = q._replace(tokens=q_tokens), k._replace(tokens=k_tokens)
    return moved(jnp.argsort(order, axis=1), 2, attend(spec, terms, *sides, v))


def of_moved(spec: AttentionSpec) -> AttentionSpec:
    """The spec of tokens that `side_by_side` may have moved."""
    return dataclasses.replace(spec, contiguous=False, restarts=False)
