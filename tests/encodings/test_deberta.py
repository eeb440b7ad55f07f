"""DeBERTa against eq. 3 and 4 of arXiv 2006.03654, and v2's log buckets, in high precision."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import deberta
from pe_jax.naive import distances as naive
from tests.encodings.common import random_params

SETTINGS = [(None, 4), (4, 6), (4, 9), (128, 512), (256, 512)]


@pytest.mark.parametrize("buckets, max_distance", SETTINGS)
def test_rows_are_the_papers(buckets, max_distance):
    distance = np.arange(-700, 701)
    ours = deberta.bucket(distance, buckets, max_distance)
    want = [naive.deberta(d, buckets, max_distance) for d in distance.tolist()]
    np.testing.assert_array_equal(ours, want)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(2, 600), st.lists(st.integers(1, 900), min_size=1))
def test_thresholds_of_any_number_of_buckets_and_any_reach(mid, beyond, distances):
    starts = deberta.thresholds(2 * mid, reach := mid + beyond)
    assert starts.shape == (mid,)
    for d in [mid + 1, *(mid + n for n in distances), *starts.tolist(), *(starts - 1).tolist()]:
        ours = d if d <= mid else mid + (d >= starts).sum()
        assert min(ours, 2 * mid) == min(naive.deberta_log(d, 2 * mid, reach), 2 * mid)


@pytest.mark.parametrize("kind, weight", [("c2p", "w_k"), ("p2c", "w_q")])
def test_one_of_the_terms_alone_has_one_weight(kind, weight):
    encoding = pe_jax.make("deberta", buckets=4, max_distance=6, pos_att_type=[kind])
    assert set(random_params(encoding).layer) == {weight}
