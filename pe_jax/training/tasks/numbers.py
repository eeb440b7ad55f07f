"""Arithmetic on binary numbers: sums, products and square roots of any length.

binary_addition, binary_multiplication and compute_sqrt of arXiv 2207.02098, table 1. It works on
digits, so that no integer overflows; the lowest comes first but in a square root. N longest
question.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, pick


def carry(columns: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Digits of a sum given by columns, lowest first, and the final carry: [K], [].

    Columns may be negative: the final carry of a negative sum is -1.
    """

    def step(over, column):
        total = column + over
        return total // 2, total % 2

    over, digits = jax.lax.scan(step, jnp.int32(0), columns)
    return digits, over


def _operands(key: jax.Array, n: Any, size: int) -> tuple[jax.Array, jax.Array]:
    """`a SIGN b` of n symbols, and the digits of a and b, padded with zeros: [2, N].

    The position of SIGN, whose symbol is 2, and all digits are uniform, except that an operand of
    only zeros becomes 1, or its product would be trivial.
    """
    keys, index = jax.random.split(key), jnp.arange(size)
    sign = jax.random.randint(keys[0], (), 1, n - 1)
    text = jax.random.randint(keys[1], (size,), 0, 2)
    left = index < sign
    whole = (index < n) & (index != sign) & (text > 0)
    zero = ~jnp.where(left, (whole & left).any(), (whole & ~left).any())
    text = jnp.where(((index == 0) | (index == sign + 1)) & zero, 1, text).at[sign].set(2)
    starts, counts = jnp.stack([0 * sign, sign + 1]), jnp.stack([sign, n - 1 - sign])
    digits = jnp.where(index < counts[:, None], pick(text, starts[:, None] + index), 0)
    return text, digits


def _answer(text: jax.Array, n: Any, columns: jax.Array) -> Example:
    """The example whose answer is a number given by columns, without zeros at its end."""
    digits, _ = carry(columns)
    return Example(text, n, digits, 1 + jnp.max(jnp.where(digits > 0, jnp.arange(len(digits)), 0)))


def addition(key: jax.Array, n: Any, size: int) -> Example:
    """`a + b` of n symbols, and its sum."""
    text, (a, b) = _operands(key, n, size)
    return _answer(text, n, a + b)


def multiplication(key: jax.Array, n: Any, size: int) -> Example:
    """`a * b` of n symbols, and its product."""
    text, (a, b) = _operands(key, n, size)
    shift = jnp.arange(size)[:, None] - jnp.arange(size)
    return _answer(text, n, (a * jnp.where(shift >= 0, b[shift], 0)).sum(1))


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
        difference, borrow = carry(remainder - trial)
        fits = borrow == 0
        root = jnp.concatenate([fits.astype(jnp.int32)[None], root[:-1]])
        return (jnp.where(fits, difference, remainder), root), None

    state = jnp.zeros(half + 2, jnp.int32), jnp.zeros(half, jnp.int32)
    (_, root), _ = jax.lax.scan(bring_down, state, bits.reshape(half, 2), reverse=True)
    return Example(text, n, pick(root, (n + 1) // 2 - 1 - jnp.arange(half)), (n + 1) // 2)
