"""M-RoPE: each frequency turns by time, row or column; a text, an image and a video together."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import mrope, rope, rope_scaling
from pe_jax.engines.decoding import cache
from tests import util
from tests.encodings.common import NONE


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_scaling_acts_on_the_frequencies_of_the_part_that_is_rotated(interleaved):
    scaling = rope_scaling.YaRN(factor=4.0, original_length=64)
    encoding = pe_jax.make("mrope", interleaved=interleaved, fraction=0.75, scaling=scaling)
    x = np.random.default_rng(0).standard_normal((9, 2, 16)).astype("f")
    ours = util.rotate(encoding, "q", NONE, x, pos.multimodal([9]))
    theta = rope.frequencies(12, 1e6, scaling)
    plain = rope.rotate(x, np.arange(9), theta, attention_factor=scaling.attention_factor)
    np.testing.assert_array_equal(ours, plain)


def test_a_scaling_waits_for_the_length():
    encoding = pe_jax.make("mrope", scaling=rope_scaling.DynamicNTK(2.0, 64))
    assert encoding.valid_length() == 0
    assert encoding.at_length(99).valid_length() == 99
    with pytest.raises(ValueError, match="sections"):
        pe_jax.make("mrope", sections=(1, 1, 2), fraction=0.5).check(pe_jax.Dims(12, 1, 1, 12))


def test_sections_are_consecutive_in_qwen2_and_take_turns_in_qwen3():
    np.testing.assert_array_equal(mrope.axis_of((1, 2, 3)), [0, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(mrope.axis_of((4, 2, 2), True), [0, 1, 2, 0, 1, 2, 0, 0])
    np.testing.assert_array_equal(mrope.axis_of((4, 3, 1), True), [0, 1, 2, 0, 1, 0, 0, 1])
    with pytest.raises(ValueError, match="sections=.1, 3, 3.: interleaved"):
        mrope.axis_of((1, 3, 3), True)


def test_videorope_gives_rows_and_columns_the_first_frequencies_and_time_the_lowest():
    """The axes that the authors' loop picks for (2, 2, 2), also in Ling's test."""
    np.testing.assert_array_equal(mrope.axis_of((2, 2, 2), time_last=True), [1, 2, 1, 2, 0, 0])
    text, kind = pos.multimodal([5]), {"sections": (2, 3, 3), "layout": "interleaved"}
    x = np.random.default_rng(0).standard_normal((5, 2, 16)).astype("f")
    ours = util.rotate(pe_jax.make("mrope", time_last=True, **kind), "q", NONE, x, text)
    plain = rope.rotate(x, np.arange(5), rope.frequencies(16, 1e6), "interleaved")
    np.testing.assert_array_equal(ours, plain)
    with pytest.raises(ValueError, match="sections=.3, 3, 2.: rows and columns"):
        pe_jax.make("mrope", sections=(3, 3, 2), time_last=True)
    with pytest.raises(ValueError, match="time_last=True: pass interleaved=False"):
        pe_jax.make("mrope", interleaved=True, time_last=True)


@pytest.mark.parametrize("interleaved, sections", [(False, (16, 24, 24)), (True, (24, 20, 20))])
def test_sections_are_by_default_those_of_the_released_models(interleaved, sections):
    at_128 = pe_jax.make("mrope", interleaved=interleaved)._frequencies(128)
    want = mrope.frequencies(128, sections, 1e6, interleaved)
    np.testing.assert_array_equal(at_128, want)
    assert (np.count_nonzero(want, axis=1) == sections).all()


@pytest.mark.parametrize(
    "place", [pos.multimodal, lambda spans: pos.multimodal(spans, 0.5, centred=True)]
)
def test_a_sequence_of_text_image_and_video_decodes_as_it_is_read(place):
    dims, encoding = pe_jax.Dims(16, 2, 1, 8), pe_jax.make("mrope")
    places = place([3, (2, 3), 2, (2, 2, 2), 2])[None]
    length = places.shape[1]
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, length, h, 8)).astype("f") for h in (2, 1, 1))
    want = pe_jax.attention(q, k, v, encoding=encoding, q_positions=places, causal=True)
    shared = {"encoding": encoding, "params": NONE, "dims": dims}
    step = jax.jit(lambda past, at, *qkv: cache.extend(past, *qkv, at, **shared))
    past, at = cache.empty(encoding, 1, length, dims), 0
    for count in (9, *[1] * (length - 9)):  # text and image at once, then token by token
        part = slice(at, at := at + count)
        out, past = step(past, places[:, part], q[:, part], k[:, part], v[:, part])
        np.testing.assert_allclose(out, want[:, part], atol=2e-6)
