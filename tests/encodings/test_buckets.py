"""Distances grouped by any edges against `np.digitize`; the clipped table against `np.clip`."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import buckets
from tests import util
from tests.encodings.common import random_params

distances = hnp.arrays(np.int32, 24, elements=st.integers(-40, 40) | st.integers(-(2**30), 2**30))
edges = st.lists(st.integers(0, 40), min_size=3, max_size=3, unique=True).map(sorted)


@settings(max_examples=50, deadline=None)
@given(distances, edges, st.booleans())
def test_groups_are_those_of_digitize(distance, edges, directional):
    want = np.digitize(np.abs(distance), edges, right=True)
    if directional:
        want += (len(edges) + 1) * (distance < 0)
    np.testing.assert_array_equal(buckets.bucket(distance, tuple(edges), directional), want)


def test_the_example_of_the_docstring():
    ours = np.asarray(buckets.bucket(np.array([0, 1, 2, 4, 5, 16, 17, -1, -17])))
    np.testing.assert_array_equal(ours, [0, 1, 2, 2, 3, 3, 4, 1, 4])
    right = buckets.bucket(np.array([0, -1, -17]), directional=True)
    np.testing.assert_array_equal(right, [0, 6, 9])


@settings(max_examples=30, deadline=None)
@given(distances, st.sampled_from([1, 7, 64]))
def test_clipped_counts_from_minus_clip(distance, clip):
    ours = buckets.clipped(distance, clip)
    np.testing.assert_array_equal(ours, np.clip(distance, -clip, clip) + clip)


@pytest.mark.parametrize(
    "encoding",
    [
        pe_jax.make("buckets", edges=[0]),
        pe_jax.make("buckets", edges=[0, 3, 9]),
        pe_jax.make("buckets", edges=[2, 3], directional=True),
        pe_jax.make("clipped", clip=1),
        pe_jax.make("clipped", clip=5),
    ],
    ids=str,
)
def test_the_horizon_is_where_the_bias_stops_changing_on_both_sides(encoding):
    dims, span = pe_jax.Dims(4, 1, 1, 4), range(-30, 31)
    params = random_params(encoding, dims)
    bias = np.asarray(util.distance_bias(encoding, params, np.array(span), dims))[0]
    at = dict(zip(span, bias, strict=True))
    lo, hi = util.horizon(encoding)
    assert len({at[d] for d in span if d <= lo}) == len({at[d] for d in span if d >= hi}) == 1
    assert at[lo + 1] != at[lo] and at[hi - 1] != at[hi]
