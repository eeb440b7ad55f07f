"""Tasks whose answer is looked up elsewhere in the question.

missing_duplicate of arXiv 2207.02098, table 1; LEGO as in arXiv 2305.19466 (after 2206.04301);
associative recall (arXiv 1610.06258); a passkey among distractors (arXiv 2305.16300). N longest
question.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, pick, single

HOLE = 2
KEYS = 16  # and as many values, which are the next symbols
MARK, PASSKEY = 10, 4  # the symbol before the key, after the ten digits; digits of a key
NAMES = 26
ONE, SAME, NEGATED = range(NAMES, NAMES + 3)


def missing_duplicate(key: jax.Array, n: Any, size: int) -> Example:
    """A binary string twice, one symbol hidden: which? One symbol fewer where n is odd."""
    keys, half, index = jax.random.split(key), n // 2, jnp.arange(size)
    s = jax.random.randint(keys[0], (size,), 0, 2)
    text = jnp.where(index < half, s, pick(s, index - half))
    hole = jax.random.randint(keys[1], (), 0, 2 * half)
    return single(text.at[hole].set(HOLE), 2 * half, text[hole])


def recall(key: jax.Array, n: Any, size: int) -> Example:
    """Keys, each followed by its value, then one of the keys: its value?

    Keys may repeat, with the same value, so that questions may have any length. One symbol fewer
    where n is even.
    """
    keys, pairs = jax.random.split(key, 3), (n - 1) // 2
    values = jax.random.randint(keys[0], (KEYS,), KEYS, 2 * KEYS)
    listed = jax.random.randint(keys[1], (size // 2 + 1,), 0, KEYS)
    asked = listed[jax.random.randint(keys[2], (), 0, pairs)]
    text = jnp.stack([listed, values[listed]], axis=1).reshape(-1)[:size]
    return single(text.at[2 * pairs].set(asked), 2 * pairs + 1, values[asked])


def passkey(key: jax.Array, n: Any, size: int) -> Example:
    """Digits, and among them MARK, at a uniform place: the answer is the four digits after it."""
    keys = jax.random.split(key)
    text = jax.random.randint(keys[0], (size,), 0, MARK)
    mark = jax.random.randint(keys[1], (), 0, n - PASSKEY)
    text = text.at[mark].set(MARK)
    return Example(text, n, pick(text, mark + 1 + jnp.arange(PASSKEY)), PASSKEY)


def lego(key: jax.Array, n: Any, size: int) -> Example:
    """`a SAME ONE`, `b NEGATED a`, `c SAME b`, …, then one of the names: is it ONE, or negated?

    Names are drawn without repetition; the name asked for is in the second half. Clauses have three
    symbols: one or two fewer where n - 1 is not a multiple of three.
    """
    keys, count = jax.random.split(key, 3), (n - 1) // 3
    names = jax.random.permutation(keys[0], NAMES)[: (size - 1) // 3]
    signs = jax.random.randint(keys[1], names.shape, SAME, NEGATED + 1)
    before = jnp.concatenate([jnp.array([ONE]), names[:-1]])
    asked = jax.random.randint(keys[2], (), jnp.minimum((count + 1) // 2, count - 1), count)
    negations = ((signs == NEGATED) & (jnp.arange(len(names)) <= asked)).sum()
    text = jnp.stack([names, signs, before], axis=1).reshape(-1)
    text = jnp.pad(text, (0, size - len(text))).at[3 * count].set(names[asked])
    return single(text, 3 * count + 1, jnp.where(negations % 2, NEGATED, SAME))
