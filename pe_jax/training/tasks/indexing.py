"""Letters to be found by their position, by their content, or by both.

The last is the diagnostic of PoPE (arXiv 2509.10534, appendix B.1): a string of different letters,
one of them, and a shift of at most 15; which letter is that far from it? There, 8 layers are
trained on strings of 20 to 40 of 52 letters in 100,000 steps; RoPE answers 11 % of the questions,
PoPE 95 %. Here it is smaller, and the other two separate what it asks for. N longest question.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, pick, single

LETTERS, REACH = 39, 5  # of an alphabet; the farthest shift
HERE = LETTERS + REACH  # the symbol of shift 0; that of shift s is HERE + s
NAMES, FORMS = 10, 4  # letters with forms: 4·name + form; the name alone is 40 + name


def _different(key: jax.Array, size: int) -> jax.Array:
    """Letters without repetition, [N]; what follows the alphabet repeats its last letter."""
    return pick(jax.random.permutation(key, LETTERS), jnp.arange(size))


def index_place(key: jax.Array, n: Any, size: int) -> Example:
    """Different letters, then a shift: which letter is that many places before it?"""
    keys, count = jax.random.split(key), n - 1
    letters = _different(keys[0], size)
    back = jax.random.randint(keys[1], (), 1, jnp.minimum(REACH, count) + 1)
    return single(letters.at[count].set(HERE - back), n, letters[count - back])


def index_content(key: jax.Array, n: Any, size: int) -> Example:
    """Letters, each name in one of four forms, then a name: the letter of this name?

    Names may repeat, in the same form. The order of the letters does not matter.
    """
    keys = jax.random.split(key, 3)
    forms = jax.random.randint(keys[0], (NAMES,), 0, FORMS)
    names = jax.random.randint(keys[1], (size,), 0, NAMES)
    query = names[jax.random.randint(keys[2], (), 0, n - 1)]
    letters = FORMS * names + forms[names]
    text = letters.at[n - 1].set(FORMS * NAMES + query)
    return single(text, n, FORMS * query + forms[query])


def index_both(key: jax.Array, n: Any, size: int) -> Example:
    """Different letters, then one of them and a shift: which letter is that far after it?

    The shift is uniform among those that stay in the string.
    """
    keys, count = jax.random.split(key, 3), n - 2
    letters = _different(keys[0], size)
    position = jax.random.randint(keys[1], (), 0, count)
    low, high = jnp.maximum(-REACH, -position), jnp.minimum(REACH, count - 1 - position)
    shift = jax.random.randint(keys[2], (), low, high + 1)
    text = letters.at[count].set(letters[position]).at[count + 1].set(HERE + shift)
    return single(text, n, letters[position + shift])
