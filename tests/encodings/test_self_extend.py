"""Self-Extend against arXiv 2401.01325."""

import numpy as np

from pe_jax.naive.rotary import grouped


def test_a_model_of_seven_positions_reads_ten():
    """(L - w)·G + w tokens for L = 7, w = 4, G = 2: no relative position reaches L."""
    found = grouped(np.arange(10), 2, 4)
    np.testing.assert_array_equal(found[9], [6, 6, 5, 5, 4, 4, 3, 2, 1, 0])
    assert found.max() == 6 and grouped(np.arange(11), 2, 4).max() == 7
