"""Rotated values: what is read from a token turns by its distance, in float64."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import rope
from pe_jax.encodings.terms import select
from pe_jax.engines.decoding import cache
from tests import util
from tests.encodings.common import DIMS, LENGTH, NONE, attend, qkv

VALUES = pe_jax.make("rotated_values")
BOTH = pe_jax.parse("rope+rotated_values")[0]


def test_an_equal_value_everywhere_is_read_as_a_mean_of_rotations():
    q, k, _ = qkv()
    v = np.ones_like(q)
    out = np.asarray(attend(q, k, v, VALUES, NONE))
    np.testing.assert_allclose(out[0], v[0], atol=1e-6)  # at distance 0
    assert np.abs(out[-1] - v[-1]).max() > 0.1
    np.testing.assert_allclose(attend(q, k, v), v, atol=1e-6)


def test_a_cache_keeps_turned_values():
    q, k, v = (x[None] for x in qkv())
    past = cache.empty(BOTH, 1, LENGTH, DIMS)
    shared = {"encoding": BOTH, "params": BOTH.init(jax.random.key(0), DIMS), "dims": DIMS}
    out, past = cache.extend(past, q, k, v, **shared)
    turned = rope.rotate(v, np.arange(LENGTH), rope.frequencies(v.shape[-1]))
    util.assert_close(jnp.swapaxes(past.v, 1, 2), turned, 1e-6)
    util.assert_close(out, pe_jax.attention(q, k, v, encoding=BOTH))


def test_the_log_of_sums_is_that_of_the_weights_alone():
    q, k, v = qkv()
    out, lse = pe_jax.attention(q, k, v, encoding=VALUES, return_lse=True)
    _, want = pe_jax.attention(q, k, v, return_lse=True)
    util.assert_close(lse, want)
    util.assert_close(out, pe_jax.attention(q, k, v, encoding=VALUES), 1e-6)


def test_values_may_have_another_width_than_keys():
    q, k, _ = qkv()
    v = util.noise(LENGTH, 2, 10)
    want = util.naive_attention(VALUES, NONE, q, k, v)
    util.assert_close(pe_jax.attention(q, k, v, encoding=VALUES), want)


def test_terms_given_by_hand_are_the_scheme():
    q, k, v = qkv()
    terms = select(VALUES.terms(NONE, DIMS), pe_jax.ValueRotation)
    got = pe_jax.attention(q, k, v, terms=tuple(terms))
    util.assert_close(got, pe_jax.attention(q, k, v, encoding=VALUES), 1e-6)


def test_a_scaling_changes_angles_and_no_sizes():
    scaled = pe_jax.parse("rotated_values(scaling=yarn(factor=4.0,original_length=8))")[0]
    assert scaled.attention_factor > 1
    out = attend(*qkv(length=1), encoding=scaled, params=NONE)
    np.testing.assert_allclose(out, qkv(length=1)[2], atol=1e-6)
