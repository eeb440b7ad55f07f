"""Strings to copy: unchanged, reversed, twice, sorted, every other symbol first.

duplicate_string, reverse_string, odds_first and bucket_sort of arXiv 2207.02098, table 1; the
copies, reversals and sorting of arXiv 2305.19466. s is a string int32 [N]; its first n symbols are
not padding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, pick

Part = Callable[[jax.Array, Any], jax.Array]


def forward(s: jax.Array, n: Any) -> jax.Array:
    """The string unchanged."""
    return s


def backward(s: jax.Array, n: Any) -> jax.Array:
    """The string reversed."""
    return pick(s, n - 1 - jnp.arange(len(s)))


def odds(s: jax.Array, n: Any) -> jax.Array:
    """The first, third, fifth symbol and so on, then the second, the fourth and so on."""
    index, half = jnp.arange(len(s)), (n + 1) // 2
    return pick(s, jnp.where(index < half, 2 * index, 2 * (index - half) + 1))


def ascending(s: jax.Array, n: Any) -> jax.Array:
    """The string sorted, padding last."""
    return jnp.sort(jnp.where(jnp.arange(len(s)) < n, s, jnp.iinfo(s.dtype).max))


def write(
    key: jax.Array,
    n: Any,
    size: int,
    *,
    symbols: int,
    parts: Sequence[Part] = (forward,),
    between: bool = False,
    alike: bool = False,
) -> Example:
    """A string of n symbols; the answer is each of `parts` of it, one after the other.

    Args:
      key: the same key gives the same example.
      n: symbols of the question; may be traced.
      size: N.
      symbols: size of the alphabet.
      parts: functions of the string.
      between: whether an extra symbol separates the parts.
      alike: whether all symbols of a string are the same.
    """
    shape = () if alike else (size,)
    s = jnp.broadcast_to(jax.random.randint(key, shape, 0, symbols), (size,))
    index, step = jnp.arange(written(size, len(parts), between)), n + between
    part, offset = jnp.minimum(index // step, len(parts) - 1), index % step
    table = jnp.stack([f(s, n) for f in parts])
    answer = jnp.where(offset < n, table[part, jnp.minimum(offset, size - 1)], symbols)
    return Example(s, n, answer, written(n, len(parts), between))


def written(n: Any, parts: int, between: bool) -> Any:
    """Symbols in the answer to n symbols."""
    return parts * n + (parts - 1) * between
