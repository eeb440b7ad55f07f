"""xPos against algorithm 1 of arXiv 2212.10554, in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import xpos
from tests import util
from tests.encodings.common import LENGTH, NONE, qkv
from tests.faults.encoding_calls import refused


def test_a_query_shrinks_as_its_key_grows_and_float32_holds_both_up_to_the_limit():
    encoding = pe_jax.make("xpos")
    last = encoding.limit() - 1
    assert last == 28_159
    x, at = jnp.ones((1, 1, 64)), np.array([last])
    q, k = (
        util.rotate(encoding, "q", NONE, x, at)[0, 0],
        util.rotate(encoding, "k", NONE, x, at)[0, 0],
    )
    size = lambda y: np.hypot(*np.asarray(y, np.float64).reshape(-1, 2).T) / math.sqrt(2)  # noqa: E731
    want = xpos.zeta(64) ** (last / 512)
    np.testing.assert_allclose(size(q), want, rtol=2e-5)
    np.testing.assert_allclose(size(k), 1 / want, rtol=2e-5)
    half = util.rotate(encoding, "k", NONE, x.astype(jnp.bfloat16), at)
    assert half.dtype == jnp.bfloat16 and np.isfinite(half.astype(jnp.float32)).all()


@pytest.mark.parametrize("shift", [1, 100, 20_000])
def test_scores_depend_on_the_distance_alone_wherever_the_tokens_stand(shift):
    encoding = pe_jax.make("xpos", base=1e2)
    q, k, _ = qkv()
    products = jax.jit(
        lambda at: jnp.einsum(
            "the,she->hts",
            util.rotate(encoding, "q", NONE, q, at),
            util.rotate(encoding, "k", NONE, k, at),
        )
    )
    places = np.arange(LENGTH)
    here, there = products(places), products(places + shift)
    # an angle errs by 2⁻²³ of its position: 2.4e-3 at 20,000
    np.testing.assert_allclose(there, here, atol=1e-4 + 2e-6 * shift)


@pytest.mark.parametrize("places", [[-1, 0], [0, 28_160], [0, 2**24]])
def test_positions_out_of_reach_are_an_error_or_nan_under_a_trace(places):
    encoding, x = pe_jax.make("xpos"), jnp.ones((2, 1, 8))
    places = np.array(places, np.int32)
    for side in "qk":
        rotate = functools.partial(util.rotate, encoding, side, NONE)
        refused(lambda f=rotate: f(x, places), "outside [0, 28160)", "scale_base")
        traced = jax.jit(rotate)(x, places)
        np.testing.assert_array_equal(np.isnan(traced[:, 0, 0]), (places < 0) | (places > 28_159))


def test_it_is_causal_alone_and_says_so_before_anything_runs():
    q, k, v = qkv()
    for encoding in (pe_jax.make("xpos"), pe_jax.parse("t5+xpos")[0]):
        assert encoding.claims.causal_only
        refused(
            lambda e=encoding: pe_jax.attention(
                q, k, v, encoding=e, params=pe_jax.Params(((), ()), ((), ())), causal=False
            ),
            *("causal=False", "for causal attention alone"),
        )
    refused(lambda: pe_jax.make("xpos").check(pe_jax.Dims(10, 2, 2, 5)), "head_dim=5", "even")
