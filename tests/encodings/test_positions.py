"""Positions: what they are made of, what is refused, what is widened."""

import collections

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax import positions as pos
from pe_jax.naive.distances import t5
from pe_jax.numerics.position_arrays import as_positions, check_exact
from tests.encodings.common import LENGTH, WIDTH, check_attention, random_params

_per_segment = jax.jit(pos.per_segment)


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.int32, (2, 12), elements=st.integers(-1, 2)))
def test_positions_restart_where_the_segment_changes(segments):
    want = np.zeros_like(segments)
    for b, t in np.ndindex(2, 12):
        if t and segments[b, t] == segments[b, t - 1]:
            want[b, t] = want[b, t - 1] + 1
    np.testing.assert_array_equal(_per_segment(segments), want)
    np.testing.assert_array_equal(_per_segment(segments[0]), want[0])


def test_contiguous_counts_from_the_offset_and_may_be_empty():
    np.testing.assert_array_equal(pos.contiguous(3, 7), [7, 8, 9])
    np.testing.assert_array_equal(jax.jit(lambda n: pos.contiguous(3, n))(7), [7, 8, 9])
    assert pos.contiguous(0).shape == pos.per_segment(np.zeros((2, 0), np.int32)).shape[1:] == (0,)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_integers_of_any_width_become_int32_before_they_can_wrap(dtype):
    for make in (np.asarray, jnp.asarray):
        if make is jnp.asarray and dtype == "int64":
            continue  # JAX has none by default
        ours = as_positions(make([0, 127], dtype))
        assert ours.dtype == jnp.int32
        np.testing.assert_array_equal(ours[0] - ours[1], -127)


@pytest.mark.parametrize("value, worst", [([0, 2**31], 2**31), ([-(2**31) - 1, 3], -(2**31) - 1)])
def test_an_integer_beyond_int32_is_named(value, worst):
    with pytest.raises(ValueError, match=f"^k_positions: {worst} does not fit int32"):
        as_positions(np.array(value), name="k_positions")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool", "complex64"])
@pytest.mark.parametrize("real", [False, True])
def test_half_precision_and_what_is_no_number_line_are_refused(dtype, real):
    for wrap in (lambda f: f, jax.jit):  # from the dtype alone: under a trace too
        with pytest.raises(TypeError, match=f"positions has dtype {dtype}; pass integers"):
            wrap(lambda p: as_positions(p, real=real))(jnp.zeros(3, dtype))


def test_float32_is_for_real_positions_only():
    assert as_positions(np.float32([0.5]), real=True).dtype == jnp.float32
    with pytest.raises(TypeError, match="positions has dtype float32; pass integers$"):
        as_positions(np.float32([0.5]))


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**24, -(2.0**24)])
def test_floats_that_are_not_finite_or_not_exact_are_refused(value):
    with pytest.raises(ValueError, match="positions: .* finite|positions: .* below 2\\*\\*24"):
        as_positions(np.float32([1, value]), real=True)


@pytest.mark.parametrize("value", [2**24, -(2**24), -(2**31)])
def test_check_exact_refuses_what_float32_merges(value):
    check_exact(np.array([2**24 - 1, 1 - 2**24], np.int32))
    check_exact(np.zeros(0, np.int32))
    with pytest.raises(ValueError, match=f"positions: {value} is not exact in float32"):
        check_exact(np.array([5, value], np.int32))


# Schemes that change the positions.

KEYS = jax.random.split(jax.random.key(5), 6000)


def shares(rows) -> np.ndarray:
    """How often each distinct row occurs."""
    return np.unique(np.asarray(rows), axis=0, return_counts=True)[1] / len(rows)


def test_randomized_positions_are_any_ordered_set_as_likely_as_another():
    drawn = np.asarray(jax.vmap(lambda k: pos.randomized(k, 2, 5))(KEYS))
    assert drawn.dtype == np.int32 and drawn.min() == 0 and drawn.max() == 4
    assert (np.diff(drawn) > 0).all()
    assert len(shares(drawn)) == 10  # 5 over 2
    np.testing.assert_allclose(shares(drawn), 0.1, atol=0.02)
    np.testing.assert_array_equal(pos.randomized(KEYS[0], 7, 7), range(7))
    assert pos.randomized(KEYS[0], 0, 7).shape == (0,)
    np.testing.assert_array_equal(pos.randomized(KEYS[1], 3, 99), pos.randomized(KEYS[1], 3, 99))


