"""ALiBi against §3 of arXiv 2108.12409 and the authors' rule for other head counts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import alibi
from tests.encodings.common import HEAD_DIM, LENGTH, NONE, check_attention, qkv, softmax


def paper_slopes(n):
    """A geometric sequence that starts at 2^(-8/n) with that ratio, for n a power of two; else
    those of the lower power, then the first, third, fifth … of twice that power."""
    if math.log2(n).is_integer():
        return [(2 ** (-8 / n)) ** h for h in range(1, n + 1)]
    lower = 2 ** math.floor(math.log2(n))
    return paper_slopes(lower) + paper_slopes(2 * lower)[0::2][: n - lower]


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_of_any_number_of_heads(heads):
    np.testing.assert_allclose(alibi.slopes(heads), paper_slopes(heads), rtol=1e-6)


def test_eight_heads_have_the_papers_slopes():
    np.testing.assert_array_equal(alibi.slopes(8), [2.0**-h for h in range(1, 9)])


@pytest.mark.parametrize("causal", [True, False])
def test_the_penalty_is_added_after_the_scaling(causal):
    def output(q, k, v, head):
        penalty = [[abs(i - j) for j in range(LENGTH)] for i in range(LENGTH)]
        slope = paper_slopes(2)[head]
        return softmax(q @ k.T / math.sqrt(HEAD_DIM) - slope * np.array(penalty), causal) @ v

    check_attention(pe_jax.make("alibi"), NONE, output, causal)


def test_plus_slope_times_key_is_the_same_only_under_a_causal_softmax():
    q, k, _ = (x[:, 0].astype(np.float64) for x in qkv())
    scores, slope = q @ k.T / math.sqrt(HEAD_DIM), paper_slopes(2)[0]
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
