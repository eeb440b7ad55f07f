"""Products of matrices whose gradients XLA computes as fast as the products themselves.

On a CPU, XLA's A.T @ B takes two to three times as long as A @ B, and the gradient of a product by
its right side is one: here the left side is transposed first, a copy that XLA may not fold back.
Gradients are of first order, in reverse mode. B batch, H query heads, K key heads (K divides H).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.numerics.arrays import repeat_heads

# Of float32 as it is: by default GPUs and TPUs round the factors, to TF32 or bfloat16.
einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """The product of two matrices over the last axis of a and `axis` of b: float32.

    Float32 as it is, on any device.
    """
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    axes = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, precision, preferred_element_type=jnp.float32)


def _product(form: str, dtype: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """x [B, H, …] times y [B, K, …], rounded to `dtype` or, if it is None, not at all: float32."""
    y = repeat_heads(y, x.shape[1])
    if dtype is None:
        return einsum(form, x, y)
    return jnp.einsum(form, x.astype(dtype), y.astype(dtype), preferred_element_type=jnp.float32)


def _sum_rows(dtype: Any, scores: jax.Array, x: jax.Array, count: int) -> jax.Array:
    """Σ_t scores[t, s] x[t], over the heads that share a key head too: float32 [B, K, S, E].

    For scores [B, H, T, S], x [B, H, T, E] and `count` key heads.
    """
    x = jax.lax.optimization_barrier(jnp.swapaxes(x.astype(dtype or x.dtype), 2, 3))
    sums = jnp.swapaxes(_product("bhet,bhts->bhes", dtype, x, scores), 2, 3)
    shared = sums.shape[1] != count
    return sums.reshape(len(sums), count, -1, *sums.shape[2:]).sum(2) if shared else sums


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(dtype: Any, q: jax.Array, k: jax.Array) -> jax.Array:
    """q [B, H, T, E] times k [B, K, S, E], rounded to `dtype`: float32 [B, H, T, S].

    None multiplies float32 as it is, on any device.
    """
    return _product("bhte,bhse->bhts", dtype, q, k)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def average(dtype: Any, weights: jax.Array, v: jax.Array) -> jax.Array:
    """Weights [B, H, T, S] times v [B, K, S, F], rounded to `dtype`: float32 [B, H, T, F]."""
    return _product("bhts,bhsf->bhtf", dtype, weights, v)


def _of_multiply(dtype, saved, d):
    q, k = saved
    return average(dtype, d, k), _sum_rows(dtype, d, q, k.shape[1])


def _of_average(dtype, saved, d):
    weights, v = saved
    return multiply(dtype, d, v), _sum_rows(dtype, weights, d, v.shape[1])


multiply.defvjp(lambda dtype, q, k: (multiply(dtype, q, k), (q, k)), _of_multiply)
average.defvjp(lambda dtype, x, v: (average(dtype, x, v), (x, v)), _of_average)