def pose_law(n: int, maximum: int, chunks: int) -> collections.Counter:
    """How likely each list of positions is, from the paper's formula: piece by piece, all draws."""
    law, longest = collections.Counter(), -(-n // chunks)

    def add(begin, skip, left, places, share):
        if left == 1:
            law[*places, *range(begin + skip, n + skip)] += share
            return
        for size in range(1, longest + 1):
            piece = range(begin + skip, min(begin + size, n) + skip)
            skips = range(skip, maximum - n + 1)
            for further in skips:
                part = share / longest / len(skips)
                add(begin + size, further, left - 1, (*places, *piece), part)

    add(0, 0, chunks, (), 1.0)
    return law


@pytest.mark.parametrize("n, maximum, chunks", [(3, 5, 2), (4, 6, 3)])
def test_pose_moves_pieces_as_likely_as_the_papers_formula(n, maximum, chunks):
    law = pose_law(n, maximum, chunks)
    assert np.isclose(sum(law.values()), 1)
    ids = np.repeat(np.int32([4, 1]), [n, 1])  # documents in a row: each as if alone
    rows = np.asarray(jax.jit(jax.vmap(lambda k: pos.pose(k, ids, maximum, chunks)))(KEYS))
    found = collections.Counter(map(tuple, rows[:, :n].tolist()))
    assert found.keys() == law.keys() and rows.dtype == np.int32 and not rows[:, n].any()
    for places, share in law.items():
        assert abs(found[places] / len(rows) - share) < 0.02, places


def test_pose_cuts_each_document_and_fills_the_target_alone():
    ids, maximum = np.repeat(np.int32([4, 1]), [60, 40]), 1000
    drawn = np.asarray(jax.jit(jax.vmap(lambda k: pos.pose(k, ids, maximum, 4)))(KEYS[:500]))
    for rows in (drawn[:, :60], drawn[:, 60:]):
        steps = np.diff(rows)
        assert (rows[:, 0] == 0).all() and (steps >= 1).all() and ((steps > 1).sum(1) <= 3).all()
        last = maximum - rows.shape[1]  # the farthest that a document may be moved
        assert (rows[:, -1] - rows.shape[1] + 1 <= last).all() and rows.max() > 0.99 * maximum
    assert (drawn[:, 59] - drawn[:, 99] != 20).mean() > 0.9  # moved separately
    np.testing.assert_array_equal(pos.pose(KEYS[0], ids[:60], 60), range(60))
    np.testing.assert_array_equal(pos.pose(KEYS[1], ids, 999), pos.pose(KEYS[1], ids, 999))


def test_random_floats_are_the_order_statistics_of_a_uniform_range():
    """Of n uniform numbers in [0, 1), number i has mean i/(n + 1)."""
    drawn = np.asarray(jax.vmap(lambda k: pos.random_floats(k, 4, 50.0))(KEYS))
    spread = (drawn.std(0) / len(KEYS) ** 0.5).max()
    np.testing.assert_allclose(drawn.mean(0), 50 * np.arange(1, 5) / 5, atol=4 * spread)
    assert drawn.dtype == np.float32 and (np.diff(drawn) >= 0).all()
    ids = np.int32([3, 3, 1, 1])
    of_two = np.asarray(jax.vmap(lambda k: pos.random_floats(k, 4, 50.0, ids))(KEYS))
    np.testing.assert_array_equal(np.sort(of_two), drawn)  # the same numbers, dealt to the two
    np.testing.assert_allclose(of_two.mean(0)[::2], 50 / 3, atol=4 * spread)
    np.testing.assert_allclose(pos.evenly_spaced(ids, 5, 50.0), [5, 15, 5, 15], rtol=1e-6)
    np.testing.assert_allclose(pos.evenly_spaced(ids, 1, 50.0), [12.5, 37.5] * 2, rtol=1e-6)


def test_each_segment_has_a_randomized_set_of_its_own_as_if_it_were_alone():
    ids = np.array([4, 4, 1])
    drawn = np.asarray(jax.vmap(lambda k: pos.randomized(k, 3, 5, ids))(KEYS))
    assert (drawn[:, 0] < drawn[:, 1]).all()
    assert len(shares(drawn[:, :2])) == 10 and len(shares(drawn[:, 2:])) == 5
    np.testing.assert_allclose(shares(drawn[:, :2]), 0.1, atol=0.02)
    np.testing.assert_allclose(shares(drawn[:, 2:]), 0.2, atol=0.02)


def test_a_shift_is_one_for_all_and_each_is_as_likely_up_to_the_maximum_included():
    places = np.int32([0, 1, 5, -2])
    drawn = np.asarray(jax.vmap(lambda k: pos.shifted(k, places, 3))(KEYS)) - places
    assert drawn.dtype == np.int32 and (drawn == drawn[:, :1]).all()
    assert set(drawn[:, 0]) == {0, 1, 2, 3}
    np.testing.assert_allclose(shares(drawn), 0.25, atol=0.03)
    np.testing.assert_array_equal(pos.shifted(KEYS[0], places, 0), places)


def test_cape_scales_what_it_has_shifted_once_and_each_token_apart():
    places = np.arange(40)
    fields = {"global_shift": 3.0, "local_shift": 0.5, "scaling": 1.2}
    drawn = np.asarray(jax.vmap(lambda k: pos.cape(k, places, **fields))(KEYS), np.float64)
    assert drawn.dtype == np.float64 and (np.diff(drawn) > 0).all()  # neighbours keep their order
    scale, shift = np.polynomial.polynomial.polyfit(places, drawn.T, 1)[::-1]
    shift = shift / scale
    # within what the local shifts leave uncertain in a line through 40 points
    for found, reach, slack in ((np.log(scale), np.log(1.2), 0.02), (shift, 3.0, 0.4)):
        ordered = np.sort(found)
        assert abs(ordered[0] + reach) < slack and abs(ordered[-1] - reach) < slack
        even = reach * (2 * (np.arange(len(found)) + 0.5) / len(found) - 1)
        np.testing.assert_allclose(ordered, even, atol=slack)
    lone = {"global_shift": 0, "scaling": 1}
    local = jax.vmap(lambda k: pos.cape(k, places, **lone))(KEYS) - places
    assert local.dtype == np.float32 and 0.49 < np.abs(local).max() <= 0.5 + 1e-5
    assert np.abs(np.corrcoef(local[:, 0], local[:, 1])[0, 1]) < 0.05
    np.testing.assert_array_equal(pos.cape(KEYS[0], places, 0, 0, 1), places.astype(np.float32))


def test_augmented_positions_are_moved_and_stretched_on_each_axis_and_rescaled_on_all():
    """Whoever draws: (p + s)·j·r, with s and j of each axis and r of both, log-uniform."""
    places = np.asarray(pos.grid(3, 4, normalized=True))
    fields = {"shift": 0.3, "jitter": 1.5, "rescale": 2.0}
    drawn = np.asarray(jax.vmap(lambda k: pos.augmented(k, places, **fields))(KEYS), np.float64)
    found = recovered(places, drawn)
    for values, reach in ((found["shift"].T, 0.3), (found["difference"], 2 * np.log(1.5))):
        assert np.abs(values).max() <= reach + 1e-5
    assert np.abs(found["mean"]).max() <= np.log(1.5) + np.log(2.0) + 1e-5
    for values in found["shift"].T:
        even = 0.3 * (2 * (np.arange(len(KEYS)) + 0.5) / len(KEYS) - 1)
        np.testing.assert_allclose(np.sort(values), even, atol=0.02)
    assert np.abs(np.corrcoef(found["shift"].T)[0, 1]) < 0.1
    alone = jax.vmap(lambda k: pos.augmented(k, places, rescale=2.0))(KEYS)
    factor = recovered(places, np.asarray(alone, np.float64))
    assert np.abs(factor["shift"]).max() < 1e-6 and np.abs(factor["difference"]).max() < 1e-6
    even = np.log(2.0) * (2 * (np.arange(len(KEYS)) + 0.5) / len(KEYS) - 1)
    np.testing.assert_allclose(np.sort(factor["mean"]), even, atol=0.05)
    same = pos.augmented(KEYS[0], places)
    assert same.dtype == np.float32
    np.testing.assert_array_equal(same, places)


def recovered(places: np.ndarray, drawn: np.ndarray) -> dict[str, np.ndarray]:
    """What [N, T, 2] were drawn with: shifts, mean and difference of the logarithms of scales."""
    spread = np.ptp(places, axis=0)
    scale = np.ptp(drawn, axis=1) / spread
    shift = drawn[:, 0] / scale - places[0]
    first, second = np.log(scale).T
    return {"shift": shift, "mean": (first + second) / 2, "difference": first - second}


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda k: pos.augmented(k, [[0, 0]], shift=-1), ("shift=-1", "at least 0")),
        (lambda k: pos.augmented(k, [[0, 0]], jitter=0.5), ("jitter=0.5", "at least 1")),
        (lambda k: pos.augmented(k, [[0, 0]], rescale=np.inf), ("rescale=inf", "at least 1")),
        (lambda k: pos.augmented(k, 0), ("positions=", "axes last")),
        (lambda k: pos.randomized(k, 8, 7), ("maximum=7", "at least the length 8")),
        (lambda k: pos.randomized(k, 8, 9.0), ("maximum=9.0", "at least the length 8")),
        (lambda k: pos.randomized(k, -1, 9), ("length=-1", "at least 0")),
        (lambda k: pos.pose(k, [0, 0], 1), ("maximum=1", "at least the length 2")),
        (lambda k: pos.pose(k, [0, 0], 9, chunks=1), ("chunks=1", "at least 2")),
        (lambda k: pos.pose(k, [[0, 0]], 9), ("segments=(1, 2)", "ids [T]")),
        (lambda k: pos.random_floats(k, -1, 9.0), ("length=-1", "at least 0")),
        (lambda k: pos.random_floats(k, 8, np.inf), ("maximum=inf", "above 0")),
        (lambda k: pos.evenly_spaced(np.zeros(3, int), 0, 9.0), ("trained_length=0", "at least 1")),
        (lambda k: pos.shifted(k, [0], -1), ("maximum=-1", "at least 0")),
        (lambda k: pos.cape(k, [0], global_shift=-1), ("global_shift=-1", "at least 0")),
        (lambda k: pos.cape(k, [0], local_shift=np.nan), ("local_shift=nan", "at least 0")),
        (lambda k: pos.cape(k, [0], scaling=0.9), ("scaling=0.9", "at least 1")),
        (lambda k: pos.bilevel([1], ()), ("separators=()", "token ids")),
        (lambda k: pos.bilevel([1], (1,), longest=0), ("longest=0", "at least 1, or None")),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, words):
    with pytest.raises(ValueError) as info:
        call(KEYS[0])
    assert all(word in str(info.value) for word in words) and "\n" not in str(info.value)


