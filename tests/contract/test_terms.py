"""Laws of the terms themselves: tiles and tables of them, their types, horizons and scale."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import pe_jax
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import (
    DistanceFormula,
    DistanceTerm,
    Scale,
    ScoreTerm,
    Side,
    Tokens,
    select,
)
from pe_jax.engines import reference
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.decoding import one_token
from pe_jax.engines.tiled import TileSizes, passes, schedule
from pe_jax.engines.tiled.plan import NonDiff, Operands, fill_tokens, make_plan, with_tables
from tests import util
from tests.contract.laws import ONE_AXIS, each, values
from tests.util import DIMS, E, H, T, assert_close, contiguous


@functools.cache
def tile_and_whole(case):
    rows, columns = util.BLOCKS

    def both(params, q, q_pos, k_pos, i, j):
        def cut(x, axis, start, size):
            return jax.lax.dynamic_slice_in_dim(x, start, size, axis)

        of_queries, of_keys, pairs = values(case, params, q, q, q_pos, k_pos)
        whole = (
            [cut(x, 0, i, rows) for x in of_queries],
            [cut(x, 0, j, columns) for x in of_keys],
            [cut(cut(x, 1, i, rows), 2, j, columns) for x in pairs],
        )
        at_q, at_k = cut(q_pos, 0, i, rows), cut(k_pos, 0, j, columns)
        at_rows, at_columns = cut(q, 0, i, rows), cut(q, 0, j, columns)
        return whole, values(case, params, at_rows, at_columns, at_q, at_k)

    return util.jit(both)


@each(util.SINGLE)
@given(st.data())
def test_a_tile_of_a_term_is_the_term_of_the_tile(case, data):
    q_pos, k_pos = (data.draw(util.positions(case, (T,))) for _ in range(2))
    i, j = (data.draw(st.integers(0, T - size)) for size in util.BLOCKS)
    q = util.noise(T, H, E)
    params = util.random_params(case.encoding)
    whole, tile = tile_and_whole(case)(params, q, q_pos, k_pos, i, j)
    assert_close(tile, whole, 1e-6)


@each(util.CASES)
def test_biases_are_float32_and_tokens_keep_their_type(case):
    places = util.spread(case, np.zeros(T, np.int32))
    params = util.random_params(case.encoding)
    q = jnp.zeros((T, H, E), jnp.bfloat16)
    *tokens, pairs = jax.eval_shape(lambda: values(case, params, q, q, places, places))
    assert {x.dtype for side in tokens for x in side} == {jnp.dtype(jnp.bfloat16)}
    assert {x.dtype for x in pairs} <= {jnp.dtype(jnp.float32)}
    assert all(x.shape[0] in (1, H) and x.shape[1:3] == (T, T) for x in pairs)


def evaluated(case, kind, what):
    """`what` of each of its terms of a kind, compiled, with values for arrays."""

    def evaluate(params):
        return [what(term) for term in select(case.encoding.terms(params, DIMS), kind)]

    return util.jit(evaluate)(util.random_params(case.encoding))


@each([c for c in util.CASES if any(t.horizon for t in util.terms(c.encoding, DistanceTerm))])
def test_past_the_horizon_nothing_changes(case):
    def past(term):
        low, high = term.horizon or (0, 0)
        steps = np.append(np.arange(300), 2**20)
        return term.horizon and term.at(np.stack([low - steps, high + steps]).astype(np.int32))

    for biases in evaluated(case, DistanceTerm, past):
        if biases is not None:
            np.testing.assert_array_equal(biases, np.take(biases, [0] * 301, axis=2))


def read_by_tiles(term, causal, sizes, base):
    """Its values at the pairs of each tile that is visited, as the tile reads them from a table.

    By the first query and key of the tile. With a `base` the tiles are of two runs of a ring.
    """
    spec = AttentionSpec(DIMS, causal, aligned=True, contiguous=True)
    on_ring = base is not None
    plan = make_plan(spec, (term,), (1, H, T), (H, T), sizes, segments=False, on_ring=on_ring)
    operands = with_tables(plan, Operands(None, None, None, None, (term,)), base)
    group = passes.Group(plan, operands, NonDiff(None, None, base), (), None)
    with jax.ensure_compile_time_eval():
        q, k = (jnp.arange(T, dtype=jnp.int32)[None] + first for first in (base or 0, 0))
        tokens = fill_tokens(plan, Tokens(q, q), Tokens(k, k))
        visits = jax.tree.map(np.asarray, schedule.visits(plan, *tokens))
    (rows, columns), tiles = plan.grid[:2], {}
    pairs = np.arange(columns) - np.arange(rows)[:, None]
    for stage, visit in zip(schedule.stages(plan), visits, strict=True):
        for i, count in enumerate(visit.counts):
            for j in map(int, visit.columns[i, :count]):
                tile = passes.Tile(stage, i, j)
                (line,) = group.lines(group.cut(tile), tile)
                entries = np.clip(line.offset + pairs, 0, line.values.shape[1] - 1)
                tiles[i * rows, j * columns] = line.values[:, entries]
    return tiles


def joined(tiles) -> np.ndarray:
    """Values at all pairs, [H or 1, T, T, …]: NaN where there is no tile."""
    heads, _, _, *width = next(iter(tiles.values())).shape
    whole = np.full((heads, 2 * T, 2 * T, *width), np.nan, np.float32)
    for (i, j), x in tiles.items():
        whole[:, i : i + x.shape[1], j : j + x.shape[2]] = x
    return whole[:, :T, :T]


@pytest.mark.parametrize("causal", [True, False])
@each([c for c in ONE_AXIS if util.terms(c.encoding, DistanceTerm)])
def test_a_table_of_a_term_is_the_term(case, causal):
    """What tiles and decoding read: each visible pair of each tile, and each row of a cache."""
    # these multiply matrices for the distances, which may round by their number
    tol = 1e-6 if any(name in case.name for name in ("transformer_xl", "dpb")) else 0
    apart = np.arange(T)[:, None] - np.arange(T)
    squares, others = TileSizes(*util.BLOCKS), TileSizes(4, 8)
    calls = (squares, None), (others, None), (squares, 3), (squares, -3)

    def read(term):
        (row,) = one_token.tables((term,), T)
        row = row[:, -1 - np.minimum(np.arange(T), row.shape[1] - 1)]
        tiles = [read_by_tiles(term, causal, *call) for call in calls]
        wanted = [term.at(apart + (base or 0)) for _, base in calls]
        return row, term.at(np.arange(T)), tiles, wanted

    for row, past, tiles, wanted in evaluated(case, DistanceTerm, read):
        assert_close(row, past, tol)
        for (_, base), got, want in zip(calls, tiles, wanted, strict=True):
            visible = (apart + (base or 0) >= 0) | (not causal)
            assert_close(joined(got)[:, visible], want[:, visible], tol)


@each([c for c in util.CASES if any(t.decays for t in util.terms(c.encoding, DistanceFormula))])
def test_a_bias_that_decays_does_not_rise_with_the_distance(case):
    away = np.concatenate([np.arange(300), np.geomspace(300, 2**23, 50)]).astype(np.int32)
    for biases in evaluated(case, DistanceFormula, lambda term: term.at(np.stack([away, -away]))):
        assert (np.diff(biases, axis=-1) <= 0).all() and np.isfinite(biases).all()


@each([c for c in util.SINGLE if util.terms(c.encoding, ScoreTerm)])
def test_the_scale_multiplies_the_scaled_kinds_and_no_others(case):
    """In a sum it may be another part's."""
    spec, x = AttentionSpec(DIMS, True), util.inputs()[0]
    places = util.spread(case, contiguous(1, T))
    raw = np.swapaxes(x, 1, 2)

    def scores(term):
        states = (None, term.state and jnp.swapaxes(term.state(util.flat(x), places), 1, 2))
        side = Side(0 * raw, raw, states, Tokens(places, places))  # q·k = 0
        return [reference.scores(spec, (Scale(scale), term), side, side) for scale in (1.0, 2.0)]

    scaled = [term.scaled for term in util.terms(case.encoding, ScoreTerm)]
    for double, (once, twice) in zip(scaled, evaluated(case, ScoreTerm, scores), strict=True):
        assert np.abs(once).max() > 0
        assert_close(twice, np.asarray(once) * (2 if double else 1), 1e-6)


