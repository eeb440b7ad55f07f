"""Positions: what they are made of, what is refused, what is widened."""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_jax import positions as pos

_per_segment = jax.jit(pos.per_segment)


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.int32, (2, 12), elements=st.integers(-1, 2)))
def test_positions_restart_where_the_segment_changes(segments):
    want = np.zeros_like(segments)
    for b, t in np.ndindex(2, 12):
        if t and segments[b, t] == segments[b, t - 1]:
            want[b, t] = want[b, t - 1] + 1
    np.testing.assert_array_equal(_per_segment(segments), want)
    np.testing.assert_array_equal(_per_segment(segments[0]), want[0])


def test_contiguous_counts_from_the_offset_and_may_be_empty():
    np.testing.assert_array_equal(pos.contiguous(3, 7), [7, 8, 9])
    np.testing.assert_array_equal(jax.jit(lambda n: pos.contiguous(3, n))(7), [7, 8, 9])
    assert pos.contiguous(0).shape == pos.per_segment(np.zeros((2, 0), np.int32)).shape[1:] == (0,)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_integers_of_any_width_become_int32_before_they_can_wrap(dtype):
    for make in (np.asarray, jnp.asarray):
        if make is jnp.asarray and dtype == "int64":
            continue  # JAX has none by default
        ours = pos.as_positions(make([0, 127], dtype))
        assert ours.dtype == jnp.int32
        np.testing.assert_array_equal(ours[0] - ours[1], -127)


@pytest.mark.parametrize("value, worst", [([0, 2**31], 2**31), ([-(2**31) - 1, 3], -(2**31) - 1)])
def test_an_integer_beyond_int32_is_named(value, worst):
    with pytest.raises(ValueError, match=f"^k_positions: {worst} does not fit int32"):
        pos.as_positions(np.array(value), name="k_positions")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool", "complex64"])
@pytest.mark.parametrize("real", [False, True])
def test_half_precision_and_what_is_no_number_line_are_refused(dtype, real):
    for wrap in (lambda f: f, jax.jit):  # from the dtype alone: under a trace too
        with pytest.raises(TypeError, match=f"positions has dtype {dtype}; pass integers"):
            wrap(lambda p: pos.as_positions(p, real=real))(jnp.zeros(3, dtype))


def test_float32_is_for_real_positions_only():
    assert pos.as_positions(np.float32([0.5]), real=True).dtype == jnp.float32
    with pytest.raises(TypeError, match="positions has dtype float32; pass integers "):
        pos.as_positions(np.float32([0.5]))


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**24, -(2.0**24)])
def test_floats_that_are_not_finite_or_not_exact_are_refused(value):
    with pytest.raises(ValueError, match="positions: .* finite|positions: .* below 2\\*\\*24"):
        pos.as_positions(np.float32([1, value]), real=True)


@pytest.mark.parametrize("value", [2**24, -(2**24), -(2**31)])
def test_check_exact_refuses_what_float32_merges(value):
    pos.check_exact(np.array([2**24 - 1, 1 - 2**24], np.int32))
    pos.check_exact(np.zeros(0, np.int32))
    with pytest.raises(ValueError, match=f"positions: {value} is not exact in float32"):
        pos.check_exact(np.array([5, value], np.int32))
