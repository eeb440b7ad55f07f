"""Self-Extend against arXiv 2401.01325."""

import numpy as np

import pe_jax
from pe_jax.naive.rotary import grouped
from tests.encodings.common import LENGTH, NONE, attend, qkv


def test_a_model_of_seven_positions_reads_ten():
    """(L - w)·G + w tokens for L = 7, w = 4, G = 2: no relative position reaches L."""
    found = grouped(np.arange(10), 2, 4)
    np.testing.assert_array_equal(found[9], [6, 6, 5, 5, 4, 4, 3, 2, 1, 0])
    assert found.max() == 6 and grouped(np.arange(11), 2, 4).max() == 7


def test_groups_of_one_are_rope():
    q, k, v = qkv()
    one, rope = pe_jax.make("self_extend", group=1, window=3), pe_jax.make("rope")
    np.testing.assert_allclose(attend(q, k, v, one, NONE), attend(q, k, v, rope, NONE), atol=1e-6)


def test_only_shifts_by_whole_groups_change_nothing():
    encoding = pe_jax.make("self_extend", group=3, window=2)
    q, k, v = qkv()
    here, same, other = (
        attend(q, k, v, encoding, NONE, q_positions=np.arange(LENGTH) + shift)
        for shift in (0, 300, 301)
    )
    np.testing.assert_allclose(here, same, atol=1e-4)
    assert np.abs(here - other).max() > 1e-3
