"""Products of matrices with gradients of their own: einsum's values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax.numerics import products
from tests.util import assert_close, noise

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 7, 3
FORMS = {"multiply": "bhte,bhse->bhts", "average": "bhts,bhse->bhte"}


def by_einsum(form: str, dtype, x, y):
    """The product of rounded operands, each key head repeated."""
    y = jnp.repeat(y, x.shape[1] // y.shape[1], axis=1)
    x, y = (z.astype(dtype).astype(jnp.float32) for z in (x, y))
    return jnp.einsum(form, x, y)


@pytest.mark.parametrize("dtype, tol", [(jnp.float32, 1e-6), (jnp.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, HEADS])
@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients_are_those_of_einsum(name, kv_heads, dtype, tol):
    last = WIDTH if name == "multiply" else KEYS
    x = jnp.asarray(noise(BATCH, HEADS, QUERIES, last, seed=1))
    y = jnp.asarray(noise(BATCH, kv_heads, KEYS, WIDTH, seed=2))

    def outcome(f):
        out, pull = jax.vjp(functools.partial(f, dtype), x, y)
        return out, pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    got = jax.jit(lambda: outcome(getattr(products, name)))()
    want = jax.jit(lambda: outcome(functools.partial(by_einsum, FORMS[name])))()
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype("float32")}
    assert_close(got[0], want[0], 1e-6)  # both round what they multiply
    assert_close(got[1], want[1], tol)  # of bfloat16 the cotangent is rounded too


def test_gradients_are_products_of_what_is_rounded():
    """A training step in bfloat16 multiplies in it, backward too."""
    x, y = (jnp.asarray(noise(1, 2, n, WIDTH)) for n in (QUERIES, KEYS))
    f = functools.partial(products.multiply, jnp.bfloat16)
    text = jax.jit(jax.grad(lambda x, y: f(x, y).sum(), (0, 1))).lower(x, y).as_text()
    dots = [line for line in text.splitlines() if "dot_general" in line]
    assert len(dots) == 2 and all(line.count("bf16") >= 2 for line in dots)


def test_a_product_has_first_derivatives_alone():
    x = jnp.ones((1, 1, 2, 2))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(functools.partial(products.multiply, jnp.float32, x), (x,), (x,))
    np.testing.assert_allclose(products.multiply(jnp.float32, x, x), 2 * np.ones((1, 1, 2, 2)))
