"""Rows of tables on a TPU, by a product with ones and zeros; the logarithm of a gate."""

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.numerics.arrays import take
from pe_jax.numerics.gates import log_sigmoid
from pe_jax.numerics.turns import cosine
from tests.util import noise


def test_a_table_is_multiplied_on_a_tpu_and_nothing_is_rounded(monkeypatch):
    table, index = jnp.asarray(noise(3, 7)), np.arange(20).reshape(4, 5) % 7

    def both(table):
        rows, pull = jax.vjp(lambda table: take(table, index, 1, 7), table)
        return rows, pull(jnp.cos(rows))

    gathered = both(table)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert "dot_general" in str(jax.make_jaxpr(both)(table))
    multiplied = both(table)
    np.testing.assert_array_equal(multiplied[0], gathered[0])
    np.testing.assert_allclose(multiplied[1][0], gathered[1][0], rtol=1e-6)
    assert "gather" in str(jax.make_jaxpr(lambda x: take(x, index[0], 1, 7))(table))


def test_log_sigmoid_and_its_derivative_are_exact_to_the_ends_of_float32():
    ends = [0, 1e-30, 20, 88, 104, 3e38, np.inf]
    x = np.array([*ends, *np.negative(ends), *np.linspace(-3, 3, 50)], np.float32)
    want = -np.logaddexp(0, -x.astype(np.float64))
    np.testing.assert_allclose(log_sigmoid(x), want, rtol=1e-6, atol=1e-37)
    slope = np.exp(-np.logaddexp(0, x.astype(np.float64)))
    np.testing.assert_allclose(jax.vmap(jax.grad(log_sigmoid))(x), slope, rtol=1e-5, atol=1e-37)
    assert np.isnan(log_sigmoid(np.nan))


def test_cosines_of_turns_and_their_slopes_are_those_of_float64():
    x = np.array([0, 0.25, 0.5, -0.5, 0.75, *np.linspace(-9, 9, 999), 1e4 + 1 / 8], np.float32)
    angle = 2 * np.pi * x.astype(np.float64)
    np.testing.assert_allclose(cosine(x), np.cos(angle), atol=1e-6)
    slope = jax.vmap(jax.grad(cosine))(x)
    np.testing.assert_allclose(slope, -2 * np.pi * np.sin(angle), atol=1e-5)
