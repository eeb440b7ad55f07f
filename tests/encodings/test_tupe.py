"""TUPE against §3 of arXiv 2006.15595, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from pe_jax.encodings import buckets, t5, tupe
from pe_jax.encodings.terms import TokenProduct, select
from tests.encodings.common import DIMS, average, check_attention, float64, random_params, row

ROWS = 14


def bias(encoding, params, q_pos, k_pos):
    """The product of the numbers of queries and keys: [H, T, S]."""
    (term,) = select(encoding.terms(params, DIMS), TokenProduct)
    states = (jnp.swapaxes(term.state(None, places), 0, 1)[None] for places in (q_pos, k_pos))
    return term.scores(None, None, tuple(states))[0]


def test_positions_outside_the_table_are_nan_also_in_the_rows_and_columns_that_are_reset():
    encoding = pe_jax.make("tupe", length=ROWS)
    params = random_params(encoding)
    run = jax.jit(lambda i, j: bias(encoding, params, i, j))
    places = np.array([0, 3, ROWS, -1])
    found = np.isnan(run(places, places))
    bad = (places < 0) | (places >= ROWS)
    np.testing.assert_array_equal(found, np.broadcast_to(bad[:, None] | bad, found.shape))
    with pytest.raises(ValueError, match=f"{ROWS} is outside the learned table of length {ROWS}"):
        bias(encoding, params, places[2:3], places[:1])


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
    want = [naive.distances.t5(d, 32, 128, True) for d in distance.tolist()]
    np.testing.assert_array_equal(ours, want)
    with pytest.raises(ValueError, match="Sum of TUPE and T5: 2 terms set a scale"):
        pe_jax.parse("tupe+t5")[0].check(DIMS)
    (encoding,) = pe_jax.parse(TUPE_R)
    params = random_params(encoding)
    own, relative = float64(params.shared)
    bias = naive.bias.t5_bias(row().distance, relative["table"], 128, True)
    scores = naive.relative.tupe(row(), **own) + bias
    check_attention(encoding, params, want=average(scores, False))
