"""RoPE on several axes: each turns channels of its own, as in models of video."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import rope, rope_nd
from pe_jax.encodings.rope_scaling import (
    NTK,
    ClippedRoPE,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    RIFLEx,
    YaRN,
)
from tests import util
from tests.encodings.common import NONE
from tests.faults.encoding_calls import refused


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


@pytest.mark.parametrize(
    "channels, base, trained, intrinsic, period",
    [
        ((16, 56, 56), 256.0, 33, 4, 50),
        ((16, 24, 24), 1e4, 13, 2, 20),
        ((44, 42, 42), 1e4, 21, 6, 51),
    ],
)
def test_riflex_slows_one_frequency_of_time_alone(channels, base, trained, intrinsic, period):
    """HunyuanVideo, CogVideoX and Wan 2.1, with the k and N_k that are published for them."""
    want = [[base ** (-2 * i / n) for i in range(n // 2)] for n in channels]
    assert round(2 * np.pi / want[0][intrinsic - 1]) == period
    want[0][intrinsic - 1] = 0.9 * 2 * np.pi / (3 * trained)
    spec = f"riflex(factor=3,original_length={trained},intrinsic={intrinsic})"
    spec = f"rope_nd(base={base},channels={channels},scaling=({spec}, None, None))"
    (video,) = pe_jax.parse(spec)
    assert pe_jax.parse(pe_jax.spec(video)) == (video,)
    ours = np.asarray(rope_nd.frequencies(channels, base, scaling=video.scaling))
    np.testing.assert_allclose(ours[ours > 0], np.concatenate(want), rtol=1e-6)
    plain = np.asarray(rope_nd.frequencies(channels, base))
    assert np.argwhere(ours != plain).tolist() == [[0, intrinsic - 1]]


@pytest.mark.parametrize(
    "scaling",
    [
        Linear(3.0),
        NTK(2.5),
        DynamicNTK(2.0, 8, length=24),
        YaRN(4.0, 16),
        Llama3(8.0, original_length=32),
        LongRoPE([1.0] * 4, [1.0, 2, 3, 4], 8, length=9, factor=4.0),
        Proportional(0.5),
        ClippedRoPE(2),
        RIFLEx(2.0, 9, repetition=20),
    ],
    ids=lambda scaling: type(scaling).__name__,
)
def test_an_axis_turns_as_rope_with_its_scaling_does(scaling):
    """On its own channels, whose number and base differ from those of the others."""
    bases = (50.0, 1e3)
    encoding = pe_jax.make(
        "rope_2d", base=50.0, channels=(8, 6), layout="interleaved", scaling=(scaling, None)
    )
    x = util.noise(1, 12, 2, 14)[0]
    places = np.arange(24).reshape(12, 2) % 11
    alone = [
        pe_jax.make("rope", base=50.0, layout="interleaved", scaling=own) for own in (scaling, None)
    ]
    both = (x[..., :8], places[:, 0]), (x[..., 8:], places[:, 1])
    want = [util.rotate(e, "q", NONE, *of_axis) for e, of_axis in zip(alone, both, strict=True)]
    ours = util.rotate(encoding, "q", NONE, x, places)
    np.testing.assert_allclose(ours, np.concatenate(want, axis=-1), atol=2e-6)
    for_all = rope_nd.frequencies((8, 8), bases, scaling=scaling)
    each = rope_nd.frequencies((8, 8), bases, scaling=[scaling, scaling])
    np.testing.assert_array_equal(for_all, each)
    dealt = np.asarray(rope_nd.frequencies((4, 4), 50.0, "alternating", scaling=scaling))
    np.testing.assert_array_equal(dealt.sum(0)[[0, 2, 1, 3]], rope.frequencies(8, 50.0, scaling))


@pytest.mark.parametrize("same", [Linear(1.0), NTK(1.0), YaRN(1.0, 9), Llama3(1.0)])
@pytest.mark.parametrize("name", ["rope_2d", "rope_mixed"])
def test_a_scaling_by_one_changes_nothing(name, same):
    plain, scaled = (pe_jax.make(name, scaling=s) for s in (None, same))
    params = util.random_params(plain)
    x, places = util.noise(1, 6, util.K, 8)[0], np.arange(12).reshape(6, 2)
    want = util.rotate(plain, "k", params, x, places)
    np.testing.assert_allclose(util.rotate(scaled, "k", params, x, places), want, atol=1e-5)


@pytest.mark.parametrize("time", [1.0, 0.5, 0.0])
def test_dype_scales_by_the_time_of_denoising_in_one_program(time):
    """FLUX at twice its rows: the base times (2^(d/(d-2)))^(2t²), as in its authors' code."""
    channels, traces = (16, 56, 56), []

    @jax.jit
    def step(x, places, theta):
        traces.append(theta.shape)
        return rope.rotate(x, places, theta, "interleaved")

    for t in (time, 0.7):
        ntk = NTK(2.0 ** (2 * t**2))
        theta = rope_nd.frequencies(channels, scaling=(None, ntk, None))
        base = 1e4 * 2 ** (56 / 54 * 2 * t**2)
        np.testing.assert_allclose(theta[1, 8:36], base ** (-np.arange(28) / 28), rtol=1e-6)
        np.testing.assert_array_equal(theta[::2], rope_nd.frequencies(channels)[::2])
        step(np.ones((3, 1, 128), "f"), np.ones((3, 3), int), theta)
    assert len(traces) == 1


SCALED = [
    ({"scaling": "yarn"}, "scaling='yarn': pass one scaling of rope_scaling for all axes"),
    ({"scaling": (Linear(2.0), None)}, "or one or None for each of 3"),
    ({"scaling": (DynamicNTK(2.0, 8), None, None)}, "length=None): it depends on the length"),
    ({"scaling": Linear(2.0), "normalized": True}, "normalized positions do not grow"),
    ({"scaling": (Linear(2.0), None, None), "spectrum": "alternating"}, "one scaling for all axes"),
]


@pytest.mark.parametrize("fields, words", SCALED)
def test_scalings_that_do_not_fit_the_axes_are_refused(fields, words):
    refused(lambda: pe_jax.make("rope_nd", **fields), words)
    refused(lambda: rope_nd.frequencies((4, 4, 4), **fields), words)


def test_a_scaling_that_does_not_fit_its_channels_says_how_many_they_are():
    video = pe_jax.make("rope_nd", channels=(4, 2, 2), scaling=(None, NTK(2.0), None))
    refused(lambda: video.check(util.DIMS), "scaling of 2 channels", "at least 4")


def test_positions_beyond_the_length_of_their_axis_are_refused():
    """As of RoPE; other axes, and padding, may be anywhere."""
    video = pe_jax.make("rope_nd", channels=(4, 2, 2), scaling=(DynamicNTK(2.0, 8, 16), None, None))
    x = util.noise(3, 4, 8)
    pe_jax.rotate(video, x, x, np.int32([[15, 99, 0], [0, 0, 99], [2**30] * 3]))
    far = np.int32([[16, 0, 0]] * 3)
    refused(lambda: pe_jax.rotate(video, x, x, far), "positions=16: the scaling of axis 0 is set")
