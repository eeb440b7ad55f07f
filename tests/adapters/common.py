"""Stock Flax attention of known weights, and what its adapter is called with."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import pe_jax
from pe_jax import Params
from tests import util
from tests.util import DIMS, B, E, H, K, T, noise

D = DIMS.width
X = noise(B, T, D)
NONE = Params({}, {})
ROPE, SHAW = pe_jax.make("rope"), pe_jax.make("shaw")
MASK = np.random.default_rng(0).random((B, H, T, T)) < 0.5
MASK |= np.eye(T, dtype=bool)  # stock averages all values where a query sees nothing


def of_linen(fn, **options):
    return nn.MultiHeadDotProductAttention(num_heads=H, attention_fn=fn, **options)


def of_nnx(fn, **options):
    options = {"decode": False, "num_kv_heads": K, "rngs": nnx.Rngs(0)} | options
    return nnx.MultiHeadAttention(H, D, attention_fn=fn, **options)


@functools.cache
def weights(kv_heads=H):
    """Weights of a stock module of either kind: {name: {kernel, bias}}."""
    count = {"query": H, "key": kv_heads, "value": kv_heads}
    shapes = {name: ((D, n, E), (n, E)) for name, n in count.items()} | {"out": ((H, E, D), (D,))}
    return {
        name: {"kernel": 0.3 * noise(*kernel, seed=i), "bias": 0.3 * noise(*bias, seed=i)}
        for i, (name, (kernel, bias)) in enumerate(shapes.items())
    }


def fill(module):
    """Gives an NNX module those weights."""
    for name, leaves in weights(module.num_kv_heads).items():
        for leaf, value in leaves.items():
            getattr(getattr(module, name), leaf)[...] = jnp.asarray(value)
    return module


def called(fn, *args, **kwargs):
    """fn(*args, **kwargs), compiled; arrays all of them."""
    return util.jit(lambda args, kwargs: fn(*args, **kwargs))(args, kwargs)


def heads():
    return tuple(noise(B, T, H, E, seed=i) for i in range(3))


def refused(message: str, call, *args, error=ValueError, **given):
    with pytest.raises(error, match=message) as caught:
        call(*args, **given)
    assert "\n" not in str(caught.value)
