"""ALiBi against §3 of arXiv 2108.12409 and the authors' rule for other head counts."""

import numpy as np
import pytest

from pe_jax.encodings import alibi
from pe_jax.naive import products, softmax
from pe_jax.naive.bias import alibi_slopes
from tests.encodings.common import LENGTH, row


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_of_any_number_of_heads(heads):
    np.testing.assert_allclose(alibi.slopes(heads), alibi_slopes(heads), rtol=1e-6)


def test_eight_heads_have_the_papers_slopes():
    np.testing.assert_array_equal(alibi.slopes(8), [2.0**-h for h in range(1, 9)])


@pytest.mark.parametrize("heads", [2, 6])
def test_mpts_largest_exponent(heads):
    np.testing.assert_allclose(alibi.slopes(heads, 16.0), alibi_slopes(heads, 16.0), rtol=1e-6)


def test_plus_slope_times_key_is_the_same_only_under_a_causal_softmax():
    scores, slope = products(row())[0], alibi_slopes(2)[0]
    place = np.arange(LENGTH)
    ours = scores + np.asarray(alibi.bias(place[:, None] - place, 2), np.float64)[0]
    other = scores + slope * place
    np.testing.assert_allclose(softmax(ours, True), softmax(other, True), atol=1e-6)
    assert np.abs(softmax(ours, False) - softmax(other, False)).max() > 0.05


def test_float_positions_give_the_bias_between_the_integers():
    np.testing.assert_allclose(alibi.bias(np.float32([0.5, -1.5]), 8)[0], [-0.25, -0.75])
