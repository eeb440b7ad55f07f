import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.reporting import results, statistics
from experiments.reporting.results import Results, Run, Scheme
from experiments.reporting.verdicts import UNDECIDED, verdicts
from experiments.running.files.manifest import Manifest

WHERE = "non-overlapping"


def test_interval_and_p_are_those_of_a_paired_t_test():
    a, b = np.array([2.1, 2.3, 2.2, 2.4]), np.array([2.0, 2.35, 2.1, 2.2])
    found = statistics.estimate(a - b)
    half = stats.t.ppf(0.975, 3) * np.std(a - b, ddof=1) / 2
    np.testing.assert_allclose([found.low, found.high], np.mean(a - b) + [-half, half])
    np.testing.assert_allclose(found.p, stats.ttest_rel(a, b).pvalue)


def test_differences_are_paired_by_seed_over_identical_windows():
    scheme, reference = {1: [3.0, 5.0], 0: [1.0, 2.0]}, {0: [1.0, 1.0], 1: [3.0, 3.0]}
    assert statistics.crossed(scheme, reference).values == (0.5, 1.0)
    with pytest.raises(ValueError, match="seeds"):
        statistics.crossed({0: [1.0]}, reference)
    with pytest.raises(ValueError, match="windows"):
        statistics.crossed({0: [1.0], 1: [1.0]}, reference)
    with pytest.raises(ValueError, match="windows per seed"):
        statistics.crossed({0: [1.0], 1: [1.0, 2.0]}, {0: [1.0], 1: [1.0, 2.0]})


def by_seed(differences):
    """The losses of a scheme and of a reference that differ by these, by seed and window."""
    zero = np.zeros(len(differences[0]))
    return dict(enumerate(differences)), dict.fromkeys(range(len(differences)), zero)


def test_an_interval_has_the_variance_over_seeds_and_over_windows():
    x = np.random.default_rng(0).normal(size=(3, 4)) + np.arange(4)
    found = statistics.crossed(*by_seed(x))
    seeds, windows, mean = x.mean(1), x.mean(0), x.mean()
    squares = [
        sum(4 * (s - mean) ** 2 for s in seeds) / 2,
        sum(3 * (w - mean) ** 2 for w in windows) / 3,
        sum((x[i, j] - seeds[i] - windows[j] + mean) ** 2 for i in range(3) for j in range(4)) / 6,
    ]
    variance = squares[0] + squares[1] - squares[2]
    df = variance**2 / (squares[0] ** 2 / 2 + squares[1] ** 2 / 3 + squares[2] ** 2 / 6)
    t = mean / (variance / 12) ** 0.5
    np.testing.assert_allclose(found.df, df)
    np.testing.assert_allclose(found.p, 2 * stats.t.sf(abs(t), df))
    np.testing.assert_allclose((found.high - found.mean) * t / mean, stats.t.ppf(0.975, df))
    alone = statistics.estimate(seeds.tolist())
    assert found.high - found.low > 1.5 * (alone.high - alone.low) and found.values == alone.values
    half = stats.t.isf(0.025 / 2, df) * (variance / 12) ** 0.5
    tested = statistics.family({"x": found, "failed": None})[0]["x"]
    np.testing.assert_allclose([tested.low, tested.high], [mean - half, mean + half])


@pytest.mark.parametrize("x", [[[1.0], [2.0], [4.0]], [[1.0, 2.0]], [[1.0, 2.0], [2.0, 1.0]]])
def test_with_one_window_or_none_that_differs_the_interval_is_over_seeds(x):
    found, alone = statistics.crossed(*by_seed(x)), statistics.estimate(np.mean(x, 1).tolist())
    np.testing.assert_array_equal(dataclasses.astuple(found)[1:], dataclasses.astuple(alone)[1:])


