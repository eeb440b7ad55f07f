"""Words to be counted: those that are more common than the others, wherever they are.

Common words and frequent words extraction of RULER (arXiv 2404.06654, table 2). A word is a symbol,
and there are fewer of them: RULER asks for ten words that occur 30 times among others that occur
three times, and for the three most frequent words, after the top one, which is noise, under a zeta
law. N longest question.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, pick

COMMON, REPEATS = 3, 3  # common words, and how often each occurs
WORDS = 50  # of common_words: the others occur once, so that there are enough for 56 symbols
CODED = 20  # words of frequent_words
SHARES = (4, 3, 2)  # of 12: counts of the three most frequent words


def _shuffled(key: jax.Array, text: jax.Array, n: Any) -> jax.Array:
    """The first n symbols in random order, then the others: [N]."""
    drawn = jax.random.uniform(key, text.shape)
    return text[jnp.argsort(jnp.where(jnp.arange(len(text)) < n, drawn, 2))]


def common_words(key: jax.Array, n: Any, size: int) -> Example:
    """Words in random order, all once but for three that occur three times: these, ascending?

    A longer question has more words that occur once.
    """
    keys, index = jax.random.split(key), jnp.arange(size)
    words, repeated = jax.random.permutation(keys[0], WORDS), COMMON * REPEATS
    rank = jnp.where(index < repeated, index // REPEATS, index - repeated + COMMON)
    text = _shuffled(keys[1], pick(words, rank), n)
    return Example(text, n, jnp.sort(words[:COMMON]), COMMON)


def frequent_words(key: jax.Array, n: Any, size: int) -> Example:
    """Words in random order: the three most frequent, beginning with the most frequent?

    With u = max(1, n // 12) these occur 4u, 3u and 2u times, and no other more than u times.
    """
    keys, index, top = jax.random.split(key), jnp.arange(size), len(SHARES)
    words = jax.random.permutation(keys[0], CODED)
    ends = jnp.maximum(1, n // 12) * jnp.cumsum(jnp.array(SHARES))
    others = top + (index - ends[-1]) % (CODED - top)
    rank = jnp.where(index < ends[-1], jnp.searchsorted(ends, index, side="right"), others)
    return Example(_shuffled(keys[1], words[rank], n), n, words[:top], top)
