"""GRAPE-AP against arXiv 2512.07805 and the authors' code."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import alibi, grape_ap
from tests.encodings.common import (
    LENGTH,
    WIDTH,
    attend,
    qkv,
    random_params,
)

GRAPE = pe_jax.make("grape_ap", width=4)
X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)


def test_without_projections_it_is_alibi():
    """Each token then costs ln 2."""
    q, k, v = qkv()
    params = jax.tree.map(jnp.zeros_like, random_params(GRAPE))
    got = attend(q, k, v, GRAPE, params, x=X)
    bias = np.log(2) * alibi.bias(np.arange(LENGTH)[:, None] - np.arange(LENGTH), 2)
    scores = np.einsum("the,she->hts", q, k) / np.sqrt(q.shape[-1]) + bias
    weights = np.exp(scores) * np.tri(LENGTH)
    want = np.einsum("hts,she->the", weights / weights.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_keys_are_of_unit_size_and_turn_with_their_position():
    p = jnp.asarray(np.random.default_rng(0).standard_normal((5, 2, 6)), jnp.float32)
    turned = grape_ap.turn(3 * p, jnp.arange(5))
    np.testing.assert_allclose((turned**2).mean(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(turned, grape_ap.turn(p, jnp.arange(5)), atol=1e-5)
    unit = p / jnp.sqrt((p**2).mean(-1, keepdims=True))
    np.testing.assert_allclose(turned[0], unit[0], atol=1e-5)
    products = (turned[1:] * unit[1:]).sum(-1) / 6  # a turn by n radians of every pair
    np.testing.assert_allclose(products, np.cos(np.arange(1, 5))[:, None] * np.ones(2), atol=1e-5)