@each([c for c in util.CASES if util.terms(c.encoding, DistanceFormula)])
def test_a_profile_is_the_same_head_by_head(case):
    """Engines and kernels give it one head's numbers at a time."""
    away = np.arange(-300, 300, dtype=np.int32)

    def both(term):
        assert term.numbers.dtype == jnp.float32 and term.numbers.shape[0] == H
        return [term.fn(list(row), away) for row in term.numbers], list(term.at(away))

    for by_head, together in evaluated(case, DistanceFormula, both):
        assert_close(by_head, together, 1e-6)


@kinds.kind
class OnlyValues(kinds.ByDistance):
    """A kind that says what it is at a distance, and not what is done with it."""

    def at(self, distance):
        return distance[None].astype(jnp.float32)


@pytest.mark.parametrize("engine", ["dense", "tiled", None])
def test_a_kind_of_which_no_engine_knows_what_it_does_is_refused(engine):
    q = jnp.ones((1, 3, 2, 4))
    with pytest.raises(ValueError, match="has no OnlyValues"):
        pe_jax.attention(q, q, q, terms=(OnlyValues(),), implementation=engine)


def test_one_term_replaces_the_products_and_no_view_goes_with_it():
    state = kinds.State(fade, (), 8)
    faded, path = kinds.ChannelDecay(state), kinds.PathProduct(state)
    rotation = kinds.Rotation(None, None, views=kinds.Views((2,)))
    with pytest.raises(ValueError, match="2 terms replace q·k; keep at most one"):
        kinds.check((faded, path))
    with pytest.raises(ValueError, match="PathProduct replaces q·k, which several views"):
        kinds.check((rotation, path))


def fade(arrays, x, before):
    raise AssertionError("a check computes nothing")
