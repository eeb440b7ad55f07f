"""Dual chunk attention: its distances, and three attentions merged as its authors compute it."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.base import abstract_terms
from pe_jax.encodings.terms import views
from pe_jax.engines.decoding import cache
from pe_jax.naive import rotary
from tests import util
from tests.encodings.common import DIMS, HEAD_DIM, LENGTH, NONE, qkv

CHUNK_SIZE, LOCAL = 5, 2
SMALL = pe_jax.make("dual_chunk", chunk_size=CHUNK_SIZE, local_size=LOCAL)
CHUNK = CHUNK_SIZE - LOCAL


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
def test_three_attentions_merged_by_their_sums_are_the_same(implementation):
    """As the authors compute a prompt: chunk by chunk, each part with a rotation of its own."""
    q, k, v = (np.float64(x) for x in qkv())
    theta, outs = rotary.frequencies(HEAD_DIM, 1e4), []
    places = np.arange(LENGTH)
    keys = rotary.rotate(k, (places % CHUNK)[:, None, None] * theta)
    for begin in range(0, LENGTH, CHUNK):
        rows = np.arange(begin, min(begin + CHUNK, LENGTH))
        inside = rows - begin
        parts = (  # keys from, to; positions of the queries
            (begin, begin + len(rows), inside),
            (max(begin - CHUNK, 0), begin, np.minimum(inside + CHUNK, CHUNK_SIZE)),
            (0, max(begin - CHUNK, 0), np.full(len(rows), min(2 * CHUNK - 1, CHUNK_SIZE))),
        )
        merged, total = 0.0, 0.0
        for start, stop, at in parts:
            queries = rotary.rotate(q[rows], at[:, None, None] * theta)
            scores = np.einsum("the,she->hts", queries, keys[start:stop]) / HEAD_DIM**0.5
            e = np.exp(scores) * (np.arange(start, stop) <= rows[:, None])
            merged = merged + np.einsum("hts,she->the", e, v[start:stop])
            total = total + e.sum(-1).T[..., None]
        outs.append(merged / total)
    got = pe_jax.attention(*qkv(), encoding=SMALL, implementation=implementation)
    np.testing.assert_allclose(got, np.concatenate(outs), atol=1e-5)


def test_queries_are_rotated_three_times_and_a_cache_holds_keys_once():
    (found,) = (views(abstract_terms(SMALL, DIMS)),)
    assert (found.count, found.unit, found.shared_keys) == (3, CHUNK, True)
    q, _, _ = qkv()
    assert util.rotate(SMALL, "q", NONE, q, np.arange(LENGTH)).shape[-1] == 3 * HEAD_DIM
    assert cache.empty(SMALL, 1, 8, DIMS).k.shape[-1] == HEAD_DIM


def test_a_cache_serves_a_window_with_sinks():
    """Rows that the window leaves out are cut from the cache, and the sinks' doubles hidden."""
    q, k, v = (x[None] for x in qkv())
    options = {"window": 4, "sinks": 2}
    want = pe_jax.attention(q, k, v, encoding=SMALL, **options)
    past, outs = cache.empty(SMALL, 1, LENGTH, DIMS), []
    shared = {"encoding": SMALL, "params": SMALL.init(jax.random.key(0), DIMS), "dims": DIMS}
    extend = util.jit(lambda past, *token: cache.extend(past, *token, **shared, **options))
    for t in range(LENGTH):
        out, past = extend(past, *(x[:, t : t + 1] for x in (q, k, v)))
        outs.append(out)
    util.assert_close(np.concatenate(outs, axis=1), want)


def test_later_keys_are_refused():
    with pytest.raises(ValueError, match="DualChunk is for causal attention alone"):
        pe_jax.attention(*qkv(), encoding=SMALL, causal=False)
