"""NoPE (arXiv 2305.19466): nothing is added, so order is seen through the causal mask alone."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from tests import util
from tests.encodings.common import LENGTH, NONE, attend, qkv


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(LENGTH)))
def test_without_a_mask_a_permutation_of_tokens_permutes_the_output(order):
    q, k, v = qkv()
    out = attend(q, k, v, causal=False)
    moved = attend(q[order], k[order], v[order], causal=False)
    np.testing.assert_allclose(moved, out[np.array(order)], atol=1e-6)


def test_under_a_causal_mask_only_the_set_of_earlier_tokens_matters():
    q, k, v = qkv()
    order = np.append(np.arange(LENGTH - 1)[::-1], LENGTH - 1)
    out, moved = (attend(q[o], k[o], v[o]) for o in (np.arange(LENGTH), order))
    np.testing.assert_allclose(moved[-1], out[-1], atol=1e-6)
    assert np.abs(np.asarray(moved)[0] - np.asarray(out)[order[0]]).max() > 0.1


def test_it_adds_nothing():
    encoding, (x, _, _), places = pe_jax.Encoding(), qkv(), np.arange(LENGTH)
    assert encoding.embed(NONE, x, places) is x
    assert encoding.inputs({}) == encoding.terms(NONE, util.DIMS) == ()
    assert encoding.init_shared(None, None) == encoding.init_layer(None, None) == {}
    assert encoding.limit() is None