def test_a_shift_beyond_a_learned_table_is_not_clamped():
    encoding = pe_jax.make("learned", length=LENGTH + 3)
    params, x = random_params(encoding), np.zeros((LENGTH, WIDTH), np.float32)

    def added(key):
        return encoding.embed(params, x, pos.shifted(key, np.arange(LENGTH), 9))

    shifts = jax.vmap(lambda k: pos.shifted(k, 0, 9))(KEYS[:50])
    last = np.asarray(jax.jit(jax.vmap(added))(KEYS[:50]))[:, -1, 0]
    np.testing.assert_array_equal(np.isnan(last), np.asarray(shifts) > 3)
    assert 0 < np.isnan(last).sum() < 50


@pytest.mark.parametrize(
    "spec, row",
    [
        ("clipped(clip=9)", lambda d: max(-9, min(d, 9))),
        ("t5(num_buckets=8, max_distance=30, bidirectional=True)", lambda d: t5(d, 8, 30, True)),
        ("shaw(clip=9)", lambda d: max(-9, min(d, 9))),
    ],
)
def test_randomized_distances_reach_the_negative_side_of_tables(spec, row):
    """A gather that is clamped to row 0 from below would hide that there is no such side."""
    (encoding,) = pe_jax.parse(spec)
    params, places = random_params(encoding), np.asarray(pos.randomized(KEYS[2], LENGTH, 60))
    ahead = (places[:, None] - places)[np.triu_indices(LENGTH, 1)]
    assert len({row(d) for d in ahead.tolist()}) > 2  # keys to the right have several
    check_attention(encoding, params, q_positions=places)


@pytest.mark.parametrize(
    "ids, want",
    [
        ([0, 0, 1, 1, 1, -1], [0, 1, 0, 1, 2, 0]),
        ([5, 5, 2, 2, 2, 7], [0, 1, 0, 1, 2, 0]),
        ([0, 1, 0, 0, 1, 2], [0, 0, 2, 3, 3, 0]),
    ],
    ids=["padded", "in runs", "in turns"],
)
def test_positions_since_the_first_token_of_a_document(ids, want):
    np.testing.assert_array_equal(pos.since_first(np.array([ids, ids])), [want, want])
