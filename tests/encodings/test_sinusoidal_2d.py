"""Sinusoids of row and column against MAE's description, in float64."""

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import sinusoidal_2d
from tests.encodings.common import NONE, WIDTH


def test_several_axes_share_the_channels():
    places = np.array([[3, 1, 2]])
    ours = sinusoidal_2d.sinusoid_2d(places, 12)[0]
    for axis, p in enumerate([3, 1, 2]):
        want = [np.sin(p), np.sin(p / 100), np.cos(p), np.cos(p / 100)]
        np.testing.assert_allclose(ours[4 * axis : 4 * axis + 4], want, atol=1e-6)
    with pytest.raises(ValueError, match="dim=10: pass a multiple of 4"):
        sinusoidal_2d.sinusoid_2d(places[:, :2], 10)
    with pytest.raises(ValueError, match=r"positions has shape \[1, 3\]; Sinusoidal2D has 2 axes"):
        pe_jax.make("sinusoidal_2d").embed(NONE, np.ones((1, WIDTH)), places)
