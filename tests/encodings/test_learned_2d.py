"""Learned vectors of row and column, against App. D.4 of arXiv 2010.11929."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from pe_jax import positions as pos
from pe_jax.encodings import learned_2d
from tests.encodings.common import WIDTH, random_params


@pytest.mark.parametrize("combine", learned_2d.COMBINE)
def test_learned_vectors_are_those_of_row_and_column(combine):
    encoding = pe_jax.make("learned_2d", height=3, width=5, combine=combine)
    params = random_params(encoding)
    x = jnp.ones((15, WIDTH), jnp.bfloat16)
    out = encoding.embed(params, x, pos.grid(3, 5))
    assert out.dtype == x.dtype and encoding.limit() == 3
    both = naive.inputs("learned_2d", pos.grid(3, 5), WIDTH, params.shared, vars(encoding))
    np.testing.assert_array_equal(out, x + jnp.asarray(both, jnp.bfloat16))


@pytest.mark.parametrize("combine", learned_2d.COMBINE)
def test_resized_positions_read_the_table_as_resized_to_the_image(combine):
    encoding = pe_jax.make("learned_2d", height=3, width=4, combine=combine)
    params = random_params(encoding)
    zeros = lambda n: jnp.zeros((n, WIDTH))  # noqa: E731
    table = encoding.embed(params, zeros(12), pos.grid(3, 4)).reshape(3, 4, WIDTH)
    want = jax.image.resize(table, (6, 7, WIDTH), "bilinear").reshape(42, WIDTH)
    np.testing.assert_allclose(
        encoding.embed(params, zeros(42), pos.resized(6, 7, (3, 4))), want, atol=1e-6
    )


@pytest.mark.parametrize("place", [[3, 0], [0, 5], [-1, 0], [2.5, 0], [0, -0.25]])
def test_outside_either_table_is_an_error_when_known_and_nan_when_traced(place):
    encoding = pe_jax.make("learned_2d", height=3, width=5)
    params, x = random_params(encoding), jnp.zeros((2, WIDTH))
    places = np.array([[1, 1], place], np.float32 if np.any(np.mod(place, 1)) else np.int32)
    with pytest.raises(ValueError, match="outside the learned table of length [35]; keep 0 <= "):
        encoding.embed(params, x, places)
    traced = np.asarray(jax.jit(encoding.embed)(params, x, places))
    assert np.isfinite(traced[0]).all() and np.isnan(traced[1]).any()


def test_the_gradient_between_two_rows_is_shared_by_both():
    gradient = jax.grad(lambda t: learned_2d.between(t, np.float32([1.25])).sum())(
        jnp.zeros((4, 1))
    )
    np.testing.assert_allclose(gradient[:, 0], [0, 0.75, 0.25, 0])
