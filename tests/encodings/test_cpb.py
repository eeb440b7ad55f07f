"""The continuous position bias against eq. 3–4 of arXiv 2111.09883."""

import math

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import cpb
from tests import util
from tests.encodings.common import HEAD_DIM, LENGTH, check_attention, random_params, softmax

PLACES = np.asarray(pos.grid(3, 4))[:LENGTH]


def coordinate(distance, window):
    """±log2(1 + 8|d|/(window - 1)) / 3."""
    return math.copysign(math.log2(1 + 8 * abs(distance) / (window - 1)) / 3, distance)


@pytest.mark.parametrize("causal", [True, False])
def test_scores_get_the_networks_answer_at_the_log_spaced_distance(causal):
    encoding = pe_jax.make("cpb", height=3, width=4, hidden=5)
    params = random_params(encoding)
    w1, b1, w2 = (np.asarray(params.layer[name], np.float64) for name in ("w1", "b1", "w2"))

    def output(q, k, v, head):
        scores = q @ k.T / math.sqrt(HEAD_DIM)
        for m, n in np.ndindex(LENGTH, LENGTH):
            d = (PLACES[m] - PLACES[n]).tolist()
            x = np.array([coordinate(d[0], 3), coordinate(d[1], 4)])
            hidden = np.maximum(x @ w1 + b1, 0)
            scores[m, n] += 16 / (1 + math.exp(-(hidden @ w2[:, head])))
        return softmax(scores, causal) @ v

    check_attention(encoding, params, output, causal, q_positions=PLACES)


def test_the_windows_edge_is_the_same_coordinate_at_any_size_and_goes_on_beyond():
    for window in (2, 8, 24):
        edge = cpb.log_spaced(np.array([[window - 1, 1 - window]]), (window, window))[0]
        np.testing.assert_allclose(edge, [math.log2(9) / 3, -math.log2(9) / 3], rtol=1e-6)
    line = np.asarray(cpb.log_spaced(np.arange(100)[:, None], (8,)))[:, 0]
    np.testing.assert_allclose(line, [coordinate(d, 8) for d in range(100)], rtol=1e-6)


def test_gradients_are_finite_at_distance_0_and_far_out():
    encoding = pe_jax.make("cpb", hidden=5)
    dims, params = pe_jax.Dims(16, 2, 2, 8), random_params(encoding)
    distance = np.array([[0, 0], [2**24 - 1, -5], [0, 3]])
    found = jax.grad(lambda p: util.distance_bias(encoding, p, distance, dims).sum())(params)
    assert all(np.isfinite(x).all() and x.any() for x in jax.tree.leaves(found))
