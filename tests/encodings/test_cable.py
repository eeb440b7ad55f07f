"""CABLE against arXiv 2503.08067."""

import numpy as np

import pe_jax
from pe_jax.encodings import alibi
from tests.encodings.common import (
    LENGTH,
    NONE,
    WIDTH,
    attend,
    qkv,
    random_params,
)

CABLE, ALIBI, FOX = (pe_jax.make(name) for name in ("cable", "alibi", "fox"))
X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)


def test_slopes_that_do_not_listen_are_alibi():
    q, k, v = qkv()
    even = np.log(np.expm1(np.asarray(alibi.slopes(2), np.float64))).astype(np.float32)
    params = pe_jax.Params({}, {"weight": np.zeros((WIDTH, 2), np.float32), "bias": even})
    got = attend(q, k, v, CABLE, params, x=X)
    np.testing.assert_allclose(got, attend(q, k, v, ALIBI, NONE), atol=1e-5)


def test_it_is_fox_with_gates_of_the_opposite_sign():
    q, k, v = qkv()
    params = random_params(CABLE)
    turned = pe_jax.Params({}, {name: -x for name, x in params.layer.items()})
    got = attend(q, k, v, CABLE, params, x=X)
    np.testing.assert_allclose(got, attend(q, k, v, FOX, turned, x=X), atol=1e-6)
