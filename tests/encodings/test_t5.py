"""T5's buckets against §2.1 of arXiv 1910.10683, in 50-digit decimals."""

import math

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import t5
from pe_jax.naive import distances as naive
from tests import util
from tests.encodings.common import random_params

SETTINGS = [(32, 128, False), (32, 128, True), (8, 20, True), (7, 9, False), (64, 1000, False)]


@pytest.mark.parametrize("num_buckets, max_distance, bidirectional", SETTINGS)
def test_buckets_are_the_papers(num_buckets, max_distance, bidirectional):
    distance = np.arange(-1100, 1101)
    ours = t5.bucket(distance, num_buckets, max_distance, bidirectional)
    want = [naive.t5(d, num_buckets, max_distance, bidirectional) for d in distance.tolist()]
    np.testing.assert_array_equal(ours, want)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 65), st.integers(1, 2000), st.lists(st.integers(0, 5000), min_size=1))
def test_thresholds_of_any_number_of_buckets_and_any_reach(buckets, beyond, distances):
    starts = t5.thresholds(buckets, reach := buckets // 2 + beyond)
    assert starts.shape == (buckets - 1,)
    for d in [*distances, reach - 1, reach, *starts.tolist(), *(starts - 1).tolist()]:
        assert (d >= starts).sum() == naive.t5(d, buckets, reach, False)


_traced = jax.jit(t5.bucket)


@settings(max_examples=20, deadline=None)
@given(hnp.arrays(np.int32, 16, elements=st.integers(-(2**30), 2**30)))
def test_traced_and_known_distances_agree(distance):
    np.testing.assert_array_equal(_traced(distance), t5.bucket(distance))


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.uint8])
def test_76_and_112_fall_where_a_bfloat16_logarithm_errs(dtype):
    ours = np.asarray(t5.bucket(np.array([75, 76, 77, 111, 112, 113], dtype)))
    np.testing.assert_array_equal(ours, [27, 27, 28, 30, 30, 31])  # exact thresholds: 77 and 113
    small = jnp.asarray([76, 112], jnp.bfloat16)
    wrong = 16 + (jnp.log(small / 16) / math.log(8) * 16).astype(jnp.int32)
    assert (np.asarray(wrong) != [27, 30]).all(), "the trap is gone: this test can go too"


@pytest.mark.parametrize(
    "fields, horizon",
    [
        ({}, (0, 113)),
        ({"bidirectional": True}, (-91, 91)),
        ({"num_buckets": 4, "max_distance": 3, "bidirectional": True}, None),
        ({"num_buckets": 2, "max_distance": 2}, None),
    ],
)
def test_the_horizon_is_where_the_bucket_stops_changing_on_both_sides(fields, horizon):
    encoding = pe_jax.make("t5", **fields)
    distance = np.arange(-300, 301)
    at = dict(zip(distance.tolist(), np.asarray(t5.bucket(distance, **fields)), strict=True))
    lo, hi = util.horizon(encoding)
    assert horizon in (None, (lo, hi))
    assert len({at[d] for d in at if d <= lo}) == len({at[d] for d in at if d >= hi}) == 1
    assert at[lo + 1] != at[lo] and at[hi - 1] != at[hi]


def test_each_layer_may_have_a_table_of_its_own():
    encoding = pe_jax.make("t5", num_buckets=8, max_distance=20, shared=False)
    params = random_params(encoding)
    assert not params.shared and params.layer["table"].shape[1] == 8
    gated = random_params(pe_jax.make("wavlm", num_buckets=8, max_distance=20, shared=False))
    assert not gated.shared and gated.layer["table"].shape[1] == 8
