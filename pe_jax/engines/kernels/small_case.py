"""A small case like a call: what a kernel and the dense engine are compared on (see `self_check`).

Only shapes and static fields of the call are read, so that it may be under a trace. The case has
the same kinds of terms with the same functions, but other numbers: a few heads, one or two rows,
and enough tokens for whole blocks, a part of one, and pairs past a horizon and in every view.

B batch, T queries, S keys, H query heads, K key heads, C numbers of a state.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines.attention_spec import AttentionSpec, Call
from pe_jax.positions import per_segment

ROWS, KV_HEADS, SHARED = 2, 2, 4  # at most: rows, key heads, query heads of each
APART = 32  # keys beyond the queries, or the reverse, if a call has different numbers of them
SIGNS = (None, 1, -1)  # of a term's drawn arrays: any, positive, negative
SLACK = 1e-3  # how much a bias that decays may rise by rounding


@dataclasses.dataclass(frozen=True)
class FirstHeads:
    """Picks the first heads of arrays with all of them, or one."""

    count: int

    def __call__(self, x: jax.Array, axis: int) -> jax.Array:
        """[..., H or 1, …] → [..., h or 1, …]."""
        return x if x.shape[axis] == 1 else jax.lax.slice_in_dim(x, 0, self.count, axis=axis)


def shrink(length: int, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: Any) -> Call:
    """The case of a call: abstract arrays with fewer rows, heads and tokens, of the same widths.

    It has `length` tokens, or fewer if the call has fewer. Terms that are applied outside
    engines are left out.
    """
    (_, heads, queries, _), (_, kv_heads, keys, _) = q.x.shape, k.x.shape
    kv = min(kv_heads, KV_HEADS)
    many = kv * min(heads // kv_heads, SHARED)
    counts = [min(queries, length), min(keys, length)]
    if queries != keys and min(queries, keys) > length:
        counts[keys > queries] += APART
    read = [
        not isinstance(t, kinds.AroundEngine)
        or isinstance(t, kinds.Scale)
        or getattr(t, "views", None) is not None
        for t in terms
    ]

    def fewer(x: Any, heads: int, tokens: int) -> Any:
        if x is None:
            return None
        shape = min(x.shape[0], ROWS), min(x.shape[1], heads), tokens, x.shape[3]
        return jax.ShapeDtypeStruct(shape, x.dtype)

    def side(old: Side, heads: int, tokens: int, first: int) -> Side:
        states = tuple(fewer(s, many, tokens) for s in itertools.compress(old.states, read))
        x, raw = fewer(old.x, heads, tokens), fewer(old.raw, heads, tokens)
        return Side(x, raw, states, _tokens(spec, old.tokens, tokens, first))

    def of_few_heads(term):
        if isinstance(term, kinds.Rotation):  # its views alone are read
            return kinds.Rotation(None, None, views=_nearer(term.views, min(counts)))
        term = term.without_state_arrays()
        while whole := {  # functions for the heads of one device
            field.name: fn.fn
            for field in dataclasses.fields(term)
            if isinstance(fn := getattr(term, field.name), kinds.OfSomeHeads)
        }:
            term = dataclasses.replace(term, **whole)
        return term.for_heads(FirstHeads(many))

    window = spec.window and max(1, min(spec.window, min(counts) // 3))
    dims = Dims(many * spec.dims.head_dim, many, kv, spec.dims.head_dim)
    return Call(
        dataclasses.replace(spec, dims=dims, window=window),
        tuple(jax.eval_shape(of_few_heads, t) for t in itertools.compress(terms, read)),
        side(q, many, counts[0], 0 if spec.aligned else max(counts[1] - counts[0], 0)),
        side(k, kv, counts[1], 0),
        fewer(v, kv, counts[1]),
    )


def _nearer(views: Any, tokens: int) -> kinds.Views:
    """The views with edges within the first half of this many tokens."""
    shrink = max(1, -(-2 * views.edges[-1] * views.unit // max(tokens, 1)))
    if views.unit > 1:
        return dataclasses.replace(views, unit=max(2, views.unit // shrink))
    edges = (max(n, edge // shrink) for n, edge in enumerate(views.edges, 1))
    return dataclasses.replace(views, edges=tuple(edges))


def _tokens(spec: AttentionSpec, like: Tokens, count: int, first: int) -> Tokens:
    """Tokens with the fields that the call's have: indices from `first`, two documents, padding.

    Explicit positions have gaps, and two of every three tokens share one.
    """

    def in_rows(x: np.ndarray, like: Any) -> jax.Array:
        return jnp.asarray(x[None].repeat(min(len(like), ROWS), 0), like.dtype)

    place = np.arange(count)
    index = first + place
    positions = place if spec.contiguous else 2 * index + 3 - 2 * (index % 3 == 2)
    if axes := like.positions.ndim > 2 and like.positions.shape[2]:
        edge = max(1, int(count ** (1 / axes) + 1e-6))  # of a square or cube, rows first
        cells = place % edge**axes  # tokens that do not fit start over
        positions = np.stack(np.unravel_index(cells, (edge,) * axes), axis=-1)
    positions, segments = in_rows(positions, like.positions), None
    if like.segments is not None:
        ids = np.where(place < 0.4 * count, 0, np.where(place < 0.9 * count, 1, -1))
        segments = in_rows(ids, like.segments)
        positions = per_segment(segments) if spec.restarts else positions
    return Tokens(positions, in_rows(index, like.index), segments)


def key(call: Call) -> tuple[AttentionSpec, Any, tuple]:
    """A hashable key of a call or a case: its options, structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tuple(call[1:]))
    return call.spec, structure, tuple((np.shape(x), jnp.result_type(x)) for x in leaves)


