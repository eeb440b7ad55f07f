"""Shaw et al. against eq. 2–5 of arXiv 1803.02155, in float64."""

import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import shaw
from pe_jax.encodings.terms import RelativeValues
from tests import util
from tests.encodings.common import DIMS, random_params


def test_without_values_there_is_no_table_for_them():
    encoding = pe_jax.make("shaw", values=False)
    assert set(random_params(encoding).layer) == {"keys"}
    assert not util.terms(encoding, RelativeValues)


def test_relative_takes_the_middle_row_at_distance_0():
    table = jnp.arange(5.0)[None, :, None]
    np.testing.assert_array_equal(
        shaw.relative(table, np.arange(-3, 4))[0, :, 0], [0, 0, 1, 2, 3, 4, 4]
    )
    assert random_params(pe_jax.make("shaw", clip=2)).layer["keys"].shape == (1, 5, DIMS.head_dim)
