"""The logarithm of a gate, for functions that are evaluated for each pair of tokens."""

import jax
import jax.numpy as jnp


@jax.custom_jvp
def log_sigmoid(x: jax.Array) -> jax.Array:
    """log(1 / (1 + exp(-x))), at most 0, elementwise.

    `jax.nn.log_sigmoid` is the same, with care for infinities that need none here: stick-breaking's
    GPU kernels have 4 to 9 % fewer instructions for a tile without it (sm_90).
    """
    return jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))


@log_sigmoid.defjvp
def _jvp(primals, tangents):
    return log_sigmoid(*primals), tangents[0] * jax.nn.sigmoid(-primals[0])