def draw(case: Call) -> Call:
    """The case with the same random numbers each time, with which each term is as it declares.

    Formulas may need numbers of one sign (rates, widths); a bias that decays needs states that only
    rise or fall. So a few draws are tried for each term. The first is taken with which all visible
    pairs are finite, and the term decays if it says so.

    Raises:
      ValueError: no draw is usable.
    """
    q, k = (
        side._replace(x=_normal(side.x, 1 + n), raw=_normal(side.raw, 3 + n))
        for n, side in enumerate((case.q, case.k))
    )
    terms, states = [], []
    for n, (term, *shapes) in enumerate(zip(case.terms, case.q.states, case.k.states, strict=True)):
        leaves, structure = jax.tree.flatten(term)
        for sign in SIGNS:
            arrays = [0.5 * _normal(x, 10 * (n + 1) + i) for i, x in enumerate(leaves)]
            of_both = [_normal(x, 10 * (n + 1)) for x in shapes]
            if sign is not None:
                arrays = [sign * jnp.abs(x) for x in arrays]
                steps = jax.tree.map(lambda x, sign=sign: -0.1 * sign * jnp.abs(x), of_both)
                of_both = jax.tree.map(lambda x: jnp.cumsum(x, axis=2), steps)
            if isinstance(term, kinds.PathProduct):
                of_both = jax.tree.map(_reflections, of_both)
            drawn = jax.tree.unflatten(structure, arrays)
            if _is_usable(case.spec, drawn, q, k, of_both):
                break
        else:
            kind = type(term).__name__
            raise ValueError(f"no numbers were found for which its {kind} is finite, or decays")
        terms.append(drawn)
        states.append(of_both)
    rows, columns = (tuple(pair[n] for pair in states) for n in range(2))
    q, k = q._replace(states=rows), k._replace(states=columns)
    return Call(case.spec, tuple(terms), q, k, _normal(case.v, 5))


def _normal(like: Any, seed: int) -> Any:
    """Normal numbers of this shape and dtype, the same on every machine; None for None."""
    if like is None:
        return None
    numbers = np.random.default_rng([seed, *like.shape]).standard_normal(like.shape, np.float32)
    return jnp.asarray(numbers, like.dtype)


def _reflections(x: jax.Array) -> jax.Array:
    """The maps I - 2wwᵀ, as vectors 2w ‖ w [..., 2E] with |w| = 1: no product of them vanishes."""
    w = jnp.split(x.astype(jnp.float32), 2, axis=-1)[1]
    w = w / jnp.linalg.norm(w, axis=-1, keepdims=True)
    return jnp.concatenate([2 * w, w], axis=-1).astype(x.dtype)


def _is_usable(spec: AttentionSpec, term: Any, q: Side, k: Side, states: list) -> bool:
    """Whether a term is finite at visible pairs, and decays or fades if it says so."""
    if isinstance(term, kinds.ChannelDecay):
        return bool((jnp.diff(states[0], axis=2) <= 0).all())
    if isinstance(term, kinds.DistanceTerm) and q.tokens.positions.ndim == 2:
        far = max(q.x.shape[2], k.x.shape[2])
        distance = jnp.arange(-far, far, dtype=jnp.int32)
        return bool(jnp.isfinite(jax.jit(term.at)(distance)).all())
    if not isinstance(term, kinds.ScoreTerm):
        return True
    pairs = np.asarray(jax.jit(term.scores)(q, k, states))
    visible = np.asarray(spec.mask(q.tokens, k.tokens))
    if not np.isfinite(np.where(visible, pairs, 0)).all():
        return False
    if not (term.decays and spec.aligned):
        return True
    steps = np.diff(pairs, axis=-1)  # from each key to the next
    past = np.tri(*steps.shape[-2:], k=-1, dtype=bool)
    rises, falls = np.where(past, steps, 0) > -SLACK, np.where(past, 0, steps) < SLACK
    return bool(rises.all() and (falls.all() or spec.causal))
