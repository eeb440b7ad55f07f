"""Which terms the GPU kernels compute, and which are computed in strips.

Letters are those of `engine`.
"""

import dataclasses

import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, Tokens, select
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels.gpu.operands import MAX_DISTANCES, table_span

WINDOWED = (kinds.DistanceBias, kinds.RelativeKeys, kinds.RelativeState)


def in_strips(spec: AttentionSpec, terms: tuple, q: Side, k: Side) -> tuple[str, ...]:
    """How each term is computed in strips: of "pairs", by a "window" of distances, or "", not."""
    plain = q.tokens.positions.ndim == 2 and _whole(q.tokens) and _whole(k.tokens)

    def way(term):
        if isinstance(term, kinds.PairBias):
            return "pairs"
        if isinstance(term, kinds.DistanceBias) and not plain:
            return "pairs"
        if not isinstance(term, kinds.DistanceTerm) or not is_long(spec, term, q, k):
            return ""
        if not spec.contiguous:
            return "pairs" if isinstance(term, kinds.DistanceBias) else ""
        return "window" if isinstance(term, WINDOWED) else ""

    ways = tuple(map(way, terms))
    if "pairs" in ways or select(terms, *kinds.RELATIVE):
        return ways
    # Without strips and vectors the kernels have a table of all distances.
    return tuple("" if way == "window" else way for way in ways)


def within(spec: AttentionSpec) -> AttentionSpec:
    """As the kernels see a strip: some of the queries, at any positions."""
    return dataclasses.replace(spec, aligned=False, contiguous=False)


def is_long(spec: AttentionSpec, term: kinds.DistanceTerm, q: Side, k: Side) -> bool:
    """Whether a term of distances has no horizon, or one too long for a table per token."""
    low, high = table_span(spec, (term,), q.x.shape[2], k.x.shape[2])
    return term.horizon is None or high - low >= MAX_DISTANCES


def _whole(tokens: Tokens) -> bool:
    return jnp.issubdtype(tokens.positions.dtype, jnp.integer)
