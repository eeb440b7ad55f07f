"""RoPE on several axes: each turns channels of its own, as in models of video."""

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import rope_nd
from tests import util
from tests.encodings.common import NONE


def test_a_video_is_turned_as_wan_turns_it():
    """Complex numbers c of a head's neighbouring channels, c - 2(c/3), c/3 and c/3 of the axes."""
    frames, height, width, head_dim = 3, 2, 4, 16
    x = np.random.default_rng(0).standard_normal((frames * height * width, 2, head_dim))
    half = head_dim // 2
    counts = (half - 2 * (half // 3), half // 3, half // 3)
    waves = []
    for axis, (count, size) in enumerate(zip(counts, (frames, height, width), strict=True)):
        theta = 1 / 10000 ** (np.arange(0, 2 * count, 2) / (2 * count))
        shape = np.insert(np.ones(2, int), axis, size)
        wave = np.exp(1j * np.outer(np.arange(size), theta)).reshape(*shape, count)
        waves.append(np.broadcast_to(wave, (frames, height, width, count)))
    turn = np.concatenate(waves, -1).reshape(-1, 1, half)
    theirs = (x.reshape(*x.shape[:-1], half, 2) @ [1, 1j]) * turn
    encoding = pe_jax.make("rope_nd", channels=[2 * n for n in counts], layout="interleaved")
    places = pos.multimodal([(frames, height, width)])
    ours = np.asarray(util.rotate(encoding, "q", NONE, jnp.asarray(x, jnp.float32), places))
    np.testing.assert_allclose(ours[..., 0::2] + 1j * ours[..., 1::2], theirs, atol=1e-5)


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


def test_two_axes_are_rope_2d_and_what_is_left_of_a_head_passes():
    x = np.random.default_rng(0).standard_normal((6, 2, 14)).astype("f")
    for fields in ({}, {"normalized": True}, {"spectrum": "alternating", "layout": "interleaved"}):
        two, many = (pe_jax.make("rope_2d", **fields), pe_jax.make("rope_nd", axes=2, **fields))
        turned = [util.rotate(e, "q", NONE, x[..., :12], pos.grid(2, 3)) for e in (two, many)]
        np.testing.assert_array_equal(*turned)
        wider = util.rotate(many, "q", NONE, x, pos.grid(2, 3))
        np.testing.assert_array_equal(wider[..., 12:], x[..., 12:])


def test_each_axis_may_have_a_base():
    ours = np.asarray(rope_nd.frequencies((4, 2, 4), (100.0, 5.0, 16.0)))
    want = [[1, 0.1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0.25]]
    np.testing.assert_allclose(ours, want, rtol=1e-6)
    spec = "rope_nd(base=(100.0,5.0,16.0),channels=(4,2,4))"
    assert pe_jax.spec(pe_jax.parse(spec)[0]).replace(" ", "") == spec
