"""The small case that stands for a call: which calls it stands for, and what numbers it has."""

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.terms import (
    DistanceFormula,
    OfSomeHeads,
    Rotation,
    State,
    TokenBias,
    select,
)
from pe_jax.engines.kernels import small_case
from tests.calls import LENGTH, T5, answer, drawn, operands
from tests.util import B, E, H, K


def key(spec="alibi", **options):
    """What tells the small case of a call from others."""
    return answer(lambda *call: small_case.key(small_case.shrink(41, *call)), spec, **options)


def test_what_is_the_same_to_kernels_is_one_case():
    assert key("nope") == key("rope") == key("rope(base=5e5)")
    assert key("sink") == key("nope", return_lse=True)
    assert key() == key(qkv=operands(500)) == key(window=None)
    assert key(window=200) == key(window=100) != key()


@pytest.mark.parametrize(
    "spec, options",
    [
        ("nope", {}),
        ("alibi+rope", {"causal": False}),
        ("alibi", {"window": 9}),
        ("alibi", {"qkv": operands(dtype="bfloat16")}),
        ("alibi", {"qkv": operands(30)}),
        ("alibi", {"q_segments": np.zeros((B, LENGTH), int)}),
        ("alibi", {"q_positions": np.arange(LENGTH)}),
        ("alibi", {"q_positions": np.arange(LENGTH, dtype=np.float32)}),
        ("alibi", {"logit_cap": 3.0}),
        ("alibi", {"return_lse": True}),
        ("alibi+sink", {}),
        ("alibi+" + T5, {}),
        ("kerple", {}),
        ("kerple(kind='power')", {}),
    ],
)
def test_what_differs_to_kernels_is_another(spec, options):
    assert key(spec, **options) != key()


@pytest.mark.parametrize(
    "spec, options",
    [
        ("rerope(window=4096)", {}),
        ("rerope(window=4096)", {"window": 200, "sinks": 4}),
        ("dual_chunk(chunk_size=6144,local_size=512)", {}),
    ],
)
def test_every_view_scores_some_pairs_and_sinks_are_seen(spec, options):
    case = drawn(spec=spec, length=None, **options)
    views = next(term.views for term in case.terms if isinstance(term, Rotation))
    rows, columns = case.q.tokens.positions[0], case.k.tokens.positions[0]
    visible = np.asarray(case.spec.mask(case.q.tokens, case.k.tokens))[0, 0]
    seen = np.asarray(views.of(rows[:, None], columns))[visible]
    assert {*seen.tolist()} == {*range(views.count)}
    assert visible[-1, 0] and (visible[-1].all() or options)


# Numbers.


def steeper(numbers, distance):
    return -2 * numbers[0] * jnp.abs(distance)


def growing(numbers, distance):
    return numbers[0] * jnp.abs(distance)


def with_root(numbers, distance):
    return jnp.sqrt(-numbers[0]) * jnp.cos(distance.astype(jnp.float32))


def never(numbers, distance):
    return jnp.sqrt(-1 - numbers[0] ** 2) * distance


def test_numbers_are_of_the_sign_that_a_formula_needs():
    for fn, decays, sign in ((steeper, True, 1), (growing, True, -1), (with_root, False, -1)):
        (term,) = drawn((DistanceFormula(fn, jnp.zeros((H, 1)), decays=decays),)).terms
        assert (sign * term.numbers > 0).all(), fn.__name__
    with pytest.raises(ValueError, match="its DistanceFormula is finite, or decays"):
        drawn((DistanceFormula(never, jnp.zeros((H, 1))),))


def fading(q_state, k_state):
    return q_state[0] - k_state[0]


def numbers_of(arrays, x, before):
    return jnp.zeros((*x.shape[:-1], H, 1))


def test_states_fall_where_a_bias_of_sums_needs_it():
    terms = (TokenBias(fading, State(numbers_of, None, width=1), decays=True),)
    case = drawn(terms)
    assert (np.diff(case.q.states[0], axis=2) < 0).all()
    np.testing.assert_array_equal(case.q.states[0], case.k.states[0])


def test_positions_restart_where_those_of_the_call_do():
    tokens = drawn((), "fire", q_segments=np.zeros((2, LENGTH), np.int32)).q.tokens
    restarted = pe_jax.positions.per_segment(tokens.segments)
    np.testing.assert_array_equal(tokens.positions, restarted)
    assert tokens.positions.max() < len(tokens.index[0]) - 1


def test_a_term_of_some_heads_is_that_of_all_heads_of_the_case():
    def shrunk(spec, terms, *sides):
        some = terms[0].for_heads(small_case.FirstHeads(2))
        return terms[0].fn, small_case.shrink(41, spec, (some,), *sides).terms[0].fn

    whole, own = answer(shrunk, "fire")
    assert own == OfSomeHeads(whole, small_case.FirstHeads(H), -3)


def test_the_case_is_small_and_of_the_same_kind():
    case = drawn((), q_segments=np.zeros((B, LENGTH), int), window=100)
    assert case.q.x.shape == (2, H, 41, E) and case.k.x.shape == (2, K, 41, E)
    ids = np.asarray(case.q.tokens.segments)
    assert {*ids.ravel()} == {-1, 0, 1} and case.spec.window == 13
    assert not select(case.terms, DistanceFormula)
