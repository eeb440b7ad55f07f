"""Rotated values: what is read from a token turns by its distance, in float64."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import rope
from pe_jax.encodings.terms import select
from pe_jax.engines.decoding import cache
from tests import util
from tests.encodings.common import DIMS, LENGTH, NONE, qkv

VALUES = pe_jax.make("rotated_values")
BOTH = pe_jax.parse("rope+rotated_values")[0]


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
