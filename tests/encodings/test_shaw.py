"""Shaw et al. against eq. 2–5 of arXiv 1803.02155, in float64."""

import pe_jax
from pe_jax.encodings.terms import RelativeValues
from tests import util
from tests.encodings.common import random_params


def test_without_values_there_is_no_table_for_them():
    encoding = pe_jax.make("shaw", values=False)
    assert set(random_params(encoding).layer) == {"keys"}
    assert not util.terms(encoding, RelativeValues)
