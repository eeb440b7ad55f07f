"""Tasks that a finite automaton solves, and one that needs a stack.

even_pairs, parity_check, cycle_navigation and stack_manipulation of arXiv 2207.02098, table 1;
permutations of five, which no circuit of constant depth composes (arXiv 2404.08819); flip-flops
(arXiv 2306.00946). Questions have n symbols of N.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.training.tasks.base import Example, pick, single

CYCLE = 5  # places
STAY, ON, BACK = range(3)
POP, PUSH = 2, 3  # PUSH + b pushes b
OBJECTS = 5
WRITE, IGNORE, READ = range(2, 5)  # the symbols after the bits
IGNORED = 0.8  # of the instructions between the first and the last


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
    steps = jnp.array([0, 1, -1])[moves] * (jnp.arange(size) < n)
    return single(moves, n, steps.sum() % CYCLE)


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


def permutations(key: jax.Array, n: Any, size: int) -> Example:
    """The order of five objects after n moves: s swaps places s and s + 1, 4 rotates all by one.

    The moves generate all of S5. In the paper all its 120 elements are moves: see `groups`.
    """
    moves = jax.random.randint(key, (size,), 0, OBJECTS)
    order = jnp.arange(OBJECTS)
    swaps = [order.at[jnp.array([s, s + 1])].set([s + 1, s]) for s in range(OBJECTS - 1)]
    moved = jnp.stack([*swaps, jnp.roll(order, 1)])

    def move(order, inputs):
        which, counts = inputs
        return jnp.where(counts, order[moved[which]], order), None

    order, _ = jax.lax.scan(move, order, (moves, jnp.arange(size) < n))
    return Example(moves, n, order, OBJECTS)


def flip_flop(key: jax.Array, n: Any, size: int) -> Example:
    """Instructions, each with a bit: WRITE it, IGNORE it, READ what was written. The last READ?

    The first instruction writes. One symbol fewer where n is even.
    """
    keys, pairs, index = jax.random.split(key, 3), (n - 1) // 2, jnp.arange(size // 2 + 1)
    bits = jax.random.randint(keys[0], index.shape, 0, 2)
    acts = jnp.where(jax.random.bernoulli(keys[1], 0.5, index.shape), WRITE, READ)
    acts = jnp.where(jax.random.uniform(keys[2], index.shape) < IGNORED, IGNORE, acts)
    acts = jnp.where(index == 0, WRITE, acts)
    written = jax.lax.cummax(jnp.where(acts == WRITE, index, 0))  # the index of the last one
    bits = jnp.where(acts == READ, bits[written], bits)
    text = jnp.stack([acts, bits], axis=1).reshape(-1)[:size]
    return single(text.at[2 * pairs].set(READ), 2 * pairs + 1, bits[written[pairs - 1]])
