"""Runs of tokens that fill whole tiles: padded at their ends, with tokens that see nothing."""

import functools

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines.tiled.ways import Vectors


def fill_tokens(q: Tokens, k: Tokens, lengths: tuple[int, int], runs: int) -> list[Tokens]:
    """Queries and keys in `runs` runs, each as long as `lengths` says."""
    if [runs * length for length in lengths] == [x.index.shape[1] for x in (q, k)]:
        return [q, k]
    return [_fill(side, length, runs) for side, length in zip((q, k), lengths, strict=True)]


def _fill(tokens: Tokens, length: int, runs: int) -> Tokens:
    """Padding repeats the last position and, with a negative segment id, sees nothing."""
    last = functools.partial(stretch, axis=1, length=length, runs=runs, mode="edge")
    segments = tokens.segments
    if segments is None:
        segments = jnp.zeros(tokens.index.shape, jnp.int32)
    rank = tokens.rank if tokens.rank is None else last(tokens.rank)
    segments = stretch(segments, 1, length, runs, constant_values=-1)
    return Tokens(last(tokens.positions), last(tokens.index), segments, rank)


def fill_vectors(side: Side, places: set[int], length: int, runs: int) -> Vectors:
    """The vectors of a side, padded with zeros; of the states, those of terms at these places.

    Padding repeats the last state, so that of states that fall it is among the lowest.
    """
    fill = functools.partial(stretch, axis=2, length=length, runs=runs)
    states = tuple(
        None
        if x is None or place not in places
        else jnp.broadcast_to(x, (len(side.x), *x.shape[1:]))
        for place, x in enumerate(side.states)
    )
    states = jax.tree.map(functools.partial(fill, mode="edge"), states)
    return Vectors(fill(side.x), jax.tree.map(fill, side.raw), states)


def stretch(x: jax.Array, axis: int, length: int, runs: int, **how) -> jax.Array:
    """Cuts or pads (as `jnp.pad` does by `how`) each of `runs` along an axis to `length`."""
    own = x.shape[axis] // runs
    if own == length:
        return x
    x = x.reshape(*x.shape[:axis], runs, own, *x.shape[axis + 1 :])
    if own > length:
        x = jax.lax.slice_in_dim(x, 0, length, axis=axis + 1)
    else:
        grow = [(0, (length - own) * (n == axis + 1)) for n in range(x.ndim)]
        x = jnp.pad(x, grow, **how)
    return x.reshape(*x.shape[:axis], runs * length, *x.shape[axis + 2 :])
