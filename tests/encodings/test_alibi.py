"""ALiBi against §3 of arXiv 2108.12409 and the authors' rule for other head counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import alibi
from pe_jax.naive import products, softmax
from pe_jax.naive.bias import alibi_slopes
from tests import util
from tests.encodings.common import LENGTH, NONE, check_attention, row


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_of_any_number_of_heads(heads):
    np.testing.assert_allclose(alibi.slopes(heads), alibi_slopes(heads), rtol=1e-6)


def test_eight_heads_have_the_papers_slopes():
    np.testing.assert_array_equal(alibi.slopes(8), [2.0**-h for h in range(1, 9)])


def test_the_penalty_is_added_after_the_scaling():
    check_attention(pe_jax.make("alibi"), NONE)


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("bias_max, scaled", [(16.0, False), (8.0, True)])
def test_mpts_largest_exponent_and_falcons_scaled_bias(heads, bias_max, scaled):
    np.testing.assert_allclose(
        alibi.slopes(heads, bias_max), alibi_slopes(heads, bias_max), rtol=1e-6
    )
    check_attention(pe_jax.make("alibi", bias_max=bias_max, scaled=scaled), NONE, True)


def test_plus_slope_times_key_is_the_same_only_under_a_causal_softmax():
    scores, slope = products(row())[0], alibi_slopes(2)[0]
    place = np.arange(LENGTH)
    ours = scores + np.asarray(alibi.bias(place[:, None] - place, 2), np.float64)[0]
    other = scores + slope * place
    np.testing.assert_allclose(softmax(ours, True), softmax(other, True), atol=1e-6)
    assert np.abs(softmax(ours, False) - softmax(other, False)).max() > 0.05


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-(2**20), 2**20), min_size=8, max_size=8))
def test_it_never_rises_with_the_distance(distances):
    near = sorted(distances, key=abs)
    bias = np.asarray(alibi.bias(np.array(near, np.int32), 6))
    assert bias.dtype == np.float32 and (np.diff(bias, axis=-1) <= 0).all()
    np.testing.assert_array_equal(bias, alibi.bias(-np.array(near, np.int32), 6))


def test_float_positions_give_the_bias_between_the_integers():
    np.testing.assert_allclose(alibi.bias(np.float32([0.5, -1.5]), 8)[0], [-0.25, -0.75])


def test_tiles_of_a_scaled_penalty_equal_the_dense_matrix():
    case = util.Case("alibi", pe_jax.make("alibi", bias_max=4.0, scaled=True))
    util.assert_close(util.run(case, "tiled"), util.run(case, "dense"))
