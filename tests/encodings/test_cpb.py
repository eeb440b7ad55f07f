"""The continuous position bias against eq. 3–4 of arXiv 2111.09883."""

import math

import jax
import numpy as np

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import cpb
from pe_jax.naive.bias import log_spaced
from tests import util
from tests.encodings.common import LENGTH, check_attention, random_params

PLACES = np.asarray(pos.grid(3, 4))[:LENGTH]


def test_scores_get_the_networks_answer_at_the_log_spaced_distance():
    encoding = pe_jax.make("cpb", height=3, width=4, hidden=5)
    check_attention(encoding, random_params(encoding), q_positions=PLACES)


def test_the_windows_edge_is_the_same_coordinate_at_any_size_and_goes_on_beyond():
    for window in (2, 8, 24):
        edge = cpb.log_spaced(np.array([[window - 1, 1 - window]]), (window, window))[0]
        np.testing.assert_allclose(edge, [math.log2(9) / 3, -math.log2(9) / 3], rtol=1e-6)
    line = np.asarray(cpb.log_spaced(np.arange(100)[:, None], (8,)))[:, 0]
    np.testing.assert_allclose(line, log_spaced(np.arange(100), 8), rtol=1e-6)


def test_gradients_are_finite_at_distance_0_and_far_out():
    encoding = pe_jax.make("cpb", hidden=5)
    dims, params = pe_jax.Dims(16, 2, 2, 8), random_params(encoding)
    distance = np.array([[0, 0], [2**24 - 1, -5], [0, 3]])
    found = jax.grad(lambda p: util.distance_bias(encoding, p, distance, dims).sum())(params)
    assert all(np.isfinite(x).all() and x.any() for x in jax.tree.leaves(found))
