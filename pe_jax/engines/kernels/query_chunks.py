"""Terms that kernels do not compute: their scores, one strip of queries after the other.

A bias of pairs (class tokens; on a GPU, FIRE), of distances of several axes (Swin), or of distances
that are not known beforehand is a function of JAX on positions, learned or not. XLA evaluates it
once for all heads, and all rows of the batch that share positions, for as many queries as make a
`strip`: [B or 1, H or 1, R, S], which the kernels read tile by tile. They write the gradient of
each score of the strip, and XLA pulls it back through the function: no atomics, and memory for one
strip. Of keys that causality hides, strips meet at most those up to the end of their group: of four
groups, 5/8 of all pairs are evaluated.

So can be products with vectors of all distances (Transformer-XL): a strip meets R + S - 1 of them,
which lie side by side in a table, and its products with these are sheared into place.

Which terms go which way each engine says. B batch, T queries, S keys, H query heads, E head width,
F value width, n distances of a table; R queries of a strip.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import common
from pe_jax.engines.tiled.distance_tables import shear

BLOCKS = 4  # of queries in a strip, unless …
MOST = 2**26  # … it would have more numbers than these: 256 MiB
GROUPS = 4  # of strips, if there are at least two in each and later keys are hidden


def others(which: tuple[str, ...], terms: tuple, q: Side, k: Side) -> tuple[tuple, Side, Side]:
    """The terms that kernels compute, and both sides with their states alone."""
    keep = [n for n, strip in enumerate(which) if not strip]
    q, k = (side._replace(states=tuple(side.states[n] for n in keep)) for side in (q, k))
    return tuple(terms[n] for n in keep), q, k


def length(longest: int, q: Side, k: Side, most: int = MOST) -> int:
    """Queries of a strip: of a few blocks, fewer where heads and keys are many.

    `longest` is the tokens of the longest block, of which a strip has one at least.
    """
    (batch, heads, queries, _), rows = q.x.shape, BLOCKS * longest
    while rows > longest and (rows // 2 >= queries or batch * heads * rows * k.x.shape[2] > most):
        rows //= 2
    return rows


class Rows(NamedTuple):
    """What attention reads of queries; arrays lead with an axis of strips where they are cut."""

    x: Any
    raw: Any
    states: tuple
    positions: Any
    index: Any
    segments: Any


def attend(
    by_kernels: Callable,
    rows: int,
    which: tuple[str, ...],
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`, strip by strip: the backward pass computes each bias again.

    Args:
      by_kernels: attention of the queries of a strip: `(terms, q, k, v, bias)`.
      rows: queries of a strip, as `length` gives.
      which: how each term is computed: in strips of "pairs", by a "window" of distances, or "", by
        the kernels.
      spec: of the whole call, as the rest.
      terms: what is added.
      q: the queries.
      k: the keys.
      v: the values.
      chunk: how many keys biases of pairs are evaluated for at a time, so that what this takes is
        small. The bias of a strip is then [chunks, B or 1, H or 1, R, chunk]. None: all keys.
    """
    queries, cut = q.x.shape[2], _cut(q, rows)
    parts = []
    for own, keys in _groups(spec, len(cut.x), rows, k.x.shape[2]):
        seen, values = _up_to(keys, k), v[:, :, :keys]
        windows = Windows.of(spec, which, terms, q, seen, rows)
        one = _strip(by_kernels, which, windows, spec, terms, seen, values, chunk)
        first = jnp.arange(own.start * rows, own.stop * rows, rows, dtype=jnp.int32)
        parts.append(jax.lax.map(one, (first, jax.tree.map(lambda x, own=own: x[own], cut))))
    out, lse = (_joined(jnp.concatenate(found)) for found in zip(*parts, strict=True))
    return out[:, :, :queries], lse[:, :, :queries]


def _groups(spec: AttentionSpec, count: int, rows: int, keys: int) -> list[tuple[slice, int]]:
    """Strips that are computed by one program, and the keys that they may see: the first ones."""
    if not (spec.causal and spec.aligned and count >= 2 * GROUPS):
        return [(slice(0, count), keys)]
    ends = [count * (n + 1) // GROUPS for n in range(GROUPS)]
    return [
        (slice(first, last), min(keys, last * rows))
        for first, last in zip([0, *ends], ends, strict=False)
    ]


def _strip(
    by_kernels: Callable,
    which: tuple[str, ...],
    windows: "Windows | None",
    spec: AttentionSpec,
    terms: tuple,
    k: Side,
    v: jax.Array,
    chunk: int | None,
) -> Callable:
    """Attention of a strip: a function of the place of its first query, and its `Rows`."""
    dtypes = jax.tree.map(lambda x: x.dtype, (k.x, k.raw, v))
    # Of keys and values gradients are added up over strips: in float32.
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), (k.x, k.raw, v))

    def one(strip):
        first, cut = strip
        x, raw, values = jax.tree.map(lambda x, dtype: x.astype(dtype), exact, dtypes)
        keys = k._replace(x=x, raw=raw)
        tokens = Tokens(cut.positions, cut.index, cut.segments)
        own = Side(cut.x, cut.raw, cut.states, tokens)
        if chunk is None:
            scores = [_of_pairs(spec, terms, n, own, keys) for n in _places(which, "pairs")]
            scores += [] if windows is None else [windows.scores(first, own)]
            bias = functools.reduce(jnp.add, scores)
        else:
            bias = _in_chunks(chunk, spec, terms, _places(which, "pairs"), own, keys)
        return by_kernels(*others(which, terms, own, keys), values, bias)

    policy = jax.checkpoint_policies.save_only_these_names(common.SAVED)
    return jax.checkpoint(one, policy=policy, prevent_cse=False)


