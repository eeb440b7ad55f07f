"""Swin's table against eq. 4 of arXiv 2103.14030 and the index that its section describes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import swin
from tests.encodings.common import HEAD_DIM, HEADS, LENGTH, check_attention, random_params

HEIGHT, WIDTH = 3, 4
PLACES = np.asarray(pos.grid(HEIGHT, WIDTH))[:LENGTH]


@pytest.mark.parametrize("causal", [True, False])
def test_scores_get_the_table_at_the_distance(causal):
    encoding = pe_jax.make("swin", height=HEIGHT, width=WIDTH)
    params = random_params(encoding)
    assert params.layer["table"].shape == (HEADS, 5 * 7)

    check_attention(encoding, params, causal, q_positions=PLACES)


def test_the_index_is_the_papers_and_no_two_distances_share_one():
    d = np.stack(np.meshgrid(np.arange(-2, 3), np.arange(-3, 4), indexing="ij"), -1).reshape(-1, 2)
    ours = swin.lookup(jnp.arange(35.0)[None], d, HEIGHT, WIDTH)[0]
    np.testing.assert_array_equal(ours, [(r + 2) * 7 + c + 3 for r, c in d.tolist()])
    assert sorted(ours.tolist()) == list(range(35))


@pytest.mark.parametrize("far", [[3, 0], [-3, 0], [0, 4], [0, -4], [2**30, 0], [0, -(2**31)]])
def test_outside_the_window_is_an_error_when_known_and_nan_when_traced(far):
    table, distance = jnp.zeros((2, 35)), np.array([[2, -3], far])
    with pytest.raises(ValueError, match=r"distance: \[.*\] is outside the 3 × 4 window; keep"):
        swin.lookup(table, distance, HEIGHT, WIDTH)
    traced = jax.jit(lambda d: swin.lookup(table, d, HEIGHT, WIDTH))(distance)
    np.testing.assert_array_equal(np.isnan(traced), [[False, True]] * 2)


def test_a_larger_image_is_not_defined_through_attention():
    encoding = pe_jax.make("swin", height=2, width=2)
    params = random_params(encoding)
    x = np.ones((9, HEADS, HEAD_DIM), np.float32)
    options = {"encoding": encoding, "params": params, "causal": False}
    with pytest.raises(ValueError, match="outside the 2 × 2 window"):
        pe_jax.attention(x, x, x, q_positions=pos.grid(3, 3), **options)
    traced = jax.jit(lambda p: pe_jax.attention(x, x, x, q_positions=p, **options))(pos.grid(3, 3))
    assert np.isnan(traced).any(axis=(1, 2)).sum() == 8  # all but the middle one
    assert encoding.limit() == 2


def test_the_gradient_counts_the_distances_and_ignores_what_is_outside():
    def total(table, distance):
        found = swin.lookup(table, distance, 2, 2)
        return jnp.where(jnp.isnan(found), 0, found).sum()

    distance = np.array([[0, 0], [0, 0], [1, -1], [5, 0]])
    gradient = jax.jit(jax.grad(total))(jnp.zeros((1, 9)), distance)
    np.testing.assert_array_equal(gradient[0], [0, 0, 0, 0, 2, 0, 1, 0, 0])
