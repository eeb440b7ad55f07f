"""ReRoPE against the pairwise formula, and LM-Infinite (arXiv 2308.16137) put together from it."""

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import rerope
from pe_jax.encodings.base import abstract_terms
from pe_jax.encodings.terms import Views, views
from pe_jax.engines.decoding import cache
from tests import util
from tests.encodings.common import HEAD_DIM, LENGTH, NONE, qkv

WINDOW = 4


def test_each_token_is_rotated_twice_and_a_cache_holds_both():
    encoding = pe_jax.make("rerope", window=WINDOW)
    q, k, _ = qkv()
    places = np.arange(LENGTH)
    near, far = np.split(util.rotate(encoding, "k", NONE, k, places), 2, axis=-1)
    np.testing.assert_array_equal(far, k)
    assert rerope.rotate_twice(q, places, places, np.ones(3)).shape == (LENGTH, 2, 2 * HEAD_DIM)
    dims = pe_jax.Dims(2 * HEAD_DIM, 2, 2, HEAD_DIM)
    past = cache.empty(encoding, 1, 5, dims)
    assert past.k.shape == (1, 2, 5, 2 * HEAD_DIM) and past.v.shape == (1, 2, 5, HEAD_DIM)


def test_what_rotates_one_view_comes_before_it_or_not_at_all():
    terms = abstract_terms(pe_jax.parse("rope+rerope")[0], util.DIMS)
    assert views(terms) == Views((512,))
    with pytest.raises(ValueError, match="Sum of ReRoPE and RoPE: .* put that one last"):
        pe_jax.parse("rerope+rope")[0].check(util.DIMS)
