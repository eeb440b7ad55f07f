"""Running sums over tokens whose differences keep their precision at any length.

A float32 sum that has reached 10⁵ is known to 0.004 only, and so would be the bias of two
neighbours, the difference of two such sums. Each sum is therefore held as two float32 numbers, the
rounded sum and what it rounded off (Dekker's and Knuth's exact addition), so that the error of a
difference is relative to the difference, not to the sums.
"""

import functools
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

WIDTH = 2  # numbers per sum
BFLOAT16 = 8, 7  # bits of its exponent and of its mantissa


def exactly(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rounded a + b, and what was rounded off (Knuth, TAOCP, vol. 2)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def pieces(x: jax.Array, count: int, rest: Any = 0.0) -> list[jax.Array]:
    """Float32 numbers of bfloat16's precision that add up to x + rest, to 9 bits per piece.

    `rest` is what x rounds off. The first piece has the gradient of x, the others have none.
    """
    parts, remainder = [], jax.lax.stop_gradient(x)
    for n in range(count):
        remainder = remainder + jax.lax.stop_gradient(rest) if n == 2 else remainder
        # XLA may leave out a conversion to bfloat16 and back, but not this.
        parts.append(jax.lax.reduce_precision(remainder, *BFLOAT16))
        remainder = remainder - parts[-1]  # exact
    change = jax.lax.stop_gradient(x) - parts[0]
    return [x - change, *parts[1:]]


def _add(x: tuple, y: tuple) -> tuple:
    high, rest = exactly(x[0], y[0])
    rest += x[1] + y[1]
    total = high + rest
    return total, rest - (total - high)


FEW = 2**15  # sums for which one loop, quick to compile, is fast enough


@jax.custom_jvp
def _sums(steps: jax.Array) -> tuple[jax.Array, jax.Array]:
    start = steps, jnp.zeros_like(steps)
    if jax.export.is_symbolic_dim(steps.size):  # Python can neither compare nor halve it
        length = jnp.asarray(steps.shape[-2], jnp.int32)
        return _scan_in_place(start, 31 - jax.lax.clz(length))
    return _scan(start)


def _scan(sums: tuple) -> tuple:
    """`jax.lax.associative_scan(_add, sums, axis=-2)`: the same additions, in the same order.

    That halves the length until one token is left, in new code each time, which takes a second to
    compile. Here halving ends when the sums are few.
    """
    length = sums[0].shape[-2]
    if length < 2:
        return sums
    if sums[0].size <= FEW:
        return _scan_in_place(sums, length.bit_length() - 1)
    pairs = _add(tuple(x[..., :-1:2, :] for x in sums), tuple(x[..., 1::2, :] for x in sums))
    odd = _scan(pairs)
    before = tuple(x[..., : (length - 1) // 2, :] for x in odd)
    even = _add(before, tuple(x[..., 2::2, :] for x in sums))
    even = (jnp.concatenate([x[..., :1, :], y], axis=-2) for x, y in zip(sums, even, strict=True))
    return tuple(map(_interleaved, even, odd))


def _interleaved(even: jax.Array, odd: jax.Array) -> jax.Array:
    """Tokens 0, 2, 4, … and 1, 3, 5, … as one sequence."""
    *lead, count, width = even.shape
    length = count + odd.shape[-2]
    odd = jnp.pad(odd, [(0, 0)] * len(lead) + [(0, 2 * count - length), (0, 0)])
    return jnp.stack([even, odd], axis=-2).reshape(*lead, 2 * count, width)[..., :length, :]


def _scan_in_place(sums: tuple, levels: int | jax.Array) -> tuple:
    """As `_scan`, in one loop. `levels` is the length's logarithm to base 2, rounded down.

    A step adds to every second, fourth, eighth, … token the sum of half as many tokens before it;
    the steps back give the tokens between them theirs.
    """
    index = jnp.arange(sums[0].shape[-2], dtype=jnp.int32)[:, None]

    def step(n, sums):
        distance = 1 << jnp.minimum(n, 2 * levels - 1 - n)
        turn = (index + 1) % (2 * distance) == jnp.where(n < levels, 0, distance)
        added = _add(tuple(jnp.roll(x, distance, axis=-2) for x in sums), sums)
        select = functools.partial(jnp.where, turn & (index >= distance))
        return tuple(map(select, added, sums))

    return jax.lax.fori_loop(0, 2 * levels, step, sums)


@_sums.defjvp
def _(primals, tangents):
    tangent = jnp.cumsum(tangents[0], axis=-2)
    return _sums(*primals), (tangent, jnp.zeros_like(tangent))


def total(steps: jax.Array, before: jax.Array | None = None) -> jax.Array:
    """The sum of the steps up to each token, itself included, for `difference`: [*B, T, H, 2].

    Args:
      steps: float32 [*B, T, H], what each token adds.
      before: [*B, H, 2], the sum up to the token before the first; None: 0.
    """
    if not steps.size:
        return jnp.zeros((*steps.shape, WIDTH), jnp.float32)
    sums = jnp.stack(_sums(steps), axis=-1)
    return sums if before is None else after(before, sums)


def after(before: jax.Array, sums: jax.Array) -> jax.Array:
    """Sums [*B, T, H, 2] that began at 0, as they are after a sum `before` [*B, H, 2]."""
    before = before[..., None, :, :]
    moved = _add((before[..., 0], before[..., 1]), (sums[..., 0], sums[..., 1]))
    return jnp.stack(moved, axis=-1)


def difference(q_state: list, k_state: list) -> jax.Array:
    """The sum at the query minus that at the key: the steps of the tokens between them."""
    return (q_state[0] - k_state[0]) + (q_state[1] - k_state[1])


def between(q_state: list, k_state: list) -> jax.Array:
    """|`difference`|, with a gradient of 0 where it is 0, as for a token and itself.

    The gradient of `abs` at 0 is 1 in JAX: a token's own pair would reach its sum twice, with
    opposite signs, and leave its rounding error in the gradient of every step before it.
    """
    total = difference(q_state, k_state)
    return jnp.where(total == 0, 0, jnp.abs(total))


# Several sums per head: the state of a token has all rounded sums, then all that they rounded off.


def totals(steps: jax.Array, before: jax.Array | None = None) -> jax.Array:
    """As `total`, of C sums per head: [*B, T, H, 2C] for steps [*B, T, H, C], `before` [*B, H, 2C].

    The first C numbers are the rounded sums, the others what they rounded off.
    """
    flat = steps.reshape(*steps.shape[:-2], steps.shape[-2] * steps.shape[-1])
    sums = total(flat, None if before is None else _paired(before))
    return _unpaired(sums, steps.shape[-1])


def after_totals(before: jax.Array, sums: jax.Array) -> jax.Array:
    """As `after`, for what `totals` gives: `before` [*B, H, 2C], sums [*B, T, H, 2C]."""
    return _unpaired(after(_paired(before), _paired(sums)), sums.shape[-1] // WIDTH)


def _paired(sums: jax.Array) -> jax.Array:
    """[*n, H, 2C] → [*n, H·C, 2]."""
    *lead, heads, width = sums.shape
    pairs = sums.reshape(*lead, heads, WIDTH, width // WIDTH)
    return jnp.swapaxes(pairs, -1, -2).reshape(*lead, heads * width // WIDTH, WIDTH)


def _unpaired(sums: jax.Array, count: int) -> jax.Array:
    """[*n, H·C, 2] → [*n, H, 2C] for C = `count`."""
    *lead, all_sums, _ = sums.shape
    pairs = sums.reshape(*lead, all_sums // count, count, WIDTH)
    return jnp.swapaxes(pairs, -1, -2).reshape(*lead, all_sums // count, WIDTH * count)
