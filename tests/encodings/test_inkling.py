"""Inkling's relative logits against the naive form; tests/oracles has both releases' code."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import inkling
from pe_jax.encodings.terms import RelativeState, Rotation
from tests import util
from tests.encodings.common import DIMS, LENGTH, WIDTH, attend, qkv, random_params

X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)


def test_keys_beyond_the_extent_have_no_bias():
    encoding = pe_jax.make("inkling", extent=4, width=3)
    params = random_params(encoding)
    assert util.horizon(encoding) == (-1, 4)
    (term,) = encoding.terms(params, DIMS)
    outside = np.asarray(term.at(jnp.asarray([-5, -1, 4, 100])))
    assert not outside.any() and np.asarray(term.at(jnp.arange(4))).any()


def test_the_bias_grows_with_the_query_as_the_products_do():
    """τ of the query multiplies all that the scores are made of."""
    plain = pe_jax.make("inkling", extent=5, width=3)
    scaled = pe_jax.make("inkling", extent=5, width=3, floor=2, attn_scale=1.0)
    params, (q, k, _) = random_params(plain), qkv()
    values = np.broadcast_to(np.eye(LENGTH, dtype=np.float32)[:, None], (LENGTH, 2, LENGTH))
    weights = [attend(q, k, values, encoding=e, params=params, x=X) for e in (plain, scaled)]
    logs = [np.log(np.maximum(x, 1e-30)) for x in weights]
    seen = np.tri(LENGTH, dtype=bool)
    gaps = [np.moveaxis(x, 1, 0) - np.diagonal(x, axis1=0, axis2=2)[..., None] for x in logs]
    tau = np.asarray(inkling.log_scale(jnp.arange(LENGTH), 2, 1.0))
    np.testing.assert_allclose(tau, 1 + np.log(np.maximum((np.arange(LENGTH) + 1) / 2, 1)), 1e-6)
    want = gaps[0] * tau[:, None]
    np.testing.assert_allclose(gaps[1][:, seen], want[:, seen], rtol=1e-4, atol=1e-4)


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
