"""A small case like a call: what a kernel and the dense engine are compared on (see `self_check`).

Of a call only shapes and static fields are read, so that it may be one under a trace. The case has
the same kinds of terms with the same functions, and other numbers: a few heads, one or two rows, as
many tokens as meet whole blocks, a part of one, and what lies past a horizon.

B batch, T queries, S keys, H query heads, K key heads, C numbers of a state.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.positions import per_segment

ROWS, KV_HEADS, SHARED = 2, 2, 4  # at most: rows, key heads, query heads of each
APART = 32  # tokens that keys have more than queries, where there are other numbers of them
FORMS = (("any", "any"), ("positive", "falling"), ("negative", "rising"))  # of arrays, of states
SLACK = 1e-3  # of rounding, by which a bias that decays may rise
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class SmallCase(NamedTuple):
    """Arguments of an engine, of which all arrays but those of the tokens may be abstract."""

    spec: AttentionSpec
    terms: tuple
    q: Side
    k: Side
    v: Any


@dataclasses.dataclass(frozen=True)
class FirstHeads:
    """Picks the first heads of arrays with all of them, or one."""

    count: int

    def __call__(self, x: jax.Array, axis: int) -> jax.Array:
        """[..., H or 1, …] → [..., h or 1, …]."""
        return x if x.shape[axis] == 1 else jax.lax.slice_in_dim(x, 0, self.count, axis=axis)


def shrink(length: int, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: Any) -> SmallCase:
    """The case of a call: abstract arrays of fewer rows, heads and tokens.

    Args:
      length: tokens to have, where the call does not have fewer.
      spec: of the call, as the rest.
      terms: with arrays or abstract ones; those that are applied outside engines are left out.
      q: the queries.
      k: the keys.
      v: the values.
    """
    (_, heads, queries, _), (_, kv_heads, keys, _) = q.x.shape, k.x.shape
    kv = min(kv_heads, KV_HEADS)
    many = kv * min(heads // kv_heads, SHARED)
    counts = [min(queries, length), min(keys, length)]
    if queries != keys and min(queries, keys) > length:
        counts[keys > queries] += APART
    inside = [n for n, term in enumerate(terms) if not isinstance(term, kinds.OUTSIDE)]
    scales = [n for n, term in enumerate(terms) if isinstance(term, kinds.Scale)]

    def fewer(x: Any, heads: int, tokens: int) -> Any:
        if x is None:
            return None
        shape = min(x.shape[0], ROWS), min(x.shape[1], heads), tokens, x.shape[3]
        return jax.ShapeDtypeStruct(shape, x.dtype)

    def side(old: Side, heads: int, tokens: int, first: int) -> Side:
        states = tuple(fewer(old.states[n], many, tokens) for n in inside + scales)
        x, raw = fewer(old.x, heads, tokens), fewer(old.raw, heads, tokens)
        return Side(x, raw, states, _tokens(spec, old.tokens, tokens, first))

    def of_few_heads(terms):
        return tuple(_stateless(term).for_heads(FirstHeads(many)) for term in terms)

    window = spec.window and max(1, min(spec.window, min(counts) // 3))
    dims = Dims(many * spec.dims.head_dim, many, kv, spec.dims.head_dim)
    return SmallCase(
        dataclasses.replace(spec, dims=dims, window=window, sinks=min(spec.sinks, 3)),
        jax.eval_shape(of_few_heads, tuple(terms[n] for n in inside + scales)),
        side(q, many, counts[0], 0 if spec.aligned else max(counts[1] - counts[0], 0)),
        side(k, kv, counts[1], 0),
        fewer(v, kv, counts[1]),
    )


def _stateless(term: Any) -> Any:
    """The term without what engines do not read: its state's arrays, a device's choice of heads."""
    if term.state is not None:
        term = dataclasses.replace(term, state=dataclasses.replace(term.state, arrays=None))
    while isinstance(fn := getattr(term, "fn", None), kinds.OfSomeHeads):
        term = dataclasses.replace(term, fn=fn.fn)
    return term


def _tokens(spec: AttentionSpec, like: Tokens, count: int, first: int) -> Tokens:
    """Tokens with all that the call's have: indices from `first` on, two documents and padding.

    Explicit positions have gaps, and of three tokens two share one.
    """
    index = first + np.arange(count, dtype=np.int32)
    positions = np.arange(count) if spec.contiguous else 2 * index + 3 - 2 * (index % 3 == 2)
    if axes := like.positions.shape[2:]:
        edge = max(1, int(count ** (1 / axes[0]) + 1e-6))  # of a square or cube, rows first
        columns = [np.arange(count) // edge**axis % edge for axis in reversed(range(axes[0]))]
        positions = np.stack(columns, axis=-1)  # what does not fit begins anew
    segments = rank = None
    if like.segments is not None:
        segments = np.where(np.arange(count) < 0.4 * count, 0, 1)
        segments = np.where(np.arange(count) < 0.9 * count, segments, -1)[None]
        segments = jnp.asarray(segments.repeat(min(len(like.segments), ROWS), 0), jnp.int32)
        rank = None if like.rank is None else per_segment(segments)
    positions = positions[None].repeat(min(len(like.positions), ROWS), 0)
    positions = per_segment(segments) if spec.restarts else positions
    index = index[None].repeat(min(len(like.index), ROWS), 0)
    return Tokens(jnp.asarray(positions, like.positions.dtype), jnp.asarray(index), segments, rank)


# What tells one case from another.


def describe(case: SmallCase) -> str:
    """All that distinguishes a case, as text: sizes, dtypes, terms, and what their functions do."""
    lines = [_plain(repr(case.spec))]
    for name, side in (("queries", case.q), ("keys", case.k)):
        shapes = [_shape(x) for x in (side.x, side.raw, *side.tokens)]
        lines.append(f"{name} {' '.join(shapes)}")
    lines.append(f"values {_shape(case.v)}")
    for term, *states in zip(case.terms, case.q.states, case.k.states, strict=True):
        fields = {f.name: getattr(term, f.name) for f in dataclasses.fields(term)}
        named = ", ".join(f"{name}={_named(value)}" for name, value in fields.items())
        shapes = " ".join(map(_shape, states)) if states[0] is not None else ""
        lines.append(f"{type(term).__name__}({named}) {shapes} {_code(term, case, states)}".strip())
    return "\n".join(lines)


def _code(term: Any, case: SmallCase, states: list) -> str:
    """A digest of the program of a term's function: to rewrite it makes another case."""
    if isinstance(term, kinds.ScoreTerm):
        program = jax.make_jaxpr(lambda term, q, k, states: term.scores(q, k, states))
        text = program(term, case.q, case.k, states)
    elif isinstance(term, kinds.DistanceTerm):
        text = jax.make_jaxpr(lambda term, d: term.at(d))(term, np.arange(3, dtype=np.int32))
    else:
        return ""
    return hashlib.sha256(_plain(str(text)).encode()).hexdigest()[:16]


