"""Bands of distances, each a call of the kernels: several views of a token, sinks of a window.

ReRoPE, Self-Extend and dual chunks score near and far pairs by other views of the same tokens;
where a window has sinks, a query sees the keys near it and the first ones. Both divide the visible
pairs into bands, from `low` to less than `high` apart, which have one view each. A band is causal
attention with a window, to queries whose index is lower by `low`, so that the kernels know no more
than masks. Every pair is computed once, but those of the tiles that two bands share; results over
different keys are merged by their row sums.

Letters are those of `engine`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.tiled.plan import Result


class Band(NamedTuple):
    """Pairs at least `low` and less than `high` apart, in blocks of the view's; None: no end."""

    view: int
    low: int
    high: int | None
    keys: int | None = None  # the first keys alone, which are a window's sinks; None: all


def find(spec: AttentionSpec, terms: tuple, k: Side) -> list[Band]:
    """The bands of a call that may have pairs; none for a call with one view and no sinks."""
    views, window, bands = kinds.views(terms), spec.window, []
    if views is None and not spec.sinks:
        return []
    edges, unit = (views.edges, views.unit) if views else ((), 1)
    for view, (low, high) in enumerate(zip((0, *edges), (*edges, None), strict=True)):
        end = window if high is None else high if window is None else min(high, window)
        if end is None or low < end:
            bands.append(Band(view, low, end))
        if spec.sinks and window is not None and (high is None or high > window):
            bands.append(Band(view, max(low, window), high, spec.sinks))
    return [band for band in bands if (band.low - 1) * unit < k.x.shape[2]]


def refusal(spec: AttentionSpec, terms: tuple, q: Side) -> str | None:
    """Why a call with bands cannot be divided into them; None: it can."""
    views, documents = kinds.views(terms), q.tokens.segments is not None
    what = "several views of each token" if views else "sinks of a window"
    in_blocks = views is not None and views.unit > 1
    reasons = {
        f"{what} without a causal mask": not spec.causal,
        f"{what}, for queries and keys that are not the same tokens in order": not spec.aligned,
        f"{what} at explicit positions": views is not None and not spec.in_order,
        "sinks of several documents": bool(spec.sinks) and documents,
        "views by blocks, within documents": in_blocks and documents,
        "views by blocks, in a window": in_blocks and spec.window is not None,
        f"{what} beside sums along rows, masks or phases": bool(
            kinds.select(terms, kinds.RowSum, kinds.Mask, kinds.PhaseProduct)
        ),
        "several blocks at the diagonal": views is not None and in_blocks and views.edges[0] != 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def call_of(
    band: Band, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array
) -> tuple[AttentionSpec, Callable]:
    """The spec of a band's call, and its `(terms, q, k, v)` as a function of the whole call's."""
    views = kinds.views(terms)
    in_blocks = views is not None and views.unit > 1
    of_one_block = in_blocks and band.low == 0
    window = None if band.high is None or of_one_block else band.high - band.low
    aligned = band.low == 0
    spec = dataclasses.replace(spec, window=window, sinks=0, aligned=aligned, lse=True)

    def operands(terms: tuple, q: Side, k: Side, v: jax.Array) -> tuple:
        if band.keys is not None:
            x, raw, states, v = jax.tree.map(
                lambda x: x[:, :, : band.keys], (k.x, k.raw, k.states, v)
            )
            k = Side(x, raw, states, jax.tree.map(lambda x: x[:, : band.keys], k.tokens))
        q_tokens, k_tokens = q.tokens, k.tokens
        if views is not None and in_blocks:
            rows, columns = (views.block(side.tokens.positions) for side in (q, k))
            if of_one_block:  # no block has a negative number, which would be padding
                least = columns.min()
                q_tokens = q_tokens._replace(segments=rows - least)
                k_tokens = k_tokens._replace(segments=columns - least)
            else:
                q_tokens = q_tokens._replace(index=rows)
                k_tokens = k_tokens._replace(index=columns)
        if band.low:
            q_tokens = q_tokens._replace(index=q_tokens.index - band.low)
        if views is not None:
            width = q.x.shape[-1] // views.count
            of_view = slice(band.view * width, (band.view + 1) * width)
            q = q._replace(x=q.x[..., of_view])
            k = k if views.shared_keys else k._replace(x=k.x[..., of_view])
            terms = tuple(map(_with_one_view, terms))
        return terms, q._replace(tokens=q_tokens), k._replace(tokens=k_tokens), v

    return spec, operands


def _with_one_view(term: Any) -> Any:
    several = getattr(term, "views", None) is not None
    return dataclasses.replace(term, views=None) if several else term


def abstract(band: Band, spec: AttentionSpec, *call: Any) -> tuple:
    """The call of a band with shapes in the place of arrays."""
    of_band, operands = call_of(band, spec, *call)
    return of_band, *jax.eval_shape(operands, *call)


def attend(
    by_kernels: Callable, bands: list[Band], spec: AttentionSpec, *call: Any
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`; `by_kernels` computes a band, `call` is (terms, q, k, v)."""
    results = []
    for band in bands:
        of_band, operands = call_of(band, spec, *call)
        results.append(Result(*by_kernels(of_band, *operands(*call))))
    return functools.reduce(Result.merged, results)
