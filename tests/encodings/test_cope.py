"""CoPE against arXiv 2405.18719."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import cope
from pe_jax.engines import dispatch
from pe_jax.naive.contextual import cope_counts
from tests.encodings.common import (
    HEAD_DIM,
    LENGTH,
    attend,
    check_attention,
    qkv,
    random_params,
    row,
)

COPE = pe_jax.make("cope", positions=4)


def test_positions_are_counted_by_gates_from_the_key_to_the_query():
    """Equations 3 to 8, one pair at a time; positions beyond the last vector stay there."""
    check_attention(COPE, random_params(COPE), causal=True)
    counts = cope_counts(row())[:, np.tri(LENGTH, dtype=bool)]
    assert counts.min() < 1 < 3 < counts.max()


def test_hidden_keys_are_not_counted():
    gates = jnp.asarray([[0.5, 0.25, 0.75, 0.0]])
    np.testing.assert_allclose(cope.positions(gates, 64), [[1.5, 1.0, 0.75, 0.0]])
    np.testing.assert_allclose(cope.positions(gates, 2), [[1.0, 1.0, 0.75, 0.0]])
    values = jnp.asarray([[10.0, 20.0, 40.0]])
    found = cope.interpolate(values, jnp.asarray([[0.0, 0.5, 1.25, 2.0]]))
    np.testing.assert_allclose(found, [[10, 15, 25, 40]])


def test_fresh_vectors_change_nothing():
    q, k, v = qkv()
    layer = COPE.init_layer(jax.random.key(0), pe_jax.Dims(12, 2, 2, HEAD_DIM))
    got = attend(q, k, v, COPE, pe_jax.Params({}, layer))
    np.testing.assert_allclose(got, attend(q, k, v), atol=1e-6)


def test_the_gates_learn():
    """Positions are fractions: the loss has a gradient to what counts, not to vectors alone."""
    q, k, v = qkv()
    params = random_params(COPE)

    def loss(q, k, freeze):
        scores = jnp.einsum("the,she->hts", q, k) / np.sqrt(HEAD_DIM)
        seen = jnp.tri(LENGTH, dtype=bool)
        scores = jax.lax.stop_gradient(scores) if freeze else scores
        args = scores[None], 0 * scores[None], jnp.swapaxes(q, 0, 1)[None], seen
        return (COPE.count(params.layer["vectors"], *args) * jnp.cos(jnp.arange(LENGTH))).sum()

    free, frozen = (jax.grad(lambda k, f=f: loss(q, k, f))(k) for f in (False, True))
    assert np.abs(free).max() > 1e-3 and not np.abs(frozen).any()


def test_none_takes_the_dense_engine_and_says_what_it_costs(caplog):
    dispatch._log.cache_clear()
    q = jnp.zeros((1, 300, 2, HEAD_DIM))
    params = random_params(COPE)
    for engine in ("tiled", "fused", "tpu"):
        with pytest.raises(ValueError, match=f"{engine}.*CoPE needs whole rows of scores.*'dense'"):
            pe_jax.attention(q, q, q, encoding=COPE, params=params, implementation=engine)
    with caplog.at_level(logging.INFO, "pe_jax"):
        for length in (12, 300):
            x = q[:, :length]
            jax.eval_shape(lambda x: pe_jax.attention(x, x, x, encoding=COPE, params=params), x)
    small, large = caplog.records
    assert small.levelname == "INFO" and large.levelname == "WARNING"
    assert "CoPE: dense, O(L²) memory: it needs whole rows of scores" in large.getMessage()


@pytest.mark.parametrize("count", [0, 1.0, True])
def test_a_count_that_cannot_be_is_refused(count):
    with pytest.raises(ValueError, match="positions"):
        pe_jax.make("cope", positions=count)
