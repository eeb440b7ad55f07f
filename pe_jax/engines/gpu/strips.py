"""Terms that the GPU kernels do not compute: their scores, one strip of queries after the other.

A bias of pairs (FIRE, class tokens), of distances of several axes (Swin), or of distances that are
not known beforehand is a function of JAX on positions, learned or not. XLA evaluates it once for
all heads, and all rows of the batch that share positions, for as many queries as make a `strip`:
[B or 1, H or 1, R, S], which the kernels read tile by tile. They write the gradient of each score
of the strip, and XLA pulls it back through the function: no atomics, and memory for one strip.

Letters are those of `engine`; R queries of a strip.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines import kernel_common as common
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.gpu.operands import MAX_DISTANCES, table_span
from pe_jax.engines.gpu.passes import SAVED

BLOCKS = 4  # of queries in a strip, unless …
MOST = 2**26  # … it would have more numbers than these: 256 MiB


def needed(spec: AttentionSpec, terms: tuple, q: Side, k: Side) -> tuple[bool, ...]:
    """For each term whether it is computed in strips."""

    def by_strips(term):
        if isinstance(term, kinds.DistanceBias):
            plain = q.tokens.positions.ndim == 2 and _whole(q.tokens) and _whole(k.tokens)
            return not plain or (not spec.contiguous and is_long(spec, term, q, k))
        return isinstance(term, kinds.PairBias)

    return tuple(map(by_strips, terms))


def within(spec: AttentionSpec) -> AttentionSpec:
    """As the kernels see a strip: some of the queries, at any positions."""
    return dataclasses.replace(spec, aligned=False, contiguous=False)


def is_long(spec: AttentionSpec, term: kinds.DistanceTerm, q: Side, k: Side) -> bool:
    """Whether a term of distances has no horizon, or one too long for a table per token."""
    low, high = table_span(spec, (term,), q.x.shape[2], k.x.shape[2])
    return term.horizon is None or high - low >= MAX_DISTANCES


def _whole(tokens: Tokens) -> bool:
    return jnp.issubdtype(tokens.positions.dtype, jnp.integer)


def others(which: tuple[bool, ...], terms: tuple, q: Side, k: Side) -> tuple[tuple, Side, Side]:
    """The terms that the kernels compute, and both sides with their states alone."""
    keep = [n for n, strip in enumerate(which) if not strip]
    q, k = (side._replace(states=tuple(side.states[n] for n in keep)) for side in (q, k))
    return tuple(terms[n] for n in keep), q, k


def length(longest: int, q: Side, k: Side) -> int:
    """Queries of a strip: of a few blocks, fewer where heads and keys are many."""
    (batch, heads, queries, _), rows = q.x.shape, BLOCKS * longest
    while rows > longest and (rows // 2 >= queries or batch * heads * rows * k.x.shape[2] > MOST):
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
    longest: int,
    which: tuple[bool, ...],
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`, strip by strip: the backward pass computes each bias again.

    Args:
      by_kernels: attention of the queries of a strip: `(spec, terms, q, k, v, bias)`.
      longest: tokens of the longest block.
      which: what `needed` says.
      spec: of the whole call, as the rest.
      terms: what is added.
      q: the queries.
      k: the keys.
      v: the values.
    """
    dtypes = jax.tree.map(lambda x: x.dtype, (k.x, k.raw, v))
    # Of keys and values gradients are added up over strips: in float32.
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), (k.x, k.raw, v))
    queries = q.x.shape[2]

    def one(cut: Rows):
        x, raw, values = jax.tree.map(lambda x, dtype: x.astype(dtype), exact, dtypes)
        keys = k._replace(x=x, raw=raw)
        tokens = Tokens(cut.positions, cut.index, cut.segments)
        own = Side(cut.x, cut.raw, cut.states, tokens)
        scores = [_scores(spec, terms, n, own, keys) for n, strip in enumerate(which) if strip]
        bias = functools.reduce(jnp.add, scores)
        return by_kernels(within(spec), *others(which, terms, own, keys), values, bias)

    policy = jax.checkpoint_policies.save_only_these_names(SAVED)
    cut = _cut(q, length(longest, q, k))
    out, lse = jax.lax.map(jax.checkpoint(one, policy=policy, prevent_cse=False), cut)
    return _joined(out)[:, :, :queries], _joined(lse)[:, :, :queries]


def _scores(spec: AttentionSpec, terms: tuple, n: int, q: Side, k: Side) -> jax.Array:
    """What one term adds to the scores of a strip: float32 [B or 1, H or 1, R, S]."""
    scores = terms[n].scores(q, k, (q.states[n], k.states[n]))
    return scores * kinds.scale(terms, spec.dims.head_dim) if terms[n].scaled else scores


def _cut(q: Side, rows: int) -> Rows:
    """The queries in strips; the last one is filled up."""

    def cut(x, axis):
        if x is None:
            return None
        x = common.pad(x, axis, rows, mode="edge")
        x = x.reshape(*x.shape[:axis], -1, rows, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    of_x = functools.partial(cut, axis=2)
    tokens = (cut(x, 1) for x in (q.tokens.positions, q.tokens.index, q.tokens.segments))
    return Rows(of_x(q.x), of_x(q.raw), tuple(map(of_x, q.states)), *tokens)


def _joined(x: jax.Array) -> jax.Array:
    """[strips, B, H, R, F] → [B, H, T, F]."""
    x = jnp.moveaxis(x, 0, 2)
    return x.reshape(*x.shape[:2], -1, x.shape[-1])
