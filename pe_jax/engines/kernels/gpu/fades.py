"""Products whose channels fade by the tokens between, in the GPU kernels: WALL.

    s_ij = Σ_n q_i,n k_j,n exp(P_i,n - P_j,n)

All blocks have one length, that of a chunk. XLA fades each query from the first token of its block
on, and each key up to the last of its block. Between two blocks exp(P_first - P_last) is left, one
number for each channel of a tile. The ends of blocks are rounded to powers of two (no factor
exceeds √2): so nothing is rounded between blocks, and the kernels for queries and for keys have the
same scores. The gradient of P is a sum in which pairs cancel: it is that of the channels as they
were rounded, in float32.

Letters are those of `engine`.
"""

import math

import jax
import jax.numpy as jnp

from pe_jax.engines.first_order import call_in_reverse
from pe_jax.engines.kernels import common
from pe_jax.numerics import fading
from pe_jax.numerics.arrays import repeat_heads
from pe_jax.numerics.running_sums import difference

LOG2E = math.log2(math.e)
# log 2: powers of two, whose products with whole numbers are exact, and what is left
LN2 = [2.0**-n for n in (1, 3, 4, 8, 10, 11, 12, 15)]
LN2.append(math.log(2) - sum(LN2))


def prepare(q: jax.Array, k: jax.Array, state: jax.Array, block: int) -> dict[str, jax.Array]:
    """What kernels read, by the names of `Arrays`, of q, k and the sums P of the same tokens.

    Padded to whole blocks. Faded channels are float32 that q's dtype holds exactly. The
    ends of blocks get no gradient: the products do not depend on where a pair's fade is divided.
    """
    batch, heads, *_ = q.shape

    def in_blocks(x, **how):
        x = common.pad(x, 2, block, **how)
        return x.reshape(*x.shape[:2], -1, block, x.shape[-1])

    def in_row(x):
        return x.reshape(*x.shape[:2], -1, x.shape[-1])

    def end(at):
        high, low = (jax.lax.stop_gradient(x[:, :, :, at, None]) for x in sums)
        power, rest = jnp.round(high * LOG2E), high
        for part in LN2:
            rest = rest - power * part
        return [high, low], power, rest + low

    def faded(x, change, rest):
        return in_row(call_in_reverse(_rounded, x, jnp.where(change > 0, 0, change) + rest))

    queries, keys = in_blocks(q), in_blocks(repeat_heads(k, heads))
    sums = in_blocks(jnp.broadcast_to(state, (batch, heads, *state.shape[2:])), mode="edge")
    of_blocks = [x.reshape(batch, -1, *x.shape[3:]) for x in (queries, keys, sums, sums)]
    near = fading.in_block(*(x.astype(jnp.float32) for x in of_blocks))
    sums = jnp.split(sums, 2, axis=-1)
    (first, begin, before), (last, finish, after) = end(0), end(block - 1)
    return {
        "left": faded(queries, difference(sums, first), before),
        "right": faded(keys, difference(last, sums), -after),
        "ends": jnp.stack([x[:, :, :, 0] for x in (begin, finish)], axis=2),
        "near": near.reshape(batch, heads, -1, block),
    }


@jax.custom_vjp
def _rounded(x: jax.Array, change: jax.Array) -> jax.Array:
    """x·exp(change), rounded to x.dtype, as float32."""
    return (x * jnp.exp(change)).astype(x.dtype).astype(jnp.float32)


def _rounded_forward(x, change):
    rounded = _rounded(x, change)
    return rounded, (x, change, rounded)


def _rounded_backward(saved, d):
    """What the change gets is of the rounded number, as what other tokens get of it is."""
    x, change, rounded = saved
    return (d * jnp.exp(change)).astype(x.dtype), d * rounded


_rounded.defvjp(_rounded_forward, _rounded_backward)
