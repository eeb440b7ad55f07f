"""Positions on grids: row by row, in two conventions, resized, and of text, images and videos."""

import itertools
from fractions import Fraction

import jax
import numpy as np
import pytest

from pe_jax import positions as pos


def test_a_grid_runs_row_by_row_with_the_row_first():
    ours = pos.grid(2, 3)
    assert ours.dtype == np.int32
    np.testing.assert_array_equal(ours, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])


def test_normalized_are_the_centres_on_an_image_from_minus_1_to_1_whatever_the_size():
    ours = np.asarray(pos.grid(2, 4, normalized=True))
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours[:4, 1], [-0.75, -0.25, 0.25, 0.75])
    np.testing.assert_array_equal(ours[:, 0], [-0.5] * 4 + [0.5] * 4)
    large = np.asarray(pos.grid(16, 32, normalized=True))
    np.testing.assert_allclose(large.reshape(2, 8, 4, 8, 2).mean((1, 3)).reshape(-1, 2), ours)


@pytest.mark.parametrize("normalized", [False, True])
def test_a_prefix_stands_at_the_origin_in_front(normalized):
    ours = pos.grid(2, 2, normalized=normalized, prefix=3)
    np.testing.assert_array_equal(ours[:3], np.zeros((3, 2)))
    np.testing.assert_array_equal(ours[3:], pos.grid(2, 2, normalized=normalized))


@pytest.mark.parametrize("size, to", [((5, 7), (5, 7)), ((6, 9), (3, 5)), ((4, 4), (2, 3))])
def test_a_table_read_at_resized_positions_is_the_table_resized(size, to):
    table = np.random.default_rng(0).standard_normal(to).astype("f")
    want = jax.image.resize(table, size, "bilinear")
    at = np.asarray(pos.resized(*size, to))
    low, high = np.floor(at).astype(int), np.ceil(at).astype(int)
    r, c = (at - low).T
    got = (1 - r) * (1 - c) * table[low[:, 0], low[:, 1]] + r * c * table[high[:, 0], high[:, 1]]
    got += r * (1 - c) * table[high[:, 0], low[:, 1]] + (1 - r) * c * table[low[:, 0], high[:, 1]]
    np.testing.assert_allclose(got.reshape(size), want, atol=1e-6)


def test_text_images_and_videos_follow_each_other_as_in_the_paper():
    ours = np.asarray(pos.multimodal([2, (2, 3), 1, (3, 1, 2), 2]))
    assert ours.dtype == np.int32
    image = [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]]
    video = [[6, 6, 6], [6, 6, 7], [7, 6, 6], [7, 6, 7], [8, 6, 6], [8, 6, 7]]
    text = [[0] * 3, [1] * 3, *image, [5] * 3, *video, [9] * 3, [10] * 3]
    np.testing.assert_array_equal(ours, text)
    assert pos.multimodal([]).shape == (0, 3)
    np.testing.assert_array_equal(pos.multimodal([(1, 2, 3)]), pos.multimodal([(2, 3)]))


def test_frames_of_fractions_of_a_second_are_not_one_early():
    """floor(n · rate · seconds) of the exact fractions, in whatever precision seconds are given."""
    for rate, fps in itertools.product((2, 25), (3, 6, 12, 24, 30, 49)):
        for kind in (np.float64, np.float32):
            interval = float(rate * kind(2 / fps))
            got = np.asarray(pos.multimodal([(60, 1, 1)], interval=interval))[:, 0]
            assert got.tolist() == [int(Fraction(2 * rate * n, fps)) for n in range(60)]


def test_frames_stand_where_their_seconds_are():
    """Qwen2.5-VL: tokens_per_second · seconds, whole; images have none; text goes on."""
    video = [[0, 0, 0], [2, 0, 0], [4, 0, 0]]
    ours = pos.multimodal([(3, 1, 1), 2], interval=2)
    np.testing.assert_array_equal(ours, [*video, [5] * 3, [6] * 3])
    ours = pos.multimodal([(3, 1, 1), (1, 2), (3, 1, 1), 1], interval=[2, np.float32(0.5)])
    image, slow = [[5, 5, 5], [5, 5, 6]], [[7, 7, 7], [7, 7, 7], [8, 7, 7]]
    np.testing.assert_array_equal(ours, [*video, *image, *slow, [9] * 3])
    assert ours.dtype == np.int32


@pytest.mark.parametrize("interval", [2, 0.5])
def test_centred_frames_lie_on_the_diagonal_of_text(interval):
    """VideoRoPE's published code (δ = 2), which Ling 3.0 VL's has too, token by token."""
    spans, want, start = [2, (7, 1), 1, (3, 2, 3), 2], [], 0
    for span in spans:
        frames, height, width = (1, 1, 1) if np.size(span) == 1 else (1, *span)[-3:]
        if np.size(span) == 1:
            want += [[start + i] * 3 for i in range(span)]
        for n, row, column in itertools.product(*map(range, (frames, height, width))):
            t = start + n * interval
            if np.size(span) > 1:
                want += [[t, t + row - (height - 1) // 2, t + column - (width - 1) // 2]]
        start = want[-1][0] + 1
    ours = pos.multimodal(spans, interval, centred=True)
    np.testing.assert_array_equal(ours, want)
    assert ours.dtype == (np.int32 if interval == 2 else np.float32)
    assert ours.min() < 0  # above the middle of a tall image


def test_patches_of_v2pe_take_smaller_steps():
    want = [0, 1, 1.25, 1.5, 1.75, 2, 3, *3.25 + np.arange(6) / 4, 5.5]
    ours = pos.v2pe([2, (2, 2), 1, (3, 2, 1), 1], 0.25)
    np.testing.assert_array_equal(ours, want)
    np.testing.assert_array_equal(pos.v2pe([(1, 2), 1], 0.5), [0, 0.5, 1.5])  # p_0 = 0
    assert ours.dtype == pos.v2pe([], 1).dtype == np.float32


@pytest.mark.parametrize(
    "size, alpha", [((3, 4), 0.5), ((5, 2), 0.0), ((2, 3), 1.0), ((1, 1), 0.5)]
)
def test_an_image_of_circle_rope_is_a_ring_around_the_text(size, alpha):
    """The published code's steps one by one, in its order (x, y, z) = (column, row, time)."""
    height, width = size
    ours = np.asarray(pos.circle([3, size, 2], radius=7.0, alpha=alpha))
    y, x = (a.astype(float) for a in np.indices(size))
    y, x = y - (y.max() + y.min()) / 2, x - (x.max() + x.min()) / 2
    angle = np.arctan2(y, x)
    if height * width > 1:
        angle = (angle - angle.min()) / (angle.max() - angle.min()) * 2 * np.pi
    index = np.arange(height * width).reshape(size) / (height * width) * 2 * np.pi
    theta = alpha * angle + (1 - alpha) * index
    text = np.ones(3) / np.sqrt(3)
    u = np.array([-text[1], text[0], 0]) / np.hypot(text[0], text[1])
    v = np.cross(text, u)
    ring = 7 * (np.cos(theta)[..., None] * u + np.sin(theta)[..., None] * v)
    np.testing.assert_allclose(ours[3:-2], 3 + ring.reshape(-1, 3)[:, ::-1], atol=1e-5)
    np.testing.assert_allclose(ours[-2:], [[ours[3:-2].max() + n] * 3 for n in (1, 2)], rtol=1e-6)
    far = np.linalg.norm(ours[3:-2] - ours[0], axis=1)
    np.testing.assert_allclose(far, np.hypot(7, 3 * np.sqrt(3)), rtol=1e-6)