@pytest.mark.parametrize("seeds, windows", [(3, 12), (5, 12), (5, 192)])
@pytest.mark.parametrize("seed_share", [0.0, 0.3, 1.0])
def test_intervals_cover_the_mean_over_other_seeds_and_windows(seeds, windows, seed_share):
    rng, draws, covered, alone = np.random.default_rng(0), 1000, 0, 0
    for _ in range(draws):
        x = seed_share * rng.normal(size=(seeds, 1)) + 0.3 * rng.normal(size=(seeds, windows))
        x = x + (windows / seeds) ** 0.5 * rng.normal(size=windows)
        both, over_seeds = statistics.crossed(*by_seed(x)), statistics.estimate(x.mean(1).tolist())
        covered += both.low <= 0 <= both.high
        alone += over_seeds.low <= 0 <= over_seeds.high
        assert both.high - both.low >= over_seeds.high - over_seeds.low
    assert 0.93 * draws <= covered <= 0.985 * draws
    assert seed_share or alone < 0.8 * draws


def test_holm_by_hand_and_what_has_no_number_counts_as_p_of_one():
    found = statistics.holm({"a": 0.01, "b": 0.04, "c": 0.03, "one seed": math.nan})
    np.testing.assert_allclose([found[n] for n in "abc"], [0.04, 0.09, 0.09])
    assert math.isnan(found["one seed"]) and statistics.holm({}) == {}


def test_holm_is_that_of_statsmodels():
    """`multipletests(p, method="holm")` of 0.15, with ties, 0 and 1."""
    p = [0.0, 0.012, 0.012, 0.3, 0.0065, 0.9, 1.0, 0.04]
    found = statistics.holm({str(i): x for i, x in enumerate(p)})
    np.testing.assert_allclose([*found.values()], [0, 0.072, 0.072, 0.9, 0.0455, 1, 1, 0.16])


def alone(values):
    """A difference that is a family by itself."""
    return statistics.family({"x": statistics.estimate(values)})[0]["x"]


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ([-0.3], "inconclusive", "one seed"),
        ([-0.30, -0.31], "inconclusive", "2 seeds; a claim needs 3"),
        ([0.0, 0.0], "inconclusive", "2 seeds; a claim needs 3"),
        ([0.0, 0.0, 0.0], "same", "identical numbers"),
        ([-0.2, -0.2, -0.2], "inconclusive", "all seeds gave the same number"),
        ([0.002, 0.002, 0.002], "inconclusive", "all seeds gave the same number"),
        ([-0.3, 0.1, -0.2], "inconclusive", ""),
        ([-0.30, -0.31, -0.29], "lower", ""),
        ([0.30, 0.31, 0.29], "higher", ""),
        ([0.002, 0.0021, 0.0019], "same", ""),  # off zero, and within ±0.01
        ([-0.001, 0.001, 0.0005], "same", ""),
        ([-0.008, -0.009, -0.0075], "inconclusive", "lower, but by less than 0.01 in the mean"),
    ],
)
def test_verdicts_in_words(values, kind, words):
    assert statistics.judge(alone(values), 0.01) == (kind, words)


def test_what_is_off_zero_is_a_claim_where_no_effect_was_declared():
    assert statistics.judge(alone([-0.008, -0.009, -0.0075])) == ("lower", "")
    assert statistics.judge(alone([0.0, 0.0, 0.0])) == ("same", "identical numbers")


def test_an_interval_off_zero_is_no_win_when_holm_says_otherwise():
    differences = {"x": statistics.estimate([-0.30, -0.41, -0.22]), "y": None, "z": None}
    x = differences["x"]
    (tested,), size = statistics.family(differences)[0].values(), 3
    assert x.high < 0 < tested.high and x.p < 0.05 < tested.holm == size * x.p
    assert statistics.judge(tested) == ("inconclusive", "not after Holm's correction")


def test_an_interval_leaves_zero_out_exactly_where_holm_does():
    rng, shortened, agree = np.random.default_rng(2), 0, {True: 0, False: 0}
    for _ in range(100):
        effects = rng.choice([0.0, 0.02, 0.04, 0.1], size=6)
        values = {
            str(k): statistics.estimate(rng.normal(e, 0.02, 5)) for k, e in enumerate(effects)
        }
        tested, size = statistics.family(values)
        adjusted = statistics.holm({n: x.p for n, x in values.items()})
        for name, one in tested.items():
            rejected = adjusted[name] < statistics.LEVEL
            ends = one.low == 0 or one.high == 0
            assert rejected == (ends or not one.low < 0 < one.high)
            assert one.low <= one.estimate.mean <= one.high
            half = stats.t.isf(0.025 / size, 4) * np.std(one.estimate.values, ddof=1) / 5**0.5
            expected = one.estimate.mean + np.array([-half, half])
            kept = [b for b, bound in zip(expected, (one.low, one.high), strict=True) if bound]
            np.testing.assert_allclose([b for b in (one.low, one.high) if b], kept)
            agree[rejected] += 1
            shortened += ends
    assert shortened > 5 and min(agree.values()) > 100


