"""What terms do outside engines: states, rotations before, sinks and rotations after.

B batch (any number of axes), T queries, S keys, H query heads, K key heads, E head width, F value
width, C width of a state.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.engines.sharded.layout import Contiguous


def states(
    terms: tuple, layout: Contiguous, x: Any, positions: Any, tokens: Any, heads: int
) -> list[tuple[Any, ...]]:
    """For each term its states of queries and of keys [*B, T, H, C]; None where it reads none.

    `tokens` are the shapes (*B, T) and (*B, S), `heads` those of queries. What both sides read from
    the layer's input `x` is computed once.

    Raises:
      ValueError: a state of another shape than its term declares.
    """

    def state(term, side):
        values = layout.state(term.state, x, positions[side])
        rows = (*tokens[side], heads)
        leads = rows, rows[-2:], (1, *rows[-2:])
        if values.shape[:-1] not in leads or values.shape[-1] != term.state.width:
            name, want = type(term).__name__, [*rows, term.state.width]
            raise ValueError(f"{name}: its State gives shape {list(values.shape)}, not {want}")
        return values

    of_queries = [None if t.state is None else state(t, 0) for t in terms]
    of_keys = []
    for term, values in zip(terms, of_queries, strict=True):
        reads = term.reads_keys or term.reads == "outside"
        if term.state is not None and term.state.of != "x" and reads:
            values = state(term, 1)
        of_keys.append(values if reads else None)
    return [tuple(of_queries), tuple(of_keys)]


def rotate(terms: tuple, side: str, x: jax.Array, positions, states: tuple) -> jax.Array:
    """Queries (`side` "q") or keys ("k") [*B, T, H or K, E] after query biases and rotations."""
    if side == "q":
        for term in terms:
            x = term.shift(x)
    for term, state in zip(terms, states, strict=True):
        x = term.rotate(side, x, positions, state)
    return x


def rotate_values(terms: tuple, v: jax.Array, positions) -> jax.Array:
    """Values [*B, S, K, F] as engines take them and a cache keeps them."""
    for term in terms:
        v = term.rotate_values(v, positions)
    return v


def rotate_output(terms: tuple, out: jax.Array, positions) -> jax.Array:
    """Outputs [*B, T, H, F] of rotated values, rotated back by the queries' positions."""
    for term in reversed(terms):
        out = term.rotate_output(out, positions)
    return out


def read_raw(terms: tuple, q_raw: jax.Array, k_raw: jax.Array) -> tuple[Any, Any]:
    """Queries and keys before rotations where terms read them, else None."""
    read = {term.reads_raw for term in terms}
    return q_raw if "q" in read else None, k_raw if "k" in read else None


def rescale(terms: tuple, states: tuple, out: jax.Array, lse: Any) -> tuple[jax.Array, Any]:
    """The output [B, H, T, F] after sinks, or unnormalized, and lse [B, H, T, 1].

    `states` [B or 1, H, T, 1] are those of the queries, for each term.
    """
    for term, state in zip(terms, states, strict=True):
        out, lse = term.rescale(out, lse, state)
    return out, lse


def heads_first(x: jax.Array) -> jax.Array:
    """[*B, T, H, E] → [B, H, T, E]."""
    return jnp.swapaxes(x.reshape(-1, *x.shape[-3:]), 1, 2)
