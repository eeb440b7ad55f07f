"""Arithmetic on numbers written in digits: sums, products and square roots of any length.

binary_addition, binary_multiplication and compute_sqrt of arXiv 2207.02098, table 1; decimal
addition as in arXiv 2305.19466. It works on digits, so that no integer overflows. N longest
question.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, pick


def carry(columns: jax.Array, base: int) -> tuple[jax.Array, jax.Array]:
    """Digits of a sum given by columns, lowest first, and the final carry: [K], [].

    Columns may be negative: the final carry of a negative sum is -1.
    """

    def step(over, column):
        total = column + over
        return total // base, total % base

    over, digits = jax.lax.scan(step, jnp.int32(0), columns)
    return digits, over


def _operands(key: jax.Array, n: Any, size: int, base: int, lowest_first: bool):
    """`a SIGN b` of n symbols, and the digits of a and b, lowest first, padded with zeros: [N].

    The position of SIGN, whose symbol is `base`, is uniform. If the lowest digit comes first, all
    digits are uniform, except that an operand of only zeros becomes 1, or its product would be
    trivial; if the highest comes first, it is not 0.
    """
    keys, index = jax.random.split(key, 3), jnp.arange(size)
    sign = jax.random.randint(keys[0], (), 1, n - 1)
    text = jax.random.randint(keys[1], (size,), 0, base)
    first = (index == 0) | (index == sign + 1)
    if lowest_first:
        left = index < sign
        whole = (index < n) & (index != sign) & (text > 0)
        zero = ~jnp.where(left, (whole & left).any(), (whole & ~left).any())
        text = jnp.where(first & zero, 1, text)
    else:
        text = jnp.where(first, jax.random.randint(keys[2], (size,), 1, base), text)
    text = text.at[sign].set(base)
    starts, counts = jnp.stack([0 * sign, sign + 1]), jnp.stack([sign, n - 1 - sign])
    offsets = index if lowest_first else counts[:, None] - 1 - index
    digits = jnp.where(index < counts[:, None], pick(text, starts[:, None] + offsets), 0)
    return text, digits


def _answer(text: jax.Array, n: Any, digits: jax.Array, lowest_first: bool) -> Example:
    """The example whose answer is a number, without leading zeros."""
    index = jnp.arange(len(digits))
    count = 1 + jnp.max(jnp.where(digits > 0, index, 0))
    answer = digits if lowest_first else pick(digits, count - 1 - index)
    return Example(text, n, answer, count)


def addition(key: jax.Array, n: Any, size: int, *, base: int, lowest_first: bool) -> Example:
    """`a + b` of n symbols, and its sum."""
    text, (a, b) = _operands(key, n, size, base, lowest_first)
    return _answer(text, n, carry(a + b, base)[0], lowest_first)


def multiplication(key: jax.Array, n: Any, size: int, *, base: int, lowest_first: bool) -> Example:
    """`a * b` of n symbols, and its product."""
    text, (a, b) = _operands(key, n, size, base, lowest_first)
    index = jnp.arange(size)
    shift = index[:, None] - index
    columns = (a * jnp.where(shift >= 0, b[shift], 0)).sum(1)
    return _answer(text, n, carry(columns, base)[0], lowest_first)


def square_root(key: jax.Array, n: Any, size: int) -> Example:
    """A binary number of n bits, highest first, and the floor of its root, of half as many bits.

    Digit-by-digit algorithm: the next two bits are appended to the remainder, and 4·root + 1 is
    subtracted from it if the result is not negative.
    """
    text, half = jax.random.randint(key, (size,), 0, 2), (size + 1) // 2
    index = jnp.arange(2 * half)
    bits = jnp.where(index < n, pick(text, n - 1 - index), 0)  # lowest first

    def bring_down(state, pair):
        remainder, root = state
        remainder = jnp.concatenate([pair, remainder[:-2]])
        trial = jnp.concatenate([jnp.array([1, 0]), root])
        difference, borrow = carry(remainder - trial, 2)
        fits = borrow == 0
        root = jnp.concatenate([fits.astype(jnp.int32)[None], root[:-1]])
        return (jnp.where(fits, difference, remainder), root), None

    state = jnp.zeros(half + 2, jnp.int32), jnp.zeros(half, jnp.int32)
    (_, root), _ = jax.lax.scan(bring_down, state, bits.reshape(half, 2), reverse=True)
    return Example(text, n, pick(root, (n + 1) // 2 - 1 - jnp.arange(half)), (n + 1) // 2)
