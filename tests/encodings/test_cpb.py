"""The continuous position bias against eq. 3–4 of arXiv 2111.09883."""

import math

import numpy as np

from pe_jax.encodings import cpb
from pe_jax.naive.bias import log_spaced


def test_the_windows_edge_is_the_same_coordinate_at_any_size_and_goes_on_beyond():
    for window in (2, 8, 24):
        edge = cpb.log_spaced(np.array([[window - 1, 1 - window]]), (window, window))[0]
        np.testing.assert_allclose(edge, [math.log2(9) / 3, -math.log2(9) / 3], rtol=1e-6)
    line = np.asarray(cpb.log_spaced(np.arange(100)[:, None], (8,)))[:, 0]
    np.testing.assert_allclose(line, log_spaced(np.arange(100), 8), rtol=1e-6)
