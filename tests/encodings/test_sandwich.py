"""Sandwich against arXiv 2212.10356, in float64: the dot product of two sinusoids."""

import math

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import sandwich
from pe_jax.encodings.terms import DistanceFormula
from tests import util

_bias = jax.jit(lambda d: sandwich.bias(d, 3, 10))


@settings(max_examples=30, deadline=None)
@given(st.integers(-(2**23), 2**23))
def test_far_distances_are_as_exact_as_near_ones(distance):
    want = [sum(math.cos(distance * 1e4 ** (-2 * i / 10)) for i in range(5)) * 3 / 8]
    want = [want[0] / h for h in (1, 2, 3)]
    np.testing.assert_allclose(_bias(np.int32([distance]))[:, 0], want, atol=5e-6)


def test_it_falls_on_the_whole_but_not_always_so_it_does_not_declare_that_it_decays():
    bias = np.asarray(sandwich.bias(np.arange(4096), 8))[0]
    means = [bias[a : 2 * a].mean() for a in (1, 4, 16, 64, 256, 1024)]
    assert (np.diff(means) < -3).all()  # about as much for each factor: a logarithm
    assert (np.diff(bias) > 0).any() and not util.terms(pe_jax.make("sandwich"), DistanceFormula)
