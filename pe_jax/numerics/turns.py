"""Cosines of angles in turns, by power series, for functions that are evaluated for each pair.

Whole turns are taken off exactly. Libraries reduce any angle to many more digits: on a GPU Triton's
cosine takes ten times as many instructions.
"""

import math

import jax
import jax.numpy as jnp

TERMS = 9
COSINE, SINE = (
    [(-1) ** n * math.tau ** (2 * n + odd) / math.factorial(2 * n + odd) for n in range(TERMS)]
    for odd in (0, 1)
)


@jax.custom_jvp
def cosine(turns: jax.Array) -> jax.Array:
    """cos(2π turns), elementwise: float32, within 10⁻⁶."""
    return cosine_of(part(turns))


@cosine.defjvp
def _jvp(primals, tangents):
    turn = part(primals[0])
    return cosine_of(turn), tangents[0] * (-math.tau) * sine_of(turn)


def part(turns: jax.Array) -> jax.Array:
    """Turns without the whole ones, from -1/2 to 1/2."""
    return turns - jnp.floor(turns + 0.5)


def cosine_of(turn: jax.Array) -> jax.Array:
    """The cosine of at most half a turn."""
    return _series(COSINE, turn * turn)


def sine_of(turn: jax.Array) -> jax.Array:
    """The sine of at most half a turn."""
    return turn * _series(SINE, turn * turn)


def _series(numbers: list[float], x: jax.Array) -> jax.Array:
    """Σ_n numbers_n x^n."""
    total = jnp.full(x.shape, numbers[-1], jnp.float32)
    for number in numbers[-2::-1]:
        total = total * x + number
    return total
