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


def _einsum(form: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(form, *operands, preferred_element_type=jnp.float32)


def _sum_heads(x: jax.Array, count: int) -> jax.Array:
    return x if x.shape[1] == count else x.reshape(len(x), count, -1, *x.shape[2:]).sum(2)


def _transposed(x: jax.Array) -> jax.Array:
    return jax.lax.optimization_barrier(jnp.swapaxes(x, 2, 3))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(dtype: Any, q: jax.Array, k: jax.Array) -> jax.Array:
    """q [B, H, T, E] times k [B, K, S, E], rounded to `dtype`: float32 [B, H, T, S]."""
    return _einsum("bhte,bhse->bhts", q.astype(dtype), repeat_heads(k, q.shape[1]).astype(dtype))


def _multiply_forward(dtype, q, k):
    return multiply(dtype, q, k), (q, k)


def _multiply_backward(dtype, saved, d):
    q, k = saved
    d, q = d.astype(dtype), q.astype(dtype)
    d_q = _einsum("bhts,bhse->bhte", d, repeat_heads(k, q.shape[1]).astype(dtype))
    d_k = jnp.swapaxes(_einsum("bhet,bhts->bhes", _transposed(q), d), 2, 3)
    return d_q, _sum_heads(d_k, k.shape[1])


multiply.defvjp(_multiply_forward, _multiply_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def average(dtype: Any, weights: jax.Array, v: jax.Array) -> jax.Array:
    """Weights [B, H, T, S] times v [B, K, S, F], rounded to `dtype`: float32 [B, H, T, F]."""
    v = repeat_heads(v, weights.shape[1]).astype(dtype)
    return _einsum("bhts,bhsf->bhtf", weights.astype(dtype), v)


def _average_forward(dtype, weights, v):
    return average(dtype, weights, v), (weights, v)


def _average_backward(dtype, saved, d):
    weights, v = saved
    d, low = d.astype(dtype), weights.astype(dtype)
    d_weights = _einsum("bhtf,bhsf->bhts", d, repeat_heads(v, weights.shape[1]).astype(dtype))
    d_v = jnp.swapaxes(_einsum("bhft,bhts->bhfs", _transposed(d), low), 2, 3)
    return d_weights, _sum_heads(d_v, v.shape[1])


average.defvjp(_average_forward, _average_backward)
