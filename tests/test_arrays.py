"""Rows of tables on a TPU, where a product with ones and zeros takes the place of a gather."""

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.numerics.arrays import take
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
