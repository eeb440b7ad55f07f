"""A learned vector per patch, and its table resized; the oracles hold `resize` to PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from pe_jax import positions as pos
from pe_jax.encodings import learned_grid
from pe_jax.numerics import resampling
from tests.encodings.common import WIDTH, random_params

SMALL = pe_jax.make("learned_grid", height=3, width=5, prefix=2)


def test_vectors_are_those_of_the_patch_and_of_tokens_in_front():
    params = random_params(SMALL)
    places = pos.grid(3, 5, prefix=2, numbered=True)
    x = jnp.ones((17, WIDTH), jnp.bfloat16)
    out = SMALL.embed(params, x, places)
    want = naive.inputs("learned_grid", places, WIDTH, params.shared, vars(SMALL))
    assert out.dtype == x.dtype and SMALL.limit() == 3
    np.testing.assert_array_equal(out, x + jnp.asarray(want, jnp.bfloat16))
    flat = np.concatenate([params.shared["front"], params.shared["table"].reshape(-1, WIDTH)])
    np.testing.assert_allclose(want, flat, rtol=1e-6)


@pytest.mark.parametrize("place", [[3, 0], [0, 5], [-1, 0], [-1, -2], [-3, -3], [2, -1]])
def test_outside_is_an_error_when_known_and_nan_when_traced(place):
    params, x = random_params(SMALL), jnp.zeros((3, WIDTH))
    places = np.array([[2, 4], [-2, -2], place], np.int32)
    with pytest.raises(ValueError, match=r"positions: \[.*\] is outside the 3 × 5 .*resize"):
        SMALL.embed(params, x, places)
    traced = np.asarray(jax.jit(SMALL.embed)(params, x, places))
    np.testing.assert_array_equal(np.isnan(traced).all(1), [False, False, True])
    assert np.isfinite(traced[:2]).all()


def test_without_a_prefix_no_token_stands_in_front():
    encoding = pe_jax.make("learned_grid", height=2, width=2)
    params = random_params(encoding)
    assert params.shared.keys() == {"table"}
    with pytest.raises(ValueError, match=r"\[-1, -1\] is outside the 2 × 2 table; keep"):
        encoding.embed(params, jnp.zeros((1, WIDTH)), np.array([[-1, -1]]))


@pytest.mark.parametrize("method", learned_grid.METHODS)
@pytest.mark.parametrize("antialias", [False, True])
def test_weights_sum_to_one_are_mirrored_and_keep_a_table_of_the_same_size(method, antialias):
    for size, to in ((5, 9), (9, 4), (1, 3), (4, 1)):
        found = resampling.weights(size, to, method, antialias)
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)
        np.testing.assert_allclose(found, found[::-1, ::-1], atol=1e-12)
    np.testing.assert_allclose(resampling.weights(6, 6, method, antialias), np.eye(6), atol=1e-12)


def test_bilinear_and_antialiased_cubic_are_those_of_jax_and_plain_cubic_is_not():
    table = np.random.default_rng(0).standard_normal((6, 5, 2)).astype("f")
    for antialias in (False, True):
        want = jax.image.resize(table, (4, 9, 2), "bilinear", antialias=antialias)
        ours = learned_grid.resize(table, 4, 9, "bilinear", antialias)
        np.testing.assert_allclose(ours, want, atol=1e-6)
    want = jax.image.resize(table, (4, 9, 2), "cubic", antialias=True)
    np.testing.assert_allclose(learned_grid.resize(table, 4, 9, antialias=True), want, atol=1e-6)
    want = jax.image.resize(table, (4, 9, 2), "cubic", antialias=False)
    assert np.abs(learned_grid.resize(table, 4, 9) - want).max() > 0.05


def test_a_resized_scheme_adds_the_resized_table_and_passes_gradients_back():
    encoding = pe_jax.make("learned_grid", height=3, width=5, prefix=1, method="bilinear")
    params = random_params(encoding)
    large, resized = encoding.resized(params, 6, 4)
    assert large == pe_jax.make("learned_grid", height=6, width=4, prefix=1, method="bilinear")
    np.testing.assert_array_equal(resized.shared["front"], params.shared["front"])

    def total(params):
        scheme, own = encoding.resized(params, 6, 4)
        places = pos.grid(6, 4, prefix=1, numbered=True)
        return scheme.embed(own, jnp.zeros((25, WIDTH)), places).sum()

    gradient = jax.jit(jax.grad(total))(params).shared
    rows, columns = (resampling.weights(*n, "bilinear").sum(0) for n in ((3, 6), (5, 4)))
    np.testing.assert_allclose(gradient["table"][..., 0], np.outer(rows, columns), rtol=1e-5)
    np.testing.assert_array_equal(gradient["front"], np.ones((1, WIDTH)))


def test_what_cannot_be_resized_is_an_error():
    table = np.zeros((2, 3, 4), np.float32)
    for call, words in (
        (lambda: learned_grid.resize(table[0, 0], 2, 2), r"table=\(4,\): pass \[rows, columns"),
        (lambda: learned_grid.resize(table, 0, 2), "to=0: pass an integer of at least 1"),
        (lambda: learned_grid.resize(table, 2, 2, "cubic"), "method='cubic': choose one of"),
        (lambda: learned_grid.resize(table, 2, 2, offset=-1), "offset=-1: pass a finite number"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_a_numbered_prefix_counts_down_to_the_patches():
    places = np.asarray(pos.grid(2, 2, prefix=2, numbered=True))
    np.testing.assert_array_equal(places[:3], [[-2, -2], [-1, -1], [0, 0]])
    with pytest.raises(ValueError, match="numbered=True: pass normalized=False"):
        pos.grid(2, 2, prefix=1, normalized=True, numbered=True)
