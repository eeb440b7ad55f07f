"""RoPE against eq. 13–16 and 34 of arXiv 2104.09864, in float64."""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_jax.encodings import rope


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
