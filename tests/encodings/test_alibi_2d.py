"""ALiBi on two axes: the Euclidean distance times ALiBi's slopes."""

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings import alibi, alibi_2d
from tests.util import assert_close


def test_the_gradient_of_positions_has_nothing_of_a_token_and_itself():
    at = jnp.asarray([[0.0, 0.0], [3.0, 4.0]])
    total = jax.grad(lambda at: alibi_2d.bias(at[:, None] - at[None], 2).sum())
    slopes = float(alibi.slopes(2).sum())
    assert_close(total(at), 2 * slopes * np.asarray([[0.6, 0.8], [-0.6, -0.8]]), 1e-6)


def test_along_a_line_it_is_alibi_and_far_distances_do_not_overflow():
    d = np.array([0, 1, -7, 2**20, -(2**24) + 1])
    ours = alibi_2d.bias(np.stack([np.zeros_like(d), d], -1), 6)
    np.testing.assert_allclose(ours, alibi.bias(d, 6), rtol=1e-6)
    half = alibi_2d.bias(np.float32([[0.3, 0.4]]), 1)
    np.testing.assert_allclose(half, [[-0.5 * 2**-8]], rtol=1e-6)
