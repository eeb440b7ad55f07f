"""RoPE on several axes: each turns channels of its own, as in models of video."""

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import rope_nd
from tests import util
from tests.encodings.common import NONE


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_the_number_of_axes_is_that_of_the_positions(axes):
    encoding = pe_jax.make("rope_nd", axes=axes)
    assert encoding.claims.axes == axes
    x = np.random.default_rng(0).standard_normal((5, 1, 8)).astype("f")
    places = np.arange(5)[:, None] * np.ones(axes, int)
    turned = util.rotate(encoding, "k", NONE, x, places)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), 1e-5)
    with pytest.raises(ValueError, match=f"pass {axes} axes last"):
        util.rotate(encoding, "k", NONE, x, places[:, 1:])


def test_each_axis_may_have_a_base():
    ours = np.asarray(rope_nd.frequencies((4, 2, 4), (100.0, 5.0, 16.0)))
    want = [[1, 0.1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0.25]]
    np.testing.assert_allclose(ours, want, rtol=1e-6)
    spec = "rope_nd(base=(100.0,5.0,16.0),channels=(4,2,4))"
    assert pe_jax.spec(pe_jax.parse(spec)[0]).replace(" ", "") == spec
