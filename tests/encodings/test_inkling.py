"""Inkling's relative logits against the naive form; tests/oracles has both releases' code."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import inkling
from pe_jax.encodings.terms import RelativeState, Rotation
from tests import util


def test_a_vector_of_zeros_is_clipped_with_a_finite_gradient():
    assert np.isfinite(jax.grad(lambda x: inkling.clip_norm(x, 1.0).sum())(jnp.zeros(4))).all()
    clipped = inkling.clip_norm(jnp.asarray([[3.0, 4.0], [0.3, 0.4]]), 2.5)
    np.testing.assert_allclose(clipped, [[1.5, 2.0], [0.3, 0.4]], rtol=1e-6)


def test_what_is_not_asked_for_is_no_term():
    assert [type(t) for t in util.terms(pe_jax.make("inkling"))] == [RelativeState]
    assert util.is_relative(pe_jax.make("inkling"))
    scaled = pe_jax.make("inkling", floor=128_000)
    assert [type(t) for t in util.terms(scaled)] == [RelativeState, Rotation]
    assert not util.is_relative(scaled)
