"""Which terms the GPU kernels compute, and which are computed in chunks of queries.

Letters are those of `engine`.
"""

import dataclasses

import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, select
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels.gpu.operands import MAX_DISTANCES, table_span

WINDOWED = (kinds.DistanceBias, kinds.RelativeKeys, kinds.RelativeState)


def choose(spec: AttentionSpec, terms: tuple, q: Side, k: Side) -> tuple[str, ...]:
    """The strategy of each term, as in `query_chunks`."""
    positions = q.tokens.positions, k.tokens.positions
    integers = all(jnp.issubdtype(x.dtype, jnp.integer) for x in positions)

    def strategy(term):
        if isinstance(term, kinds.PairBias):
            return "pairs"
        bias = isinstance(term, kinds.DistanceBias)
        if bias and not (positions[0].ndim == 2 and integers):
            return "pairs"
        if not isinstance(term, kinds.DistanceTerm):
            return ""
        low, high = table_span(spec, (term,), q.x.shape[2], k.x.shape[2])
        if term.horizon is not None and high - low < MAX_DISTANCES:
            return ""  # a table of few entries per token
        if not spec.contiguous:
            return "pairs" if bias else ""
        return "window" if isinstance(term, WINDOWED) else ""

    chosen = tuple(map(strategy, terms))
    if "pairs" in chosen or select(terms, *kinds.RELATIVE):
        return chosen
    # Without chunks and vectors the kernels have a table of all distances.
    return tuple("" if strategy == "window" else strategy for strategy in chosen)


def of_chunk(spec: AttentionSpec) -> AttentionSpec:
    """As the kernels see a chunk: some of the queries, at any positions."""
    return dataclasses.replace(spec, aligned=False, contiguous=False)
