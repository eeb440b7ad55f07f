"""Scores of terms that no kernel computes, for one chunk of queries after the other.

A bias of pairs (class tokens, FIRE), of distances of several axes (Swin), or of distances that are
not known beforehand is a function of JAX on positions, learned or not; so are products with vectors
of any distance (Transformer-XL). XLA evaluates it once for all heads, and all rows of the batch
that share positions, for as many queries as make a chunk: [B or 1, H or 1, R, S], which the kernels
read tile by tile. At contiguous positions a term of distances is evaluated once per distance of the
call, of which a chunk takes its part (`Line`). The kernels write the gradient of each score
of the chunk, and XLA pulls it back through the function: no atomics, and memory for one chunk.
Under a causal mask a chunk meets no keys past the end of its group: with four groups, 5/8 of all
pairs are evaluated.

Each back end's `in_chunks` says for each term whether it is computed here. B batch, T queries, S
keys, H query heads, E head width, F value width; R queries of a chunk.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import DistanceScores, Side, Tokens
from pe_jax.encodings.terms.diagonals import Line
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import common

BLOCKS = 4  # of queries in a chunk, unless …
MOST = 2**26  # … it would have more numbers than these: 256 MiB
GROUPS = 4  # of chunks, if there are at least two in each and later keys are hidden


def kept(elsewhere: tuple[bool, ...], of_terms: tuple) -> tuple:
    """The entries of `of_terms`, one per term, for the terms that kernels compute."""
    return tuple(x for x, dropped in zip(of_terms, elsewhere, strict=True) if not dropped)


def of_kernels(elsewhere: tuple[bool, ...], terms: tuple, q: Side, k: Side):
    """The terms that kernels compute, and both sides with only their states."""
    q, k = (side._replace(states=kept(elsewhere, side.states)) for side in (q, k))
    return kept(elsewhere, terms), q, k


def sample_length(in_chunks: tuple[bool, ...], block: int, near: int) -> int:
    """Number of tokens for whole blocks, a part of one, and `near` tokens past them.

    With chunks, if any term needs them, for two of these.
    """
    return max(2 * block + near, BLOCKS * block if any(in_chunks) else 0) + 61


def length(block: int, q: Side, k: Side, most: int = MOST) -> int:
    """Queries of a chunk: a few blocks, fewer if heads and keys are many; at least one block."""
    (batch, heads, queries, _), rows = q.x.shape, BLOCKS * block
    while rows > block and (rows // 2 >= queries or batch * heads * rows * k.x.shape[2] > most):
        rows //= 2
    return rows


def attend(
    by_kernels: Callable,
    rows: int,
    in_chunks: tuple[bool, ...],
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    key_chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`, chunk by chunk: the backward pass computes each bias again.

    Args:
      by_kernels: attention of the queries of a chunk: `(terms, q, k, v, bias)`.
      rows: queries of a chunk, as `length` gives.
      in_chunks: whether each term is computed here.
      spec: of the whole call, as are the following.
      terms: what is added to the scores.
      q: the queries.
      k: the keys.
      v: the values.
      key_chunk: how many keys biases of pairs are evaluated for at a time, to limit its
        memory. The bias of a chunk is then [key chunks, B or 1, H or 1, R, key_chunk]. None: all
        keys.
    """
    tokens = (_split(x, 1, rows) for x in (q.tokens.positions, q.tokens.index, q.tokens.segments))
    x, raw, states = jax.tree.map(lambda x: _split(x, 2, rows), (q.x, q.raw, q.states))
    chunks, count, keys = Side(x, raw, states, Tokens(*tokens)), len(x), k.x.shape[2]
    groups = [(slice(0, count), keys)]  # computed by one program each, with the keys it may see
    if spec.causal and spec.aligned and count >= 2 * GROUPS:
        ends = [count * n // GROUPS for n in range(GROUPS + 1)]
        spans = (slice(*pair) for pair in zip(ends, ends[1:], strict=False))
        groups = [(span, min(keys, span.stop * rows)) for span in spans]
    lines = _lines(spec, terms, in_chunks, count * rows, keys + -keys % (key_chunk or 1))
    results = []
    for span, end in groups:
        x, raw, states = jax.tree.map(lambda x, end=end: x[:, :, :end], (k.x, k.raw, k.states))
        visible = Side(x, raw, states, jax.tree.map(lambda x, end=end: x[:, :end], k.tokens))
        of_chunk = _of_chunk(
            by_kernels, in_chunks, spec, terms, lines, visible, v[:, :, :end], key_chunk
        )
        results.append(jax.lax.map(of_chunk, jax.tree.map(lambda x, span=span: x[span], chunks)))

    def join(*arrays):  # [chunks, B, H, R, F] → [B, H, T, F]
        x = jnp.moveaxis(jnp.concatenate(arrays), 0, 2)
        return x.reshape(*x.shape[:2], -1, x.shape[-1])[:, :, : q.x.shape[2]]

    out, lse = (join(*arrays) for arrays in zip(*results, strict=True))
    return out, lse


def _of_chunk(
    by_kernels: Callable,
    in_chunks: tuple[bool, ...],
    spec: AttentionSpec,
    terms: tuple,
    lines: tuple[Callable | None, ...],
    k: Side,
    v: jax.Array,
    key_chunk: int | None,
) -> Callable:
    """Attention of a chunk: a function of its queries; `lines` as `_lines` gives them."""
    dtypes = jax.tree.map(lambda x: x.dtype, (k.x, k.raw, v))
    # Gradients of keys and values are added up over chunks, in float32.
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), (k.x, k.raw, v))
    scale = spec.scale_of(terms)

    def of_pairs(q, k):  # float32 [B or 1, H or 1, R, S], or None
        biases = []
        each = zip(terms, in_chunks, lines, q.states, k.states, strict=True)
        for term, here, line, *states in each:
            if here:
                scores = _scores(term, line, q, k, tuple(states))
                biases.append(scores * scale if term.scaled else scores)
        return functools.reduce(jnp.add, biases) if biases else None

    def of_chunk(q):
        x, raw, values = jax.tree.map(lambda x, dtype: x.astype(dtype), exact, dtypes)
        keys = k._replace(x=x, raw=raw)

        @jax.checkpoint
        def of_key_chunk(tokens):
            return of_pairs(q, keys._replace(tokens=Tokens(*tokens)))

        if key_chunk is None:
            bias = of_pairs(q, keys)
        else:
            tokens = tuple(_split(x, 1, key_chunk) for x in keys.tokens)
            bias = jax.lax.map(of_key_chunk, tokens)
        return by_kernels(*of_kernels(in_chunks, terms, q, keys), values, bias)

    policy = jax.checkpoint_policies.save_only_these_names(common.SAVED)
    return jax.checkpoint(of_chunk, policy=policy, prevent_cse=False)


