"""Sinusoidal encoding against §3.5 of arXiv 1706.03762, in float64."""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import sinusoidal
from pe_jax.naive.absolute import sinusoid as paper
from tests.encodings.common import NONE

_far = jax.jit(lambda p: sinusoidal.sinusoid(p, 64))


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.int32, 32, elements=st.integers(1 - 2**24, 2**24 - 1)))
def test_far_positions_are_as_exact_as_near_ones(positions):
    want = np.array([paper(p, 64) for p in positions.tolist()])
    for ours in (_far(positions), sinusoidal.sinusoid(positions, 64)):
        np.testing.assert_allclose(ours, want, rtol=0, atol=1e-6)


def test_bfloat16_activations_do_not_merge_positions_256_and_257():
    embedded = pe_jax.make("sinusoidal").embed(
        NONE, jnp.zeros((2, 16), jnp.bfloat16), np.array([256, 257])
    )
    assert embedded.dtype == jnp.bfloat16
    want = np.array([paper(256, 16), paper(257, 16)])
    np.testing.assert_allclose(embedded.astype(np.float32), want, rtol=0, atol=2**-8)
