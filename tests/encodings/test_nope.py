"""NoPE (arXiv 2305.19466): nothing is added, so order is seen through the causal mask alone."""

import numpy as np

import pe_jax
from tests import util
from tests.encodings.common import LENGTH, NONE, qkv


def test_it_adds_nothing():
    encoding, (x, _, _), places = pe_jax.Encoding(), qkv(), np.arange(LENGTH)
    assert encoding.embed(NONE, x, places) is x
    assert encoding.inputs({}) == encoding.terms(NONE, util.DIMS) == ()
    assert encoding.init_shared(None, None) == encoding.init_layer(None, None) == {}
    assert encoding.limit() is None