def test_intervals_cover_all_true_differences_together():
    # Where every difference is far from 0: at levels that step down with the rank 85 % would.
    rng, draws, covered, true = np.random.default_rng(3), 400, 0, 0.05
    for _ in range(draws):
        own = rng.normal(true, 0.05, (9, 20))
        values = {str(k): statistics.estimate(x) for k, x in enumerate(own)}
        tested = statistics.family(values)[0].values()
        covered += all(one.low <= true <= one.high for one in tested)
    assert covered >= stats.binom.ppf(0.001, draws, 1 - statistics.LEVEL)


def test_the_same_losses_under_other_names_count_once_and_the_references_not_at_all():
    x, y = statistics.estimate([0.30, 0.33, 0.29]), statistics.estimate([0.3, 0.1, -0.1])
    zero = statistics.estimate([0.0, 0.0, 0.0])
    same = statistics.copies({"a": "one", "b": "one", "c": "two", "d": "rope"}, "rope")
    assert same == {"b": "a", "d": None}
    tested, size = statistics.family({"a": x, "b": x, "c": y, "d": zero, "e": None}, same)
    assert size == 3 and tested.keys() == {*"abcd"}
    assert tested["a"] == tested["b"] and tested["a"].holm == 3 * x.p
    assert (tested["d"].holm, tested["d"].low, tested["d"].high) == (1, 0, 0)


def simulated(rng, names, effects, seeds=5, windows=6, sd=0.02, effect=0.0):
    """What runs would have left: windows and seeds shared by all schemes, noise of every run."""
    text = rng.normal(2.5, 0.3, (seeds, windows))
    own = sd * rng.normal(size=(len(names), seeds, 1))
    schemes = []
    for k, name in enumerate(names):
        losses = text + own[k] + effects.get(name, 0) + sd / 2 * rng.normal(size=text.shape)
        runs = {s: Run(s, numbers={(WHERE, 512): losses[s]}) for s in range(seeds)}
        schemes.append(Scheme(name, "rope", k, runs))
    question = {"primary": {"protocol": WHERE}, "smallest_effect": effect}
    manifest = Manifest(names[0], 512, [512], [*range(seeds)], **question)
    return Results(Path(), manifest, tuple(schemes), None)


def test_identical_schemes_under_other_names_win_no_more_often_than_the_level():
    # The reference is noisy too, so its bad luck shows in all differences at once.
    rng, names, draws, wins = np.random.default_rng(0), ["rope", *"abcdefgh"], 300, 0
    for _ in range(draws):
        kinds = {v.kind for v in verdicts(simulated(rng, names, {}))}
        wins += bool(kinds & {statistics.LOWER, statistics.HIGHER})
    assert 0 < wins <= stats.binom.ppf(0.999, draws, statistics.LEVEL)


def test_a_planted_difference_is_found_among_identical_schemes():
    rng, names, planted = np.random.default_rng(1), ["rope", *"abcdefgh"], {"c": -0.3, "f": 0.3}
    draws, found, false = 60, 0, 0
    for _ in range(draws):
        kinds = {v.name: v.kind for v in verdicts(simulated(rng, names, planted))}
        found += (kinds.pop("c"), kinds.pop("f")) == (statistics.LOWER, statistics.HIGHER)
        false += bool({*kinds.values()} & {statistics.LOWER, statistics.HIGHER})
    assert found >= 0.95 * draws
    assert false <= stats.binom.ppf(0.999, draws, statistics.LEVEL)


