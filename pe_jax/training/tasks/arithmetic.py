"""Expressions modulo 5 to evaluate or to solve.

modular_arithmetic, modular_arithmetic_brackets and solve_equation of arXiv 2207.02098, table 1,
with the grammar of its code. N longest question.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, single

MODULUS = 5
PLUS, MINUS, TIMES, OPEN, CLOSE, X, EQUALS = range(MODULUS, MODULUS + 7)


def modular_arithmetic(key: jax.Array, n: Any, size: int) -> Example:
    """Digits with +, - and * between them, * binding first; one symbol fewer where n is even."""
    length, count = n - (n % 2 == 0), (size + 1) // 2
    keys = jax.random.split(key)
    digits = jax.random.randint(keys[0], (count,), 0, MODULUS)
    operators = jax.random.randint(keys[1], (count,), PLUS, TIMES + 1).at[0].set(PLUS)

    def read(state, inputs):  # the sum of the terms before, and the current term
        total, term = state
        operator, digit, counts = inputs
        fresh = jnp.where(operator == MINUS, -digit, digit)
        ends = operator != TIMES
        new = jnp.where(ends, total + term, total), jnp.where(ends, fresh, term * digit)
        new = tuple(x % MODULUS for x in new)
        return jax.tree.map(lambda a, b: jnp.where(counts, a, b), new, state), None

    counts = 2 * jnp.arange(count) < length
    state = jnp.int32(0), jnp.int32(0)
    (total, term), _ = jax.lax.scan(read, state, (operators, digits, counts))
    text = jnp.stack([digits, jnp.roll(operators, -1)], axis=1).reshape(-1)[:size]
    return single(text, length, (total + term) % MODULUS)


class Expression(NamedTuple):
    """An expression with brackets: its text and value; each node's digit, index, whether a leaf."""

    text: jax.Array
    value: jax.Array
    digits: jax.Array
    indices: jax.Array
    leaves: jax.Array


def expression(key: jax.Array, n: Any, size: int, operators: int) -> Expression:
    """An expression of exactly n symbols: d, -d, (d), (-d), or (left operator right).

    The length of the left part is uniform among those that leave room for the right one. Nodes are
    listed breadth first: a node's two parts follow it, next to each other.

    Args:
      key: the same key gives the same expression.
      n: from 1 to `size`; may be traced.
      size: symbols of the text.
      operators: how many of +, - and * to draw from.
    """
    nodes = (size + 1) // 2  # k brackets of two parts take 3k symbols, and their k + 1 leaves one
    keys = jax.random.split(key, 3)
    shares = jax.random.uniform(keys[0], (nodes,))
    digits = jax.random.randint(keys[1], (nodes,), 0, MODULUS)
    chosen = jax.random.randint(keys[2], (nodes,), PLUS, PLUS + operators)

    def grow(state, inputs):
        starts, lengths, count = state
        node, share = inputs
        start, length = starts[node], lengths[node]
        left = 1 + jnp.minimum((share * (length - 4)).astype(jnp.int32), length - 5)
        splits = length >= 5
        slots = jnp.where(splits, count + jnp.arange(2), nodes)
        starts = starts.at[slots].set(start + jnp.stack([1 + 0 * left, 2 + left]), mode="drop")
        lengths = lengths.at[slots].set(jnp.stack([left, length - 3 - left]), mode="drop")
        return (starts, lengths, count + 2 * splits), (left, count)

    empty = jnp.zeros(nodes, jnp.int32)
    state = empty, empty.at[0].set(n), jnp.int32(1)
    order = jnp.arange(nodes)
    (starts, lengths, _), (lefts, children) = jax.lax.scan(grow, state, (order, shares))
    splits, negative = lengths >= 5, (lengths == 2) | (lengths == 4)
    middle = starts + jnp.where(splits, 1 + lefts, lengths // 2)
    leaves = (lengths > 0) & ~splits

    def evaluate(values, inputs):
        node, child = inputs
        a, b = values[jnp.minimum(child, nodes - 2)], values[jnp.minimum(child + 1, nodes - 1)]
        whole = jnp.stack([a + b, a - b, a * b])[chosen[node] - PLUS]
        leaf = jnp.where(negative[node], -digits[node], digits[node])
        return values.at[node].set(jnp.where(splits[node], whole, leaf) % MODULUS), None

    values, _ = jax.lax.scan(evaluate, empty, (order, children), reverse=True)
    text = jnp.zeros(size, jnp.int32)
    for symbol, index, present in (
        (OPEN, starts, lengths >= 3),
        (CLOSE, starts + lengths - 1, lengths >= 3),
        (MINUS, middle - 1, negative),
        (jnp.where(splits, chosen, digits), middle, lengths > 0),
    ):
        text = text.at[jnp.where(present, index, size)].set(symbol, mode="drop")
    return Expression(text, values[0], digits, middle, leaves)


def modular_arithmetic_brackets(key: jax.Array, n: Any, size: int) -> Example:
    """An expression with +, - and *, and its value."""
    drawn = expression(key, n, size, 3)
    return single(drawn.text, n, drawn.value)


def solve_equation(key: jax.Array, n: Any, size: int) -> Example:
    """An expression with + and -, in which x replaces a digit, = its value: what is x?

    The digit is uniform among those of the expression. The answer is unique, as nothing is
    multiplied.
    """
    keys = jax.random.split(key)
    drawn = expression(keys[0], n - 2, size - 2, 2)
    lots = jax.random.uniform(keys[1], drawn.leaves.shape)
    hidden = jnp.argmax(jnp.where(drawn.leaves, lots, -1))
    text = jnp.pad(drawn.text, (0, 2)).at[drawn.indices[hidden]].set(X)
    text = text.at[n - 2].set(EQUALS).at[n - 1].set(drawn.value)
    return single(text, n, drawn.digits[hidden])
