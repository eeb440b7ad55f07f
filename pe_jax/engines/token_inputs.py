"""Where the tokens of a call are, and what they may see: positions, segments, indices, checked.

B batch (any number of axes), T queries, S keys.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax import positions as pos
from pe_jax.encodings.base import Claims
from pe_jax.engines import term_inputs
from pe_jax.engines.sharded.layout import Contiguous
from pe_jax.validation import require


def positions(claims: Claims, q, k, q_positions, k_positions, name: str) -> list[Any]:
    """Checked positions of queries and keys, or None twice where they are contiguous from 0.

    They are constants to a gradient in every engine: a tile passes none to them.
    """
    axes, queries, keys = claims.axes, q.shape[-3], k.shape[-3]
    pair = _both_sides("positions", q_positions, k_positions, queries == keys)
    if pair is None:
        if queries != keys:
            raise ValueError(
                f"q has {queries} tokens and k has {keys}: pass q_positions and k_positions"
            )
        if axes > 1:
            raise ValueError(f"{name} has {axes} axes: pass q_positions [*B, T, {axes}]")
        return [None, None]
    tail, checked = (axes,) if axes > 1 else (), []
    for side, x, rows in zip(("q_positions", "k_positions"), pair, (q, k), strict=True):
        x = pos.as_positions(x, real=claims.real_positions, name=side)
        if x.shape == (1, rows.shape[-3], *tail):  # one row for all, as Hugging Face has it
            x = x[0]
        term_inputs.check_shape(side, x, (rows.shape[-3], *tail), (*rows.shape[:-2], *tail))
        pos.check_near(x, side)
        checked.append(jax.lax.stop_gradient(x))
    if checked[0].dtype != checked[1].dtype:  # only one side has integers
        checked = [x.astype(jnp.float32) for x in checked]
    return checked


def segments(q_segments, k_segments, q, k) -> list[Any]:
    """Segment ids [B, T] and [B, S], or None twice."""
    pair = _both_sides("segments", q_segments, k_segments, q.shape[-3] == k.shape[-3])
    if pair is None:
        return [None, None]
    checked = []
    for side, x, rows in zip(("q_segments", "k_segments"), pair, (q, k), strict=True):
        x = pos.as_positions(x, name=side)
        term_inputs.check_shape(side, x, rows.shape[:-2])
        checked.append(x.reshape(math.prod(rows.shape[:-3]), rows.shape[-3]))
    return checked


def _both_sides(name: str, of_queries, of_keys, same_length: bool):
    """What queries and keys have, the same unless told if there are as many; None for neither."""
    if of_queries is None and of_keys is None:
        return None
    if of_keys is None and same_length:
        of_keys = of_queries
    if of_queries is None or of_keys is None:
        raise ValueError(f"q_{name} and k_{name}: pass both, or neither")
    return of_queries, of_keys


def indices(q_index, k_index, q, k, layout: Contiguous, ordered: bool) -> list[jax.Array]:
    """Places of queries and keys among the tokens, each [T] or [*B, T], given or as they lie.

    Raises:
      ValueError: the mask asks for them (`ordered`) and queries that are not the keys have none; a
        call that does not fit the way in which its tokens lie on devices.
    """
    queries, keys, places = q.shape[-3], k.shape[-3], []
    sides = ("q_index", q_index, q), ("k_index", k_index, k)
    if type(layout) is not Contiguous:
        name = type(layout).__name__
        for side, x, _ in sides:
            require(x is None, side, "given", f"leave it out: {name} knows where tokens lie")
        if queries != keys:
            raise ValueError(f"{queries} queries and {keys} keys: {name} is for one row")
    if q_index is None and ordered and queries != keys:
        raise ValueError(
            f"q has {queries} tokens and k has {keys}: pass q_index, the place of each query among"
            " the tokens (the mask comes from it)"
        )
    for side, x, rows in sides:
        x = layout.order(rows.shape[-3]) if x is None else pos.as_positions(x, name=side)
        term_inputs.check_shape(side, x, rows.shape[-3:-2], rows.shape[:-2])
        places.append(x)
    return places
