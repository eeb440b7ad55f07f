"""What the mask reads, the parts of the tiled engine, and O(L) memory."""

import functools
import math
import sys

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings.terms import Tokens
from pe_jax.engines import mask
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.tiled import Tiled, TileSizes, schedule, sizes
from pe_jax.engines.tiled.plan import Plan, make_plan
from pe_jax.positions import per_segment
from tests import util
from tests.util import H, K, assert_close, noise

SMALL = Tiled(TileSizes(4, 2, group=(1, 2)))
ENGINES = {"dense": "dense", "tiled": SMALL}
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
WIDTH = 6
(MIXED,) = pe_jax.parse("deberta(buckets=4,max_distance=7)+rope")
DIMS = pe_jax.Dims(H * WIDTH, H, K, WIDTH)


def operands(batch=(), queries=7, keys=None, v_width=WIDTH):
    keys = queries if keys is None else keys
    shapes = [(queries, H, WIDTH), (keys, K, WIDTH), (keys, K, v_width)]
    return tuple(noise(*batch, *shape, seed=i) for i, shape in enumerate(shapes))


@EACH_ENGINE
@pytest.mark.parametrize("queries, keys", [(0, 0), (0, 5), (5, 0)])
def test_empty_sequences_give_empty_or_zero_output(engine, queries, keys):
    q, k, v = operands((2,), queries, keys)
    given = {"q_segments": np.zeros((2, queries), int), "k_segments": np.zeros((2, keys), int)}
    for name in ("positions", "index"):
        given |= {f"q_{name}": np.arange(queries), f"k_{name}": np.arange(keys)}
    out = pe_jax.attention(q, k, v, encoding="rope", implementation=engine, **given)
    assert out.shape == (2, queries, H, WIDTH) and not out.any()


def test_attention_without_an_encoding_is_that_of_jax():
    q, k, v = operands((2,), 7)
    want = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    for engine in ENGINES.values():
        assert_close(pe_jax.attention(q, k, v, implementation=engine), want)


@EACH_ENGINE
def test_the_mask_follows_indices_and_not_positions(engine):
    """Shuffled, repeated, backward positions: what comes later by index is not seen."""
    q, k, v = operands((2,), 7)
    params = util.random_params(MIXED, DIMS)

    @util.jit
    def seen(places):
        def f(v):
            return pe_jax.attention(
                q, k, v, encoding=MIXED, params=params, q_positions=places, implementation=engine
            ).sum((0, 2, 3))

        return jnp.abs(jax.jacrev(f)(v)).sum((1, 3, 4))

    for places in ([6, 5, 4, 3, 2, 1, 0], [0, 0, 9, 9, 1, 1, 5], [-3, 7, 2, 0, 100, -50, 1]):
        np.testing.assert_array_equal(seen(np.asarray(places)) > 0, np.tri(7, dtype=bool))


# Masks.


@given(st.data())
def test_the_mask_is_the_sentence_that_describes_it(data):
    draw = lambda low: data.draw(st.lists(st.integers(low, 5), min_size=6, max_size=6))  # noqa: E731
    q_index, k_index, q_ids, k_ids = draw(0), draw(0), draw(-1), draw(-1)
    causal, window = data.draw(st.booleans()), data.draw(st.none() | st.integers(1, 7))
    sinks, rank = data.draw(st.integers(0, 3)), draw(0)
    arrays = map(np.asarray, (q_index, k_index, q_ids, k_ids))
    options = {"sinks": sinks, "k_rank": np.asarray(rank)}
    got = mask.allowed(*arrays, causal=causal, window=window, **options)
    for t, s in np.ndindex(6, 6):
        ahead = q_index[t] - k_index[s]
        want = q_ids[t] == k_ids[s] >= 0
        want &= ahead >= 0 or not causal
        want &= window is None or abs(ahead) < window or rank[s] < sinks
        assert got[t, s] == want


