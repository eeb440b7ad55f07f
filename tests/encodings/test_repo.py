"""RePo against arXiv 2512.14391: positions that a network reads off each token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from tests.encodings.common import DIMS, LENGTH, NONE, WIDTH, attend, qkv

REPO = pe_jax.make("repo")
X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)


def test_positions_that_count_are_those_of_rope():
    """One hidden channel, silu(20) = 20 of a constant times t/20: z = t."""
    x = np.stack([np.full(LENGTH, 20), np.arange(LENGTH) / 20], -1).astype("f")
    one = jnp.eye(2)[:, :1]
    params = pe_jax.Params({}, {"gate": one, "content": one[::-1], "final": jnp.ones((1, 2))})
    rope = pe_jax.make("rope", base=5e5)
    ours = attend(*qkv(), REPO, params, x=x)
    np.testing.assert_allclose(ours, attend(*qkv(), rope, NONE), atol=1e-5)


def test_it_begins_near_no_positions_with_an_eighth_of_the_width():
    params = REPO.init(jax.random.key(0), DIMS)
    assert params.layer["gate"].shape == (WIDTH, WIDTH // 8)
    np.testing.assert_allclose(attend(*qkv(), REPO, params, x=X), attend(*qkv()), atol=1e-3)


def test_an_odd_head_is_refused():
    with pytest.raises(ValueError, match="head_dim=5: it rotates pairs"):
        REPO.check(pe_jax.Dims(10, 2, 2, 5))
