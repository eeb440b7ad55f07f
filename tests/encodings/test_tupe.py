"""TUPE against §3 of arXiv 2006.15595, in float64."""

import math

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import buckets, t5, tupe
from tests.encodings.common import DIMS, HEAD_DIM, LENGTH, check_attention, random_params, softmax
from tests.encodings.test_t5 import paper_bucket

ROWS = 14


def paper(own, i, j, head, with_reset):
    """(p_i U_Q)(p_j U_K)ᵀ/√(2d), reset by θ₁ where i is [CLS] and by θ₂ where j is."""
    if with_reset and i == 0:
        return float(own["first"][head])
    if with_reset and j == 0:
        return float(own["to_first"][head])
    p, u_q, u_k = (np.asarray(own[n], np.float64) for n in ("table", "u_q", "u_k"))
    return (p[i] @ u_q[:, head]) @ (p[j] @ u_k[:, head]) / math.sqrt(2 * HEAD_DIM)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_scores_are_the_papers(reset, causal):
    encoding = pe_jax.make("tupe", length=ROWS, reset=reset)
    params = random_params(encoding)
    assert not params.layer  # one for all layers

    def output(q, k, v, head):
        scores = q @ k.T / math.sqrt(2 * HEAD_DIM)  # content, too, by sqrt(2E)
        for i in range(LENGTH):
            for j in range(LENGTH):
                scores[i, j] += paper(params.shared, i, j, head, reset)
        return softmax(scores, causal) @ v

    check_attention(encoding, params, output, causal)


def test_one_query_far_down_gives_what_all_of_them_give():
    """The product of four is taken in another order then."""
    encoding = pe_jax.make("tupe", length=64)
    params, places = random_params(encoding), np.arange(64)
    whole = encoding.bias(params, places, places, DIMS)
    one = encoding.bias(params, places[-1:], places, DIMS)
    np.testing.assert_allclose(one, whole[:, -1:], atol=2e-5)


def test_positions_outside_the_table_are_nan_also_in_the_rows_and_columns_that_are_reset():
    encoding = pe_jax.make("tupe", length=ROWS)
    params = random_params(encoding)
    run = jax.jit(lambda i, j: encoding.bias(params, i, j, DIMS))
    places = np.array([0, 3, ROWS, -1])
    found = np.isnan(run(places, places))
    bad = (places < 0) | (places >= ROWS)
    np.testing.assert_array_equal(found, np.broadcast_to(bad[:, None] | bad, found.shape))
    with pytest.raises(ValueError, match=f"{ROWS} is outside the learned table of length {ROWS}"):
        encoding.bias(params, places[2:3], places[:1], DIMS)


@pytest.mark.parametrize("reset", [True, False])
def test_the_factors_of_queries_and_keys_are_those_of_the_bias(reset):
    encoding = pe_jax.make("tupe", length=ROWS, reset=reset)
    params, places = random_params(encoding), np.array([0, 3, ROWS, 1, -1, 0])

    @jax.jit
    def both(i, j):
        left, right = encoding.factors(params, i, j, DIMS)
        return left @ right.swapaxes(-1, -2), encoding.bias(params, i, j, DIMS)

    np.testing.assert_allclose(*both(places, places[::-1]), atol=1e-5)  # NaN where it is


def test_words_and_positions_begin_at_the_same_size():
    dims = pe_jax.Dims(64, 4, 4, 16)
    own = pe_jax.make("tupe", length=400).init_shared(jax.random.key(0), dims)
    table = own["table"]
    bias = tupe.correlation(table, table, own["u_q"], own["u_k"])
    np.testing.assert_allclose(np.std(bias), 0.5**0.5, atol=0.05)  # q·k/sqrt(2E), q, k ~ N(0, 1)
    assert not own["first"].any() and not own["to_first"].any()


EDGES = tuple((t5.thresholds(16, 128) - 1).tolist())
TUPE_R = f"tupe(length={ROWS})+buckets(edges={EDGES}, directional=True)"


def test_tupe_r_is_a_sum_with_the_buckets_of_t5():
    distance = np.arange(-300, 301)
    ours = buckets.bucket(distance, EDGES, directional=True)
    np.testing.assert_array_equal(ours, [paper_bucket(d, 32, 128, True) for d in distance.tolist()])
    with pytest.raises(ValueError, match="TUPE and T5 each set a scale"):
        pe_jax.parse("tupe+t5")
    (encoding,) = pe_jax.parse(TUPE_R)
    params = random_params(encoding)
    relative = np.asarray(params.shared[1]["table"], np.float64)

    def output(q, k, v, head):
        scores = q @ k.T / math.sqrt(2 * HEAD_DIM)
        for i in range(LENGTH):
            for j in range(LENGTH):
                scores[i, j] += paper(params.shared[0], i, j, head, True)
                scores[i, j] += relative[head, paper_bucket(i - j, 32, 128, True)]
        return softmax(scores, False) @ v

    check_attention(encoding, params, output, False)
