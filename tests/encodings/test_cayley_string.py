"""Cayley-STRING: RoPE in a learned orthogonal basis, in float64."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import cayley_string, rope_mixed
from tests import util
from tests.encodings.common import NONE, gradients_of_layer
from tests.util import H, T, assert_close

PLACES = np.asarray(pos.grid(3, 5))[:T]


@pytest.mark.parametrize("size", [2, 8, 64])
def test_the_basis_is_orthogonal_and_of_determinant_1(size):
    matrix = np.asarray(cayley_string.basis(5 * util.noise(size, size)), np.float64)
    assert_close(matrix @ matrix.T, np.eye(size), 1e-5)
    np.testing.assert_allclose(np.linalg.det(matrix), 1, rtol=1e-4)
    np.testing.assert_array_equal(cayley_string.basis(np.zeros((size, size), "f")), np.eye(size))


def test_only_differences_count_and_norms_are_kept():
    encoding = pe_jax.make("cayley_string")
    params, (q, k, _) = util.random_params(encoding), util.inputs()

    def turned(x, side, shift):
        return np.asarray(util.rotate(encoding, side, params, x[0], PLACES + shift))

    here, there = (
        np.einsum("tke,ske->kts", turned(q, "q", s)[:, :2], turned(k, "k", s)) for s in (0, 50)
    )
    assert_close(here, there, 5e-4)
    norms = (np.linalg.norm(x, axis=-1) for x in (turned(q, "q", 7), q[0]))
    assert_close(*norms, 2e-6)


def test_it_begins_as_rope_with_one_series_for_all_axes():
    dims = pe_jax.Dims(H * 8, H, H, 8)
    params = pe_jax.make("cayley_string", axes=1, base=1e4).init(jax.random.key(0), dims)
    x, rope = util.noise(T, H, 8), pe_jax.make("rope", layout="interleaved")
    got = util.rotate(pe_jax.make("cayley_string", axes=1), "q", params, x, np.arange(T))
    assert_close(got, util.rotate(rope, "q", NONE, x, np.arange(T)), 1e-6)
    layer = pe_jax.make("cayley_string", axes=3).init_layer(jax.random.key(0), dims)
    np.testing.assert_allclose(layer["frequencies"], [100.0 ** (-np.arange(4) / 4)] * 3, rtol=1e-6)


def test_with_free_projections_it_is_rope_mixed():
    """P x of x = W y is (P W) y: the basis can be a part of the weights."""
    skew, frequencies = util.noise(8, 8), util.noise(2, 4)
    weights, y = util.noise(8, 8, seed=3), util.noise(T, H, 8, seed=4)
    got = cayley_string.rotate(y @ weights.T, PLACES, skew, frequencies)
    merged = np.asarray(cayley_string.basis(skew)) @ weights
    assert_close(got, rope_mixed.rotate(y @ merged.T, PLACES, frequencies[:, None]), 1e-5)


def test_parameters_are_learned_alike_by_every_engine():
    grad = gradients_of_layer(pe_jax.make("cayley_string"), PLACES)["skew"]
    above = np.triu(np.ones((8, 8), bool), 1)
    assert (np.abs(grad[above]) > 1e-7).all() and not grad[~above].any()


def test_what_does_not_fit_is_refused():
    x, theta = util.noise(6, 3, 8), np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match="x has 8 channels per head"):
        cayley_string.rotate(x, PLACES[:6], np.zeros((6, 6), np.float32), theta)
    with pytest.raises(ValueError, match="pass a square matrix"):
        cayley_string.basis(np.zeros((6, 8), np.float32))
    with pytest.raises(ValueError, match="pass 3 axes last"):
        cayley_string.rotate(x, PLACES[:6], np.zeros((8, 8), "f"), np.zeros((3, 4), "f"))
    with pytest.raises(ValueError, match=r"pass \[A, F\]"):
        cayley_string.rotate(x, PLACES[:6], np.zeros((8, 8), "f"), theta[:, None])
    with pytest.raises(ValueError, match="use an even head width"):
        pe_jax.make("cayley_string").check(pe_jax.Dims(21, 3, 3, 7))
