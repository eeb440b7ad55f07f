"""PoPE against arXiv 2509.10534; tests/oracles runs the implementations of others."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import cache
from pe_jax.encodings import pope
from tests import util
from tests.encodings.common import DIMS, HEAD_DIM, HEADS, LENGTH, qkv
from tests.encodings.common import random_params as draw

POPE = pe_jax.make("pope")
PHASE = np.random.default_rng(3).uniform(-7, 1, (HEADS, HEAD_DIM)).astype(np.float32)
PARAMS = pe_jax.Params({}, {"phase": jnp.asarray(PHASE)})


def test_it_has_as_many_frequencies_as_channels_an_odd_number_too():
    np.testing.assert_allclose(pope.frequencies(5, 1e3), 1e3 ** (-np.arange(5) / 5))
    x = np.ones((2, 1, 5), np.float32)
    assert pope.polar(x, np.arange(2)).shape == (2, 1, 10)


def test_a_phase_is_kept_within_a_turn_with_a_whole_gradient_at_its_ends():
    phase = jnp.float32([-8, -2 * np.pi, -1, 0, 1])
    kept, pull = jax.vjp(pope.bounded, phase)
    np.testing.assert_allclose(kept, np.clip(phase, -2 * np.pi, 0))
    np.testing.assert_array_equal(pull(jnp.ones(5))[0], [0, 1, 1, 1, 0])


def test_a_cache_has_keys_of_both_parts_and_no_phase():
    held = cache.empty(POPE, 1, 4, DIMS)
    assert held.k.shape == (1, HEADS, 4, 2 * HEAD_DIM) and held.v.shape[-1] == HEAD_DIM
    _, k, _ = qkv()
    other = draw(POPE)
    turned = [util.rotate(POPE, "k", p, k, np.arange(LENGTH)) for p in (PARAMS, other)]
    np.testing.assert_array_equal(*turned)
