"""Sinusoidal encoding against §3.5 of arXiv 1706.03762, in float64."""

import math

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import sinusoidal
from pe_jax.naive.absolute import sinusoid as paper
from pe_jax.numerics import angles
from tests.encodings.common import NONE


@pytest.mark.parametrize("base", [100.0, 1e4, 5e5])
def test_it_is_the_papers_equation_below_256(base):
    ours = sinusoidal.sinusoid(np.arange(256), 16, base)
    np.testing.assert_allclose(ours, [paper(p, 16, base) for p in range(256)], rtol=0, atol=1e-5)


def test_concatenated_holds_the_same_numbers_sines_first():
    table = np.asarray(sinusoidal.sinusoid(np.arange(9), 8))
    other = sinusoidal.sinusoid(np.arange(9), 8, layout="concatenated")
    np.testing.assert_array_equal(other, np.concatenate([table[:, ::2], table[:, 1::2]], -1))


def test_tensor2tensor_reaches_the_base_with_its_slowest_wave():
    places = np.array([0, 1, 5000])
    slowest = sinusoidal.sinusoid(places, 8, 1e4, "tensor2tensor")[:, 3]
    np.testing.assert_allclose(slowest, np.sin(places / 1e4), rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        angles.geometric(8, 1e4, 6), [math.exp(-i * math.log(1e4) / 3) for i in range(4)], 1e-12
    )


_far = jax.jit(lambda p: sinusoidal.sinusoid(p, 64))


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.int32, 32, elements=st.integers(1 - 2**24, 2**24 - 1)))
def test_far_positions_are_as_exact_as_near_ones(positions):
    want = np.array([paper(p, 64) for p in positions.tolist()])
    for ours in (_far(positions), sinusoidal.sinusoid(positions, 64)):
        np.testing.assert_allclose(ours, want, rtol=0, atol=1e-6)


def test_float_positions_lie_on_the_same_curve():
    ours = sinusoidal.sinusoid(np.float32([0.5, 2.25]), 16)
    np.testing.assert_allclose(ours, [paper(0.5, 16), paper(2.25, 16)], rtol=0, atol=1e-6)


def test_bfloat16_activations_do_not_merge_positions_256_and_257():
    embedded = pe_jax.make("sinusoidal").embed(
        NONE, jnp.zeros((2, 16), jnp.bfloat16), np.array([256, 257])
    )
    assert embedded.dtype == jnp.bfloat16
    want = np.array([paper(256, 16), paper(257, 16)])
    np.testing.assert_allclose(embedded.astype(np.float32), want, rtol=0, atol=2**-8)


def test_embed_adds_amplitude_times_the_table():
    x = np.random.default_rng(0).standard_normal((5, 8), np.float32)
    for layout in sinusoidal.LAYOUTS:
        encoding = pe_jax.make("sinusoidal", layout=layout, amplitude=0.25, base=50.0)
        want = x + 0.25 * np.asarray(sinusoidal.sinusoid(np.arange(5), 8, 50.0, layout))
        np.testing.assert_allclose(encoding.embed(NONE, x, np.arange(5)), want, rtol=0, atol=1e-6)
