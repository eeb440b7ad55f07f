"""What looks like a fault and must work: odd heads, narrow and far positions, no tokens."""

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import alibi
from tests import util
from tests.faults.attention_calls import FAR, K_, ROPE, T5, Q, T, V, attention
from tests.util import B, E, H


@pytest.mark.parametrize("heads", (3, 12))
def test_alibi_takes_any_number_of_heads(heads):
    q = util.noise(B, T, heads, E)
    assert np.isfinite(attention(q, q, q, encoding=pe_jax.make("alibi"))).all()
    np.testing.assert_allclose(alibi.slopes(3), [2**-4, 2**-8, 2**-2])


@pytest.mark.parametrize(
    "encoding, dtype",
    [(T5, np.uint8), (T5, np.int8), (T5, np.int16), (ROPE, np.uint32), (ROPE, np.int64)],
)
def test_narrow_positions_are_widened(encoding, dtype):
    places = np.asarray([120, 3, 90, 7, 0])
    want = attention(encoding=encoding, q_positions=places.astype(np.int32))
    np.testing.assert_array_equal(
        attention(encoding=encoding, q_positions=places.astype(dtype)), want
    )


def test_far_positions_stay_exact_where_only_distances_count():
    near = attention(encoding=T5, q_positions=np.arange(T))
    np.testing.assert_array_equal(attention(encoding=T5, q_positions=FAR + np.arange(T)), near)


@pytest.mark.parametrize("engine", ("dense", "tiled"))
@pytest.mark.parametrize("queries, keys", [(0, 0), (0, T), (T, 0)])
def test_empty_sequences_give_empty_or_zero_output(engine, queries, keys):
    given = {"q_segments": np.zeros((B, queries), int), "k_segments": np.zeros((B, keys), int)}
    given |= {"q_positions": np.arange(queries), "k_positions": np.arange(keys)}
    given |= {"q_index": np.arange(queries), "k_index": np.arange(keys)}
    out = attention(
        Q[:, :queries], K_[:, :keys], V[:, :keys], encoding=ROPE, implementation=engine, **given
    )
    assert out.shape == (B, queries, H, E) and not out.any()
