"""The logarithm of a gate, for functions that are evaluated for each pair of tokens."""

import jax
import jax.numpy as jnp


@jax.custom_jvp
def log_sigmoid(x: jax.Array) -> jax.Array:
    """log(1 / (1 + exp(-x))), at most 0, elementwise.

    `jax.nn.log_sigmoid` is the same; it and its derivative take about twice as many operations, for
    infinities, which need no care here.
    """
    return jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))


@log_sigmoid.defjvp
def _jvp(primals, tangents):
    return log_sigmoid(*primals), tangents[0] * jax.nn.sigmoid(-primals[0])
