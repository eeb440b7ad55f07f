"""Tasks that a finite automaton solves, and one that needs a stack.

even_pairs, parity_check, cycle_navigation and stack_manipulation of arXiv 2207.02098, table 1; the
summation of arXiv 2305.19466, modulo 10 as there. Questions have n symbols of N.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, pick, single

CYCLE = 5  # places
STAY, ON, BACK = range(3)
POP, PUSH = 2, 3  # PUSH + b pushes b


def even_pairs(key: jax.Array, n: Any, size: int) -> Example:
    """1 if the number of pairs 01 and 10 in a binary string is odd, else 0."""
    s = jax.random.randint(key, (size,), 0, 2)
    unequal = (s[1:] != s[:-1]) & (jnp.arange(1, size) < n)
    return single(s, n, unequal.sum() % 2)


def parity_check(key: jax.Array, n: Any, size: int) -> Example:
    """1 if the number of ones in a binary string is odd, else 0."""
    s = jax.random.randint(key, (size,), 0, 2)
    return single(s, n, (s * (jnp.arange(size) < n)).sum() % 2)


def cycle_navigation(key: jax.Array, n: Any, size: int) -> Example:
    """The place on a cycle of five after n moves (STAY, ON, BACK) from place 0."""
    moves = jax.random.randint(key, (size,), 0, 3)
    way = jnp.array([0, 1, -1])[moves] * (jnp.arange(size) < n)
    return single(moves, n, way.sum() % CYCLE)


def summation(key: jax.Array, n: Any, size: int) -> Example:
    """The sum of n digits from 1 to 9, modulo 10."""
    digits = jax.random.randint(key, (size,), 1, 10)
    return single(digits, n, (digits * (jnp.arange(size) < n)).sum() % 10)


def stack_manipulation(key: jax.Array, n: Any, size: int) -> Example:
    """The stack, top first, after POP and PUSH of 0 or 1; the question begins with its bottom.

    The stack begins with 1 to n - 1 symbols, or n where n is 1. POP on an empty stack is a no-op.
    """
    keys = jax.random.split(key, 3)
    height = jax.random.randint(keys[0], (), 1, jnp.maximum(n, 2))
    bits = jax.random.randint(keys[1], (size,), 0, 2)
    actions = jax.random.randint(keys[2], (size,), POP, PUSH + 2)
    index = jnp.arange(size)
    question = jnp.where(index < height, bits, actions)

    def act(state, inputs):  # the initial stack is pushed like any other symbol
        stack, top = state
        symbol, counts = inputs
        pushes = counts & (symbol != POP)
        stack = stack.at[jnp.where(pushes, top, size)].set(symbol % PUSH, mode="drop")
        step = jnp.where(pushes, 1, -1) * counts
        return (stack, jnp.maximum(top + step, 0)), None

    state = jnp.zeros(size, jnp.int32), jnp.int32(0)
    (stack, top), _ = jax.lax.scan(act, state, (question, index < n))
    return Example(question, n, pick(stack, top - 1 - jnp.arange(size + 1)), top)