def _plain(text: str) -> str:
    """Text without addresses in memory."""
    return ADDRESS.sub("", text)


def _shape(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if hasattr(x, "shape") else repr(x)


def _named(value: Any) -> str:
    """A field of a term: a function by its name and owner, arrays by their shapes."""
    if isinstance(value, kinds.OfSomeHeads):
        return _named(value.fn)
    if isinstance(value, kinds.Method):
        return f"{_named(value.function)} of {_plain(repr(value.owner))}"
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _plain(repr(jax.tree.map(_shape, value)))


# Numbers.


def draw(case: SmallCase) -> SmallCase:
    """The case with arrays of numbers, the same each time, under which each term keeps its word.

    Formulas may need numbers of one sign (rates, widths), a bias that decays states that only
    rise or fall. So for each term a few draws are tried: the first under which all visible
    pairs are finite, and what decays does.

    Raises:
      ValueError: there is none.
    """
    sides = [
        side._replace(x=_normal(side.x, 1 + n), raw=_normal(side.raw, 3 + n))
        for n, side in enumerate((case.q, case.k))
    ]
    terms, states = [], []
    for n, (term, *shapes) in enumerate(zip(case.terms, case.q.states, case.k.states, strict=True)):
        for drawn, of_both in _draws(term, shapes, 10 * (n + 1)):
            if _holds(case.spec, drawn, sides[0], sides[1], of_both):
                break
        else:
            kind = type(term).__name__
            raise ValueError(f"no numbers were found under which its {kind} is finite, or decays")
        terms.append(drawn)
        states.append(of_both)
    rows, columns = (tuple(pair[n] for pair in states) for n in range(2))
    q, k = sides[0]._replace(states=rows), sides[1]._replace(states=columns)
    return SmallCase(case.spec, tuple(terms), q, k, _normal(case.v, 5))


def _draws(term: Any, states: list, seed: int) -> Iterator[tuple[Any, list]]:
    """A term and its states of both sides, with numbers of one form after the other."""
    leaves, structure = jax.tree.flatten(term)
    for sign, course in FORMS:
        numbers = [_signed(_normal(x, seed + n), sign) for n, x in enumerate(leaves)]
        of_both = [_course(_normal(x, seed), course) for x in states]
        yield jax.tree.unflatten(structure, numbers), of_both


def _normal(like: Any, seed: int) -> Any:
    """Normal numbers of this shape and dtype, the same on every machine; None for None."""
    if like is None:
        return None
    numbers = np.random.default_rng([seed, *like.shape]).standard_normal(like.shape, np.float32)
    return jnp.asarray(numbers, like.dtype)


def _signed(x: jax.Array, sign: str) -> jax.Array:
    half = 0.5 * x
    return {"any": half, "positive": jnp.abs(half), "negative": -jnp.abs(half)}[sign]


def _course(x: Any, course: str) -> Any:
    """States that are noise, or running sums: [B or 1, H, T, C]."""
    if x is None or course == "any":
        return x
    return jnp.cumsum((0.1 if course == "rising" else -0.1) * jnp.abs(x), axis=2)


def _holds(spec: AttentionSpec, term: Any, q: Side, k: Side, states: list) -> bool:
    """Whether a term is finite at visible pairs, and decays if it says so."""
    if isinstance(term, kinds.DistanceTerm) and q.tokens.positions.ndim == 2:
        far = max(q.x.shape[2], k.x.shape[2])
        distance = jnp.arange(-far, far, dtype=jnp.int32)
        return bool(jnp.isfinite(jax.jit(lambda d: term.at(d))(distance)).all())
    if not isinstance(term, kinds.ScoreTerm):
        return True
    pairs, visible = jax.jit(
        lambda q, k, *s: (term.scores(q, k, s), spec.mask(q.tokens, k.tokens))
    )(q, k, *states)
    pairs, visible = np.asarray(pairs), np.asarray(visible)
    if not np.isfinite(np.where(visible, pairs, 0)).all():
        return False
    if not (getattr(term, "decays", False) and spec.aligned):
        return True
    steps = np.diff(pairs, axis=-1)  # from each key to the next
    past = np.tri(*steps.shape[-2:], k=-1, dtype=bool)
    rises, falls = np.where(past, steps, 0) > -SLACK, np.where(past, 0, steps) < SLACK
    return bool(rises.all() and (falls.all() or spec.causal))