def _places(which: tuple[str, ...], way: str) -> list[int]:
    return [n for n, other in enumerate(which) if other == way]


def _of_pairs(spec: AttentionSpec, terms: tuple, n: int, q: Side, k: Side) -> jax.Array:
    """What one term adds to the scores of a strip: float32 [B or 1, H or 1, R, S]."""
    scores = terms[n].scores(q, k, (q.states[n], k.states[n]))
    return scores * kinds.scale(terms, spec.dims.head_dim) if terms[n].scaled else scores


def _in_chunks(
    chunk: int, spec: AttentionSpec, terms: tuple, places: list[int], q: Side, k: Side
) -> jax.Array:
    """What the terms at some places add to a strip: [chunks, B or 1, H or 1, R, chunk]."""

    @jax.checkpoint
    def of_chunk(tokens):
        keys = k._replace(tokens=Tokens(*tokens))
        return functools.reduce(jnp.add, (_of_pairs(spec, terms, n, q, keys) for n in places))

    return jax.lax.map(of_chunk, tuple(_pieces(x, 1, chunk) for x in k.tokens))


class Windows(NamedTuple):
    """Terms of all distances of contiguous positions, in tables over these, the largest first."""

    terms: dict[int, Any]  # by their places among all
    tables: dict[int, jax.Array]  # of biases [H, n], of vectors [H or 1, n, E]
    rows: int  # of a strip
    keys: int
    scale: float

    @classmethod
    def of(cls, spec: AttentionSpec, which: tuple[str, ...], terms, q: Side, k: Side, rows: int):
        """Those of a call; None: there are none."""
        queries, keys = q.x.shape[2], k.x.shape[2]
        last = 0 if spec.aligned and spec.causal else 1 - keys
        padded = -(-queries // rows) * rows
        distance = jnp.arange(padded - 1, -keys, -1, dtype=jnp.int32)
        distance = jnp.clip(distance, last, queries - 1)  # no pair of others is seen
        windowed = {n: terms[n] for n in _places(which, "window")}
        tables = {n: term.at(distance) for n, term in windowed.items()}
        scale = kinds.scale(terms, spec.dims.head_dim)
        return cls(windowed, tables, rows, keys, scale) if windowed else None

    def scores(self, first: jax.Array, q: Side) -> jax.Array:
        """What they add to the scores of the strip of queries from `first` on: [B, H, R, S]."""
        parts = []
        for n, term in self.terms.items():
            table, count = self.tables[n], self.rows + self.keys - 1
            begin = table.shape[1] - count - first
            window = jax.lax.dynamic_slice_in_dim(table, begin, count, axis=1)
            if isinstance(term, kinds.DistanceBias):
                part = jnp.broadcast_to(window[None, :, None], (1, len(window), self.rows, count))
            else:
                state = isinstance(term, kinds.RelativeState)
                own = q.states[n] if state else term.queries(q.raw)
                part = common.multiply(own, window, "bhte,hne->bhtn")
            parts.append(part * self.scale if term.scaled else part)
        return shear(functools.reduce(jnp.add, parts))


def _cut(q: Side, rows: int) -> Rows:
    """The queries in strips; the last one is filled up."""
    of_x = functools.partial(_pieces, axis=2, size=rows)
    tokens = (_pieces(x, 1, rows) for x in (q.tokens.positions, q.tokens.index, q.tokens.segments))
    return Rows(of_x(q.x), of_x(q.raw), tuple(map(of_x, q.states)), *tokens)


def _pieces(x: jax.Array | None, axis: int, size: int) -> Any:
    """An array cut along an axis into pieces, which come first; the last one is filled up."""
    if x is None:
        return None
    x = common.pad(x, axis, size, mode="edge")
    x = x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)


def _up_to(count: int, side: Side) -> Side:
    """The first tokens of a side."""
    x, raw, states = jax.tree.map(lambda x: x[:, :, :count], (side.x, side.raw, side.states))
    return Side(x, raw, states, jax.tree.map(lambda x: x[:, :count], side.tokens))


def _joined(x: jax.Array) -> jax.Array:
    """[strips, B, H, R, F] → [B, H, T, F]."""
    x = jnp.moveaxis(x, 0, 2)
    return x.reshape(*x.shape[:2], -1, x.shape[-1])
