"""Axial RoPE: rows and columns turn channels of their own, in float64."""

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import rope, rope_2d
from tests import util
from tests.encodings.common import NONE


def test_alternating_deals_one_series_to_rows_and_columns_in_turn():
    ours = np.asarray(rope_2d.frequencies((4, 4), 1e4, "alternating"))
    whole = 1e4 ** (-np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(ours, [[*whole[::2], 0, 0], [0, 0, *whole[1::2]]], rtol=1e-6)
    shared = np.asarray(rope_2d.frequencies((4, 4)))
    np.testing.assert_allclose(shared, [[1, 0.01, 0, 0], [0, 0, 1, 0.01]], rtol=1e-6)


@pytest.mark.parametrize("layout", rope.LAYOUTS)
def test_on_one_row_it_is_rope_of_the_columns_and_other_channels_pass(layout):
    x = np.random.default_rng(0).standard_normal((5, 2, 16)).astype("f")
    encoding = pe_jax.make("rope_2d", channels=(4, 8), layout=layout)
    along = np.stack([np.zeros(5, int), np.arange(5)], axis=-1)
    ours = np.asarray(util.rotate(encoding, "k", NONE, x, along))
    pairs = {"half": [2, 3, 4, 5, 8, 9, 10, 11], "interleaved": range(4, 12)}[layout]
    narrow = rope.rotate(x[..., list(pairs)], np.arange(5), rope.frequencies(8), layout)
    np.testing.assert_array_equal(ours[..., list(pairs)], narrow)
    rest = [c for c in range(16) if c not in pairs]
    np.testing.assert_array_equal(ours[..., rest], x[..., rest])


def test_positions_of_another_number_of_axes_are_refused():
    x = np.ones((5, 1, 8), np.float32)
    for places in (np.arange(5), np.zeros((5, 3), int)):
        with pytest.raises(ValueError, match="positions has shape .*; pass 2 axes last"):
            rope.rotate(x, places, rope_2d.frequencies((4, 4)))