def test_a_planted_difference_of_a_twentieth_is_found_and_a_tiny_one_is_of_no_interest():
    rng, names, draws, found, small = np.random.default_rng(4), ["rope", *"abc"], 100, 0, 0
    for _ in range(draws):
        given = simulated(rng, names, {"a": 0.05, "b": 0.002}, sd=0.001, effect=0.01)
        kinds = {v.name: v.kind for v in verdicts(given)}
        small += (kinds["b"], kinds["c"]) == (statistics.SAME, statistics.SAME)
        given = simulated(rng, names[:2], {"a": 0.05}, sd=0.01 / 2**0.5, effect=0.01)
        found += verdicts(given)[1].kind == statistics.HIGHER  # differences of sd 0.01
    assert found >= 0.95 * draws and small >= 0.95 * draws


@pytest.mark.parametrize(
    ("status", "losses"),
    [("missing", {}), ("diverged", {}), ("ok", {WHERE: {"512": None}}), ("ok", {})],
    ids=["missing", "diverged", "not defined", "not evaluated"],
)
def test_holms_family_is_what_was_declared_whatever_ran(status, losses):
    whole = simulated(np.random.default_rng(5), ["rope", *"abcdef"], {"a": 0.05})
    before = verdicts(whole)[1].tested
    assert before.holm == pytest.approx(6 * before.estimate.p) and before.holm < 1
    *others, last = whole.schemes
    lost = {**last.runs, 4: Run(4, status, "", results.losses({"losses": losses}))}
    fewer = dataclasses.replace(whole, schemes=(*others, dataclasses.replace(last, runs=lost)))
    rows = verdicts(fewer)
    assert rows[-1].kind == UNDECIDED and rows[1].tested == before


def test_identical_schemes_do_not_enlarge_the_family():
    whole = simulated(np.random.default_rng(5), ["rope", *"ab"], {"a": 0.05})
    rope, a, b = whole.schemes
    more = (("twin", rope), ("again", a), ("once more", a))
    more = [dataclasses.replace(s, name=name, index=3 + i) for i, (name, s) in enumerate(more)]
    rows = {
        v.name: v for v in verdicts(dataclasses.replace(whole, schemes=(*whole.schemes, *more)))
    }
    assert rows["a"] == verdicts(whole)[1] and rows["a"].family == 2
    assert rows["again"].tested == rows["once more"].tested == rows["a"].tested
    assert rows["twin"].kind == statistics.SAME and rows["twin"].tested.holm == 1


def test_identical_schemes_have_no_winner_before_or_after_seeds_are_added():
    # Looking after three, four and five seeds, and stopping at a claim, is where chance wins more
    # often: what is claimed later is exploratory, what is claimed first holds the level.
    rng, names, draws, first, later = np.random.default_rng(6), ["rope", *"abcd"], 200, 0, 0
    for _ in range(draws):
        whole = simulated(rng, names, {})
        looks: list[dict] = []
        for seeds in (3, 4, 5):
            part = cut(whole, seeds, looks)
            claims = [v for v in verdicts(part) if v.kind in ("lower", "higher")]
            assert all(v.exploratory == (seeds > 3) for v in claims)
            assert all(("exploratory" in v.words) == (seeds > 3) for v in claims)
            first += any(not v.exploratory for v in claims)
            later += bool(claims)
            looks.append(part.subject)
    assert first <= stats.binom.ppf(0.999, draws, statistics.LEVEL)
    assert later > first


def cut(whole, seeds, reported):
    """The first seeds of a comparison, with what there were reports of before."""
    schemes = tuple(
        dataclasses.replace(s, runs={k: run for k, run in s.runs.items() if k < seeds})
        for s in whole.schemes
    )
    manifest = dataclasses.replace(whole.manifest, seeds=[*range(seeds)])
    return dataclasses.replace(whole, manifest=manifest, schemes=schemes, reported=tuple(reported))


def test_an_estimate_keeps_every_seed_and_their_median():
    found = statistics.estimate([0.1, 0.2, 0.9])
    assert (found.n, found.median, found.values) == (3, 0.2, (0.1, 0.2, 0.9))


def test_ratios_are_paired_by_repeat():
    found = statistics.ratio([2.0, 30.0, 4.4], [1.0, 10.0, 2.0])  # a slow moment hits both
    assert (found.median, found.low, found.high) == (2.2, 2.0, 3.0)
    with pytest.raises(ValueError, match="repeats"):
        statistics.ratio([1.0], [1.0, 2.0])