@given(st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_positions_restart_in_each_run_of_a_segment(ids):
    want = [0]
    for before, now in zip(ids, ids[1:], strict=False):
        want.append(want[-1] + 1 if now == before else 0)
    np.testing.assert_array_equal(per_segment(np.asarray([ids])), [want])


@pytest.mark.parametrize("spec, restarts", [("fire", True), ("alibi", False), ("t5+fire", True)])
def test_positions_of_packed_documents_restart_where_they_are_read(spec, restarts):
    (encoding,) = pe_jax.parse(spec)
    scheme = {"encoding": encoding, "params": util.random_params(encoding)}
    ids = np.repeat(np.int32([[0, 1], [2, 3]]), 10, axis=1)
    x, calls = noise(2, 20, H, util.E), []

    def attend(spec, terms, q, k, v):
        calls.append(
            (spec.restarts, spec.contiguous, spec.in_order, int(q.tokens.positions[0, 11]))
        )
        return v, None

    for where in ({"q_segments": ids}, {"q_positions": 2 * np.arange(20)}):
        pe_jax.attention(x, x, x, **scheme, **where, implementation=attend)
    assert calls == [
        (restarts, not restarts, True, 1 if restarts else 11),
        (False, False, False, 22),
    ]


# The parts of the tiled engine.


@pytest.mark.parametrize("reach", [0, 100])
def test_tiles_of_all_heads_fit_the_budget_and_never_exceed_the_lengths(reach):
    for pairs, queries, keys in [(1, 1, 1), (8, 5000, 300), (512, 4096, 4096), (10**6, 99, 7)]:
        shapes = (pairs, 1, queries), (1, keys)
        grid, _ = sizes.arrange(*shapes, sizes.CHOSEN, by_head=False, reach=reach)
        assert 1 <= grid.rows <= queries and 1 <= grid.columns <= keys
        area = pairs * grid.rows * grid.columns
        assert area <= sizes.MOST or max(grid[:2]) <= sizes.SMALL


def test_devices_that_share_heads_share_the_budget():
    shapes = (64, 8, 4096), (8, 4096)
    alone, shared = (sizes.arrange(*shapes, sizes.CHOSEN, n, by_head=False)[0] for n in (1, 64))
    assert 512 * alone.rows**2 <= sizes.MOST < 512 * shared.rows**2
    assert 8 * shared.rows**2 <= sizes.MOST


def test_tiles_are_larger_on_a_gpu(monkeypatch):
    shapes = (4, 32, 4096), (32, 4096)
    before = sizes.arrange(*shapes, sizes.CHOSEN, by_head=False)[0]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for square, rows in [(False, 512), (True, before.rows)]:
        grid, groups = sizes.arrange(*shapes, sizes.CHOSEN, square=square)
        assert grid[:2] == (rows, rows) and groups[2:] == (4, 32)


def test_tiles_waste_little_of_a_length():
    for length in (513, 600, 1025, 5000):
        grid, _ = sizes.arrange((1, 1, length), (1, length), sizes.CHOSEN)
        assert grid.q_blocks == -(-length // sizes.LARGEST)
        assert 0 <= grid.lengths[0] - length < sizes.SMALL * grid.q_blocks


def group_of(batch: int, heads: int, kv_heads: int, rows: int, columns: int) -> tuple[int, int]:
    """Rows of the batch and heads that take turns, in tiles of a size."""
    shapes = (batch, heads, rows), (kv_heads, columns)
    _, groups = sizes.arrange(*shapes, TileSizes(rows, columns))
    assert groups.batch * groups.batch_size == batch and groups.heads * groups.heads_size == heads
    return groups.batch_size, groups.heads_size


@given(st.integers(1, 6), st.sampled_from([(1, 1), (4, 1), (4, 2), (4, 4), (6, 2), (12, 4)]))
def test_groups_share_a_key_head_or_own_several(batch, heads):
    for rows, columns in ((4, 4), (512, 512), (512, 1024)):
        b, h = group_of(batch, *heads, rows, columns)
        shared = heads[0] // heads[1]
        assert shared % h == 0 or h % shared == 0
        assert b == 1 or h == heads[0]


def test_as_many_heads_to_a_tile_as_make_up_its_area():
    assert group_of(1, 8, 8, 512, 512)[1] >= 2
    assert group_of(64, 4, 4, 64, 64)[0] * 4 * 64 * 64 <= sizes.AREA


def test_blocks_that_the_mask_empties_are_not_visited():
    index = np.arange(12, dtype=np.int32)[None]
    ids = np.repeat(np.asarray([[0, 1, -1]], np.int32), 4, axis=1)
    reach = functools.partial(reached, index)
    assert reach(causal=True, window=None, ids=None) == [(0, 2), (0, 3), (0, 4)]
    assert reach(causal=True, window=2, ids=None) == [(0, 2), (1, 3), (2, 4)]
    assert reach(causal=False, window=2, ids=None) == [(0, 2), (1, 3), (2, 4)]
    assert reach(causal=True, window=None, ids=ids) == [(0, 2), (1, 3), None]


def test_a_window_with_sinks_visits_their_tiles_and_its_own():
    index = np.arange(60, dtype=np.int32)[None]
    ids = np.where(index < 24, 0, 1)
    for segments, first in ((None, 0), (ids, 24)):
        rank = None if segments is None else per_segment(segments)
        q, k = Tokens(index, index, segments), Tokens(index, index, segments, rank)
        for told in ({}, {"aligned": True, "restarts": True}):  # with a loop for the diagonal
            spec = AttentionSpec(DIMS, True, 3, sinks=2, **told)
            plan = without_terms(spec, 60, 6, 6, segments=segments is not None)
            assert plan.gaps == ((0,) if told else ())
            assert visited(plan, q, k, 9) == [first // 6, 8, 9]


def test_streaming_llm_sees_its_sinks_and_its_window():
    """arXiv 2309.17453, figure 1d; the documents of a packed row each have their own sinks."""
    q, k, v = operands((1,), 12)
    ids = np.asarray([[3] * 7 + [5] * 5])
    eye = np.broadcast_to(np.eye(12, dtype=np.float32)[None, :, None], (1, 12, K, 12))
    for engine in ENGINES.values():
        for segments, starts in ((None, [0] * 12), (ids, [0] * 7 + [7] * 5)):
            weights = pe_jax.attention(
                q, k, eye, q_segments=segments, window=3, sinks=2, implementation=engine
            )
            for t, start in enumerate(starts):
                near = {s for s in range(t - 2, t + 1) if s >= start}
                want = near | {s for s in (start, start + 1) if s <= t}
                assert set(np.flatnonzero(weights[0, t, 0] > 1e-6)) == want


def without_terms(
    spec: AttentionSpec, length: int, rows: int, columns: int, segments: bool
) -> Plan:
    """What is static about a call without an encoding, in tiles of a size."""
    shapes = (1, H, length), (K, length)
    return make_plan(spec, (), *shapes, TileSizes(rows, columns), segments=segments)


def visited(plan: Plan, q: Tokens, k: Tokens, i: int) -> list[int]:
    """The block columns of block row i, each as often as it is visited."""
    visits = schedule.visits(plan, q, k)
    return sorted(int(j) for visit in visits for j in visit.columns[i, : visit.counts[i]])


def reached(index, *, causal, window, ids):
    """The first key block of each query block, and one past the last, or None; 4 by 3."""
    plan = without_terms(AttentionSpec(DIMS, causal, window), 12, 4, 3, segments=ids is not None)
    tokens = Tokens(index, index, ids)
    ends = []
    for i in range(3):
        seen = visited(plan, tokens, tokens, i)
        assert seen == list(range(seen[0], seen[-1] + 1)) if seen else True
        ends.append((seen[0], seen[-1] + 1) if seen else None)
    return ends


# Memory.

DEBERTA = "deberta(buckets=4,max_distance=7)"
LONG = [("t5+shaw", False), (f"{DEBERTA}+transformer_xl", False), ("t5", True), ("dape", False)]
SQUARE = Tiled(TileSizes(64, 64, group=(1, 2)))


def step(spec: str, length: int, explicit: bool):
    """Forward and backward of the tiled engine in blocks of 64, lowered, with its jaxpr."""
    (encoding,) = pe_jax.parse(spec)
    params = util.random_params(encoding, DIMS)
    places = np.arange(length)[::-1] if explicit else None

    def loss(params, *qkv):
        out = pe_jax.attention(
            *qkv, encoding=encoding, params=params, q_positions=places, implementation=SQUARE
        )
        return (out * out).sum()

    shapes = [jax.ShapeDtypeStruct((1, length, n, WIDTH), jnp.float32) for n in (H, K, K)]
    return util.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).trace(params, *shapes)


def intermediates(jaxpr):
    """The shapes of all values, in every nested program."""
    for equation in jaxpr.eqns:
        yield from (x.aval.shape for x in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from intermediates(inner)


@pytest.mark.parametrize("spec, explicit", LONG)
def test_memory_grows_with_the_length_and_not_its_square(spec, explicit):
    length = 1024
    once, twice = (step(spec, n, explicit) for n in (length, 2 * length))
    small, large = (s.lower().compile().memory_analysis().temp_size_in_bytes for s in (once, twice))
    assert large / small <= 2.2, f"{small} bytes became {large}"
    shapes = list(intermediates(once.jaxpr.jaxpr))
    assert len(shapes) > 100
    quadratic = [s for s in shapes if sum(n >= length for n in s) > 1 or math.prod(s) >= length**2]
    assert not quadratic


def test_the_dense_engine_would_fail_the_test_of_memory():
    q = jax.ShapeDtypeStruct((1, 64, 1, 2), jnp.float32)
    dense = jax.jit(functools.partial(pe_jax.attention, implementation="dense")).trace(q, q, q)
    assert any(sum(n >= 64 for n in s) > 1 for s in intermediates(dense.jaxpr.jaxpr))


@pytest.mark.parametrize("spec", ["rope", "t5+rope"])
def test_a_warm_eager_call_makes_few_python_calls(spec):
    """Checks included; an operation that is not compiled into one of its programs takes 50."""
    (encoding,), dims = pe_jax.parse(spec), pe_jax.Dims(64, 4, 4, 16)
    params = encoding.init(jax.random.key(0), dims)
    q, k, v = (jnp.asarray(noise(2, 64, 4, 16, seed=i)) for i in range(3))
    options = {"encoding": encoding, "params": params}
    empty = pe_jax.cache.empty(encoding, 2, 128, dims, params=params)
    past = pe_jax.cache.extend(empty, q, k, v, dims=dims, **options)[1]
    token = [x[:, :1] for x in (q, k, v)]
    for call, most in (
        (lambda: pe_jax.attention(q, k, v, **options), 1000),
        (lambda: pe_jax.cache.extend(past, *token, dims=dims, **options), 1000),
    ):
        for _ in range(3):
            call()
        made = []
        sys.setprofile(lambda frame, event, _, made=made: event == "call" and made.append(frame))
        try:
            call()
        finally:
            sys.setprofile(None)
        assert len(made) <= most
