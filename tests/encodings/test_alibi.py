"""ALiBi against §3 of arXiv 2108.12409 and the authors' rule for other head counts."""

import numpy as np
import pytest

from pe_jax.encodings import alibi
from pe_jax.naive.bias import alibi_slopes


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_of_any_number_of_heads(heads):
    np.testing.assert_allclose(alibi.slopes(heads), alibi_slopes(heads), rtol=1e-6)


@pytest.mark.parametrize("heads", [2, 6])
def test_mpts_largest_exponent(heads):
    np.testing.assert_allclose(alibi.slopes(heads, 16.0), alibi_slopes(heads, 16.0), rtol=1e-6)


def test_float_positions_give_the_bias_between_the_integers():
    np.testing.assert_allclose(alibi.bias(np.float32([0.5, -1.5]), 8)[0], [-0.25, -0.75])
