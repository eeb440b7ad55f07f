"""Stick-breaking attention against arXiv 2410.17980."""

import jax
import numpy as np
import pytest

import pe_jax
from tests.encodings.common import HEAD_DIM, HEADS, LENGTH, NONE, attend, qkv

STRICT, CURRENT = (pe_jax.make("stick_breaking", attend_current=x) for x in (False, True))


def test_the_weights_add_up_to_what_is_taken():
    q, k, v = qkv()
    out, lse = pe_jax.attention(q, k, np.ones_like(v), encoding=CURRENT, return_lse=True)
    np.testing.assert_allclose(np.exp(lse), out[..., 0], rtol=1e-6)
    products = np.einsum("the,she->ths", q, k) / np.sqrt(HEAD_DIM)
    left = np.where(np.tri(LENGTH, dtype=bool)[:, None], 1 / (1 + np.exp(products)), 1).prod(-1)
    np.testing.assert_allclose(1 - left, out[..., 0], atol=1e-6)


def test_one_token_takes_its_gate_or_nothing():
    q, k, v = (x[:1] for x in qkv())
    gate = 1 / (1 + np.exp(-(q * k).sum(-1, keepdims=True) / np.sqrt(HEAD_DIM)))
    np.testing.assert_allclose(attend(q, k, v, CURRENT, NONE), gate * v, rtol=1e-5)
    assert not np.abs(attend(q, k, v, STRICT, NONE)).any()


@pytest.mark.parametrize("size", [1e-3, 60.0])
def test_gates_that_are_shut_or_open_are_finite_and_so_are_gradients(size):
    q, k, v = qkv()

    def loss(q, k):
        return (attend(size * q, size * k, v, CURRENT, NONE) ** 2).sum()

    for grad in jax.grad(loss, (0, 1))(q, k):
        assert np.isfinite(grad).all()


def test_what_a_softmax_alone_has_is_refused():
    q, k, v = qkv()
    for options in ({"terms": (pe_jax.Sink(np.zeros(HEADS, np.float32)),)}, {"logit_cap": 5.0}):
        with pytest.raises(ValueError, match="weights that no softmax normalizes have no"):
            pe_jax.attention(q, k, v, encoding=STRICT, **options)
