"""The law of the naive forms: the dense engine gives what NumPy gives, scheme by scheme."""

import functools

import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from tests import util
from tests.contract.laws import each
from tests.util import B, E, H, T

SCALED = "rope(scaling=yarn(factor=4, original_length=8), fraction=0.5)"
CASES = [*util.SINGLE, util.Case(SCALED, pe_jax.parse(SCALED)[0])]
KINDS = util.first_of_kinds(CASES)  # that no positions are given is a thing of kinds


def shuffled(case: util.Case) -> np.ndarray:
    """Positions in any order, in each row another; where they may not run backwards, repeated."""
    rng = np.random.default_rng(0)
    if case.encoding.claims.causal_only:
        return np.sort(rng.integers(0, T, (B, T), dtype=np.int32))
    return rng.permuted(util.contiguous(B, T), axis=1)


@each(CASES)
@pytest.mark.parametrize("order", ["shuffled", "contiguous"])
def test_the_dense_engine_equals_the_naive_form(case, order):
    params, (q, k, v) = util.random_params(case.encoding), util.inputs()
    places = util.contiguous(B, T) if order == "contiguous" else shuffled(case)
    places = util.spread(case, places)
    ours, _ = util.run(case, "dense", positions=places)
    if order == "contiguous" and case.encoding.claims.axes == 1 and case in KINDS:
        run = util.jit(functools.partial(util.layer, case, implementation="dense"))
        util.assert_close(run(params, q, k, v, None, np.zeros((B, T), np.int32)), ours)
    name, *form = util.naive_form(case.encoding, params)
    for row in range(B):
        x = q[row].reshape(T, H * E) + naive.inputs(name, places[row], H * E, *form)
        options = {"positions": places[row], "x": x, "causal": case.causal}
        want = naive.attention(name, x.reshape(T, H, E), k[row], v[row], *form, **options)
        util.assert_close(ours[row], want)


def test_every_scheme_has_a_naive_form():
    assert naive.SCORES.keys() == pe_jax.ENCODINGS.keys()
    others = naive.INPUTS.keys() | naive.VALUES.keys() | naive.AVERAGES.keys() | naive.SINKS.keys()
    assert others < naive.SCORES.keys()


def test_what_a_scheme_does_not_have_is_an_error():
    q, k, v = (x[0] for x in util.inputs())
    table = np.zeros((H, 32))
    naive.attention("t5", q, k, v, {"table": table}, {"max_distance": 64, "stddev": 1})
    for params, settings, words in (
        ({"table": table, "tabel": table}, {}, "t5 has no tabel"),
        ({"table": table}, {"max_distanc": 64}, "t5 has no max_distanc"),
        ({}, {"max_distance": 64}, "table"),
    ):
        with pytest.raises(TypeError, match=words):
            naive.attention("t5", q, k, v, params, settings)


@pytest.mark.parametrize("place", [-1, 3])
def test_what_a_table_does_not_hold_is_an_error(place):
    q, k, v = (x[0, :1] for x in util.inputs())
    places, table = np.array([[place, 0]]), np.zeros((3, H * E))
    for name, positions, params in (
        ("learned", places[:, 0], {"table": table}),
        ("learned_2d", places, {"rows": table, "columns": table}),
        ("learned_grid", places, {"table": table[:, None]}),
    ):
        with pytest.raises(IndexError, match=f"{place} .* the table has 0 … 2"):
            naive.inputs(name, positions, H * E, params)
    u = np.zeros((H * E, H, E))
    with pytest.raises(IndexError, match=f"{place} .* the table has 0 … 2"):
        params = {"table": table, "u_q": u, "u_k": u}
        naive.attention("tupe", q, k, v, params, positions=places[:, 0])
    far = naive.make_row(*(x[0, :2] for x in util.inputs()[:2]), [[0, 0], [place, 0]])
    with pytest.raises(IndexError):
        naive.bias.swin(far, np.zeros((H, 1)), height=1, width=1)
