"""Shaw et al. against eq. 2–5 of arXiv 1803.02155, in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import shaw
from pe_jax.encodings.terms import RelativeValues
from tests import util
from tests.encodings.common import DIMS, LENGTH, check_attention, random_params


@pytest.mark.parametrize("clip, values", [(3, True), (3, False), (LENGTH, True)])
def test_it_is_the_papers_equations(clip, values):
    encoding = pe_jax.make("shaw", clip=clip, values=values)
    check_attention(encoding, random_params(encoding))


def test_the_horizon_is_where_the_vectors_stop_changing_on_both_sides():
    encoding = pe_jax.make("shaw", clip=4)
    keys, values = encoding.terms(random_params(encoding), util.DIMS)
    for term in (keys, values):
        lo, hi = term.horizon
        rows = np.asarray(term.at(np.arange(-20, 21)))[0]
        at = dict(zip(range(-20, 21), rows, strict=True))
        assert all((at[d] == at[lo]).all() for d in range(-20, lo + 1))
        assert all((at[d] == at[hi]).all() for d in range(hi, 21))
        assert (at[lo + 1] != at[lo]).any() and (at[hi - 1] != at[hi]).any()


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
