"""Laws of the terms themselves: tiles and tables of them, their types, horizons and scale."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

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
from tests import util
from tests.contract.laws import each, values
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


def distance_terms(case) -> list:
    """With values for arrays."""
    return select(case.encoding.terms(util.random_params(case.encoding), DIMS), DistanceTerm)


@each([c for c in util.CASES if any(t.horizon for t in util.terms(c.encoding, DistanceTerm))])
def test_past_the_horizon_nothing_changes(case):
    for term in distance_terms(case):
        if term.horizon is None:
            continue
        low, high = term.horizon
        for edge, past in ((low, -np.arange(300)), (high, np.arange(300))):
            away = np.concatenate([edge + past, [edge + 2**20 * np.sign(past[1])]])
            found = term.at(away.astype(np.int32))
            np.testing.assert_array_equal(found, np.take(found, [0] * len(away), axis=1))


@each([c for c in util.CASES if util.terms(c.encoding, DistanceTerm)])
def test_a_table_of_a_term_is_the_term(case):
    """What tiles, decoding and kernels read."""
    if case.encoding.claims.axes > 1:
        pytest.skip("distances of several axes have no table")
    away = np.arange(-T, T + 1, dtype=np.int32)
    for term in distance_terms(case):
        table = term.tabled(-T, T)
        assert type(table) is type(term) and table.state == term.state
        assert_close(table.at(away), term.at(away), 0)


@each([c for c in util.CASES if any(t.decays for t in util.terms(c.encoding, DistanceFormula))])
def test_a_bias_that_decays_does_not_rise_with_the_distance(case):
    away = np.concatenate([np.arange(300), np.geomspace(300, 2**23, 50)]).astype(np.int32)
    for term in select(
        case.encoding.terms(util.random_params(case.encoding), DIMS), DistanceFormula
    ):
        for side in (away, -away):
            bias = term.at(side)
            assert (np.diff(bias, axis=-1) <= 0).all() and np.isfinite(bias).all()


@each([c for c in util.SINGLE if util.terms(c.encoding, ScoreTerm)])
def test_the_scale_multiplies_the_scaled_kinds_and_no_others(case):
    """In a sum it may be another part's."""
    spec, x = AttentionSpec(DIMS, True), util.inputs()[0]
    places = util.spread(case, contiguous(1, T))
    raw = jnp.swapaxes(jnp.asarray(x), 1, 2)
    for term in select(case.encoding.terms(util.random_params(case.encoding), DIMS), ScoreTerm):
        states = (None, term.state and jnp.swapaxes(term.state(util.flat(x), places), 1, 2))
        side = Side(0 * raw, raw, states, Tokens(places, places))  # q·k = 0
        once, twice = (
            reference.scores(spec, (Scale(scale), term), side, side) for scale in (1.0, 2.0)
        )
        assert np.abs(once).max() > 0
        assert_close(twice, np.asarray(once) * (2 if term.scaled else 1), 1e-6)


@each([c for c in util.CASES if util.terms(c.encoding, DistanceFormula)])
def test_a_profile_is_the_same_head_by_head(case):
    """Engines and kernels give it one head's numbers at a time."""
    away = np.arange(-300, 300, dtype=np.int32)
    for term in select(
        case.encoding.terms(util.random_params(case.encoding), DIMS), DistanceFormula
    ):
        assert term.numbers.dtype == jnp.float32 and term.numbers.shape[0] == H
        for head, row in enumerate(term.numbers):
            assert_close(term.fn(list(row), away), term.at(away)[head], 1e-6)
