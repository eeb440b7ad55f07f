"""Strings to copy: unchanged, reversed, twice, sorted, every other symbol first.

duplicate_string, reverse_string, odds_first and bucket_sort of arXiv 2207.02098, table 1; copy and
reverse of arXiv 2305.19466. s is a string int32 [N]; its first n symbols are not padding.
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


def write(key: jax.Array, n: Any, size: int, *, symbols: int, parts: Sequence[Part]) -> Example:
    """A string of n symbols; the answer is each of `parts` of it, one after the other.

    Args:
      key: the same key gives the same example.
      n: symbols of the question; may be traced.
      size: N.
      symbols: size of the alphabet.
      parts: functions of the string.
    """
    s = jax.random.randint(key, (size,), 0, symbols)
    index = jnp.arange(len(parts) * size)
    table = jnp.stack([f(s, n) for f in parts])
    answer = table[jnp.minimum(index // n, len(parts) - 1), index % n]
    return Example(s, n, answer, len(parts) * n)
