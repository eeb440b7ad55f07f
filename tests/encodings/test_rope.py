"""RoPE against eq. 13–16 and 34 of arXiv 2104.09864, in float64."""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_jax.encodings import rope
from pe_jax.naive import rotary

BASES = [1e4, 5e5, 1e6]


def to_half(dim):
    """Where each channel of the half layout stands in the paper's: x_half = x[to_half]."""
    return np.append(np.arange(0, dim, 2), np.arange(1, dim, 2))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("layout", rope.LAYOUTS)
def test_it_is_the_papers_rotation_below_256(layout, base):
    dim, places = 16, np.arange(256)
    x = np.random.default_rng(0).uniform(-1, 1, (256, 1, dim)).astype("f")
    angle = places[:, None] * rotary.frequencies(dim, base)
    want = rotary.rotate(x[:, 0].astype(np.float64), angle, "interleaved")  # the paper's
    order = to_half(dim) if layout == "half" else np.arange(dim)
    ours = rope.rotate(x[..., order], places, rope.frequencies(dim, base), layout)
    np.testing.assert_allclose(ours[:, 0], want[:, order], rtol=0, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 128).map(lambda n: 2 * n), st.floats(1.5, 1e9))
def test_frequencies_err_by_one_part_in_a_million_at_most(dim, base):
    want = [base ** (-2 * i / dim) for i in range(dim // 2)]
    ours = rope.frequencies(dim, base)
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(ours, np.float64), want, rtol=1e-6)


@jax.jit
def _far(positions):
    x = jnp.broadcast_to(jnp.where(jnp.arange(64) < 32, 1.0, 0.0), (32, 1, 64))
    return rope.rotate(x, positions, rope.frequencies(64))[:, 0]


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.int32, 32, elements=st.integers(-(10**6), 10**6)))
def test_far_rotations_err_by_at_most_float32_angles(positions):
    angle = positions[:, None] * 1e4 ** (-np.arange(0, 64, 2) / 64)
    want = np.concatenate([np.cos(angle), np.sin(angle)], -1)
    bound = 2.0**-23 * np.abs(positions)[:, None] + 1e-6  # 1e-6: the sine itself
    assert (np.abs(_far(positions) - want) <= bound).all()


def test_bfloat16_heads_are_rotated_in_float32():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 1, 8)), jnp.bfloat16)
    places = np.array([256, 257, 70_000, 70_001])
    ours = rope.rotate(x, places, rope.frequencies(8))
    full = rope.rotate(x.astype(jnp.float32), places, rope.frequencies(8))
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_array_equal(ours, full.astype(jnp.bfloat16))


def test_float_positions_turn_by_parts_of_a_step():
    x = np.ones((2, 1, 2), np.float32)
    places = np.array([0.5, -2.25])
    ours = rope.rotate(x, places.astype(np.float32), rope.frequencies(2))[:, 0]
    want = rotary.rotate(x[:, 0].astype(np.float64), places[:, None])
    np.testing.assert_allclose(ours, want, atol=1e-6)
