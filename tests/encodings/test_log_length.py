"""The learned temperature, from its formula; tests/oracles runs Mistral Large 4 itself."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import log_length
from tests import util
from tests.encodings.common import DIMS, HEADS, LENGTH, attend, qkv, random_params

ENCODING = pe_jax.make("log_length")
PARAMS = random_params(ENCODING)


def test_keys_stay_and_before_position_0_the_bias_alone_is_left():
    _, k, _ = qkv()
    np.testing.assert_array_equal(util.rotate(ENCODING, "k", PARAMS, k, np.arange(LENGTH)), k)
    far = np.array([-(2**31), -1, 0, 1, 2**31 - 1])
    got = log_length.temperature(jnp.float32([0.5]), jnp.float32([0.25]), far)[:, 0]
    want = [0.25, 0.25, 0.25, 0.25 + np.log(2) / 2, 0.25 + 31 * np.log(2) / 2]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_it_begins_without_an_effect():
    first = ENCODING.init(jax.random.key(0), DIMS)
    np.testing.assert_array_equal(attend(*qkv(), ENCODING, first), attend(*qkv()))


def test_devices_that_share_heads_have_the_numbers_of_theirs():
    (term,) = ENCODING.terms(PARAMS, DIMS)
    second = term.for_heads(lambda x, axis: jax.lax.slice_in_dim(x, 1, 2, axis=axis))
    x = qkv()[0]
    both, one = (t.rotate("q", y, np.arange(LENGTH)) for t, y in ((term, x), (second, x[:, 1:])))
    assert HEADS == 2
    np.testing.assert_array_equal(both[:, 1:], one)
