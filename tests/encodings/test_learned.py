"""Learned positions: a table and nothing else, and never a clamped or wrapped index."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import learned

LENGTH = 5
TABLE = jnp.asarray(np.random.default_rng(0).standard_normal((LENGTH, 3), np.float32))
_traced = jax.jit(learned.lookup)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-7, 7), min_size=4, max_size=4))
def test_outside_the_table_is_an_error_when_known_and_nan_when_traced(positions):
    positions = np.array(positions, np.int32)
    inside = (positions >= 0) & (positions < LENGTH)
    rows = np.asarray(_traced(TABLE, positions))
    assert np.isnan(rows[~inside]).all()
    np.testing.assert_array_equal(rows[inside], np.asarray(TABLE)[positions[inside]])
    if inside.all():
        np.testing.assert_array_equal(learned.lookup(TABLE, positions), rows)
    else:
        with pytest.raises(ValueError, match="outside the learned table of length 5; keep 0 <= "):
            learned.lookup(TABLE, positions)


@pytest.mark.parametrize("worst", [-1, LENGTH])
def test_the_error_names_the_position_and_attentions_embed_raises_it(worst):
    encoding = pe_jax.make("learned", length=LENGTH)
    params = pe_jax.Params({"table": TABLE}, {})
    with pytest.raises(ValueError, match=f"positions: {worst} is outside"):
        encoding.embed(params, jnp.zeros((3, 3)), np.array([0, worst, 1]))
    assert encoding.limit() == LENGTH


def test_the_gradient_reaches_the_rows_that_were_used_and_stays_finite():
    def loss(table, positions):
        rows = learned.lookup(table, positions)
        return jnp.where(jnp.isnan(rows), 0, rows).sum()

    gradient = jax.jit(jax.grad(loss))(TABLE, jnp.array([1, 1, 3, -1, 9]))
    np.testing.assert_array_equal(gradient[:, 0], [0, 2, 0, 1, 0])


def test_embed_keeps_the_dtype_of_the_activations():
    encoding, params = pe_jax.make("learned", length=LENGTH), pe_jax.Params({"table": TABLE}, {})
    x = jnp.ones((2, 3), jnp.bfloat16)
    out = encoding.embed(params, x, np.array([4, 0], np.uint8))
    np.testing.assert_array_equal(out, x + TABLE[np.array([4, 0])].astype(jnp.bfloat16))