def _lines(
    spec: AttentionSpec, terms: tuple, in_chunks: tuple[bool, ...], queries: int, keys: int
) -> tuple[Callable | None, ...]:
    """For each term computed here at contiguous positions, the `Line` of a chunk's sides.

    Vectors of distances may be products of large matrices: they are made once, not by chunk. Of
    whole chunks of `queries` and of `keys`.
    """
    distance = queries - 1 - jnp.arange(queries + keys - 1, dtype=jnp.int32)

    def line(values, q, k):
        rows, columns = (side.tokens.positions.shape[1] for side in (q, k))
        first = queries - rows - q.tokens.positions[0, 0] + k.tokens.positions[0, 0]
        part = jax.lax.dynamic_slice_in_dim(values, first, rows + columns - 1, axis=1)
        return Line(part, rows - 1)

    return tuple(
        functools.partial(line, term.at(distance))
        if here and spec.contiguous and isinstance(term, DistanceScores)
        else None
        for term, here in zip(terms, in_chunks, strict=True)
    )


def _scores(term: Any, line: Callable | None, q: Side, k: Side, states: tuple) -> jax.Array:
    """The scores of a term for a chunk: [B or 1, H or 1, R, S]."""
    if line is None:
        return term.scores(q, k, states)
    scores = term.along(line(q, k), q, k, states)
    sides = (side.tokens.positions.shape[1] for side in (q, k))
    return jnp.broadcast_to(scores, (*scores.shape[:2], *sides))


def _split(x: jax.Array | None, axis: int, size: int) -> Any:
    """An array cut along an axis into chunks, which come first; the last one is padded."""
    if x is None:
        return None
    x = common.pad(x, axis, size, mode="edge")
    x = x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)
