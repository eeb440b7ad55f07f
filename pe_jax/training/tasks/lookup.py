"""Tasks whose answer is looked up elsewhere in the question.

missing_duplicate of arXiv 2207.02098, table 1; associative recall of one key (1610.06258), of all
keys after they are listed again, and at each repeated key (MQAR, 2312.04927); a passkey among
distractors (2305.16300); needles under several keys, of which one or two are asked for, or under a
key with two values, and variables (RULER, 2404.06654); selective copying (2312.00752); facts among
other words (BABILong, 2406.10149, the first task of bAbI, 1502.05698). N longest question.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, pick, single

HOLE = 2
KEYS = 16  # and as many values, which are the next symbols
MARK, PASSKEY = 10, 4  # the symbol before the key, after the ten digits; digits of a key
NEEDLES, DIGITS = 12, 2  # names of needles, after the ten digits; digits of each
BLANK, COPIED = 10, 4  # the symbol between those to copy; how many there are
NAMES = 26
FACTS = 10  # at most
PEOPLE, VERBS, PLACES, FILLERS = 4, 4, 6, 32  # words of each kind, numbered in this order


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
    query = listed[jax.random.randint(keys[2], (), 0, pairs)]
    text = jnp.stack([listed, values[listed]], axis=1).reshape(-1)[:size]
    return single(text.at[2 * pairs].set(query), 2 * pairs + 1, values[query])


def recall_all(key: jax.Array, n: Any, size: int) -> Example:
    """Different keys, each followed by its value, then all keys in another order: their values?

    One or two symbols fewer where n is not a multiple of three.
    """
    keys, pairs, index = jax.random.split(key, 3), n // 3, jnp.arange(size)
    listed = jax.random.permutation(keys[0], KEYS)
    values = jax.random.randint(keys[1], (KEYS,), KEYS, 2 * KEYS)
    order = jnp.argsort(
        jnp.where(jnp.arange(KEYS) < pairs, jax.random.uniform(keys[2], (KEYS,)), 2)
    )
    pair = jnp.where(index % 2, pick(values, index // 2), pick(listed, index // 2))
    text = jnp.where(index < 2 * pairs, pair, pick(listed[order], index - 2 * pairs))
    return Example(text, 3 * pairs, values[order], pairs)


def mqar(key: jax.Array, n: Any, size: int) -> Example:
    """MQAR (arXiv 2312.04927): pairs, then the keys in another order; at each, its value.

    Keys and values are those of `recall_all`; the values of the repeated keys are targets only,
    never read. In the authors' data other tokens may lie between repeated keys, here none do. One
    or two symbols fewer where n is not a multiple of three.
    """
    example = recall_all(key, n, size)
    pairs, index = n // 3, jnp.arange(size)
    return Example(
        example.question, 3 * pairs, pick(example.answer, index - 2 * pairs), 3 * pairs, 2 * pairs
    )


def selective_copying(key: jax.Array, n: Any, size: int) -> Example:
    """Four digits at uniform positions among BLANKs: the digits, in order."""
    keys, index = jax.random.split(key), jnp.arange(size)
    drawn = jnp.where(index < n, jax.random.uniform(keys[0], (size,)), 2)
    positions = jnp.sort(jnp.argsort(drawn)[:COPIED])
    digits = jax.random.randint(keys[1], (COPIED,), 0, BLANK)
    return Example(jnp.full(size, BLANK).at[positions].set(digits), n, digits, COPIED)


def _insert(key: jax.Array, text: jax.Array, parts: jax.Array, count: Any, room: Any) -> jax.Array:
    """`text` with the first `count` of the parts [K, W] in it, in order, at uniform positions.

    They lie apart, within the first `room` symbols.
    """
    index, width = jnp.arange(len(parts)), parts.shape[1]
    between = room - width * count  # symbols that belong to no part
    before = jax.random.randint(key, index.shape, 0, between + 1)
    before = jnp.sort(jnp.where(index < count, before, len(text)))
    positions = (before + width * index)[:, None] + jnp.arange(width)
    return text.at[positions].set(parts, mode="drop")


def needles(key: jax.Array, n: Any, size: int, *, queries: int = 1, values: int = 1) -> Example:
    """Digits, and among them names, each with two digits after it; then names: their digits?

    One needle for each four symbols, or as many as `values` divides, at uniform positions.

    Args:
      key: the same key gives the same example.
      n: symbols of the question; may be traced.
      size: N.
      queries: how many names are asked for, all different.
      values: how many needles have the same name; they are answered in the order of the text.
    """
    keys, index = jax.random.split(key, 5), jnp.arange(NEEDLES)
    room, count = n - queries, (n - queries) // 4 // values * values
    text = jax.random.randint(keys[0], (size,), 0, 10)
    names = 10 + jax.random.permutation(keys[1], NEEDLES)
    digits = jax.random.randint(keys[2], (NEEDLES, DIGITS), 0, 10)
    if queries == values == 1:
        queried = jax.random.randint(keys[4], (1, 1), 0, count)
    else:
        order = jnp.argsort(jnp.where(index < count, jax.random.uniform(keys[4], index.shape), 2))
        names = names.at[order].set(names[index // values])
        queried = jnp.sort(order[: queries * values].reshape(queries, values), axis=1)
    text = _insert(keys[3], text, jnp.column_stack([names, digits]), count, room)
    text = text.at[room + jnp.arange(queries)].set(names[queried[:, 0]])
    return Example(text, n, digits[queried].reshape(-1), DIGITS * queries * values)


def facts(key: jax.Array, n: Any, size: int) -> Example:
    """Facts, PERSON VERB PLACE, scattered among other words, then a person: the last place?

    One to ten facts, fewer where there is no room; a longer question has more other words. A person
    may move several times: the last fact that names the person counts.
    """
    keys, index, room = jax.random.split(key, 5), jnp.arange(FACTS), n - 1
    kinds = jnp.cumsum(jnp.array([0, PEOPLE, VERBS, PLACES, FILLERS]))
    low, high = kinds[:3], kinds[1:4]
    count = jax.random.randint(keys[0], (), 1, jnp.minimum(FACTS, room // 3) + 1)
    triples = jax.random.randint(keys[1], (FACTS, 3), low, high)
    query = triples[jax.random.randint(keys[2], (), 0, count), 0]
    last = jnp.max(jnp.where((triples[:, 0] == query) & (index < count), index, 0))
    text = jax.random.randint(keys[3], (size,), kinds[3], kinds[4])
    text = _insert(keys[4], text, triples, count, room)
    return single(text.at[room].set(query), n, triples[last, 2])


def variables(key: jax.Array, n: Any, size: int) -> Example:
    """Different names, each followed by a digit or by an earlier name; then one: its digit?

    The first has a digit, and so has every third of the others on average. One symbol fewer where n
    is even.
    """
    keys, count, index = jax.random.split(key, 5), (n - 1) // 2, jnp.arange(NAMES)
    names = 10 + jax.random.permutation(keys[0], NAMES)
    digits = jax.random.randint(keys[1], (NAMES,), 0, 10)
    copies = (jax.random.uniform(keys[2], (NAMES,)) < 2 / 3) & (index > 0)
    earlier = jax.random.randint(keys[3], (NAMES,), 0, jnp.maximum(index, 1))

    def assign(values, at):
        value = jnp.where(copies[at], values[earlier[at]], digits[at])
        return values.at[at].set(value), None

    values, _ = jax.lax.scan(assign, jnp.zeros(NAMES, jnp.int32), index)
    sources = jnp.where(copies, names[earlier], digits)
    text = pick(jnp.stack([names, sources], axis=1).reshape(-1), jnp.arange(size))
    query = jax.random.randint(keys[4], (), 0, count)
    return single(text.at[2 * count].set(names[query]), 2 * count + 1, values[query])


def passkey(key: jax.Array, n: Any, size: int) -> Example:
    """Digits, among them MARK at a uniform position: the answer is the four digits after it."""
    keys = jax.random.split(key)
    text = jax.random.randint(keys[0], (size,), 0, MARK)
    mark = jax.random.randint(keys[1], (), 0, n - PASSKEY)
    text = text.at[mark].set(MARK)
    return Example(text, n, pick(text, mark + 1 + jnp.arange(PASSKEY)), PASSKEY)
