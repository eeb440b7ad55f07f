import gc
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments import findings, statistics
from experiments.results import Results, Run, Scheme

WHERE = "non-overlapping"


def test_interval_and_p_are_those_of_a_paired_t_test():
    a, b = np.array([2.1, 2.3, 2.2, 2.4]), np.array([2.0, 2.35, 2.1, 2.2])
    found = statistics.estimate(a - b)
    half = stats.t.ppf(0.975, 3) * np.std(a - b, ddof=1) / 2
    np.testing.assert_allclose([found.low, found.high], np.mean(a - b) + [-half, half])
    np.testing.assert_allclose(found.p, stats.ttest_rel(a, b).pvalue)


def test_differences_are_paired_by_seed_over_identical_windows():
    scheme, reference = {1: [3.0, 5.0], 0: [1.0, 2.0]}, {0: [1.0, 1.0], 1: [3.0, 3.0]}
    assert statistics.paired(scheme, reference) == [0.5, 1.0]
    with pytest.raises(ValueError, match="seeds"):
        statistics.paired({0: [1.0]}, reference)
    with pytest.raises(ValueError, match="windows"):
        statistics.paired({0: [1.0], 1: [1.0]}, reference)


def test_holm_by_hand_and_untested_schemes_do_not_count():
    found = statistics.holm({"a": 0.01, "b": 0.04, "c": 0.03, "one seed": math.nan})
    np.testing.assert_allclose([found[n] for n in "abc"], [0.03, 0.06, 0.06])
    assert math.isnan(found["one seed"])


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ([-0.3], "none", "one seed"),
        ([-0.30, -0.31], "none", "a claim needs 3"),
        ([0.0, 0.0, 0.0], "none", "identical numbers"),
        ([-0.2, -0.2, -0.2], "none", "all seeds gave the same number"),
        ([-0.3, 0.1, -0.2], "none", "no difference shown"),
        ([-0.30, -0.31, -0.29], "lower", "lower loss than rope"),
        ([0.30, 0.31, 0.29], "higher", "higher loss than rope"),
    ],
)
def test_verdicts_in_words(values, kind, words):
    difference = statistics.estimate(values)
    found = statistics.judge(difference, difference.p, "rope")
    assert found[0] == kind
    assert words in found[1]


def test_an_interval_off_zero_is_no_win_when_holm_says_otherwise():
    kind, words = statistics.judge(statistics.estimate([-0.30, -0.31, -0.29]), 0.2, "rope")
    assert kind == "none"
    assert "Holm" in words


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """statsmodels collects garbage at every call, which takes a while beside jax."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


def simulated(rng, names, effects, seeds=5, windows=6):
    """What runs would have left: windows and seeds shared by all schemes, noise of every run."""
    text = rng.normal(2.5, 0.3, (seeds, windows))
    own = 0.02 * rng.normal(size=(len(names), seeds, 1))
    schemes = []
    for k, name in enumerate(names):
        losses = text + own[k] + effects.get(name, 0) + 0.01 * rng.normal(size=text.shape)
        runs = {s: Run(s, "ok", "", {"losses": {WHERE: {"512": losses[s]}}}) for s in range(seeds)}
        schemes.append(Scheme(name, "rope", k, runs))
    manifest = {"reference": names[0], "lengths": [512], "primary": {"protocol": WHERE}}
    return Results(Path(), manifest, tuple(schemes), None)


def test_identical_schemes_under_other_names_win_no_more_often_than_the_level():
    # The reference is noisy too, so its bad luck shows in all differences at once.
    rng, names, draws, wins = np.random.default_rng(0), ["rope", *"abcdefgh"], 300, 0
    for _ in range(draws):
        kinds = {v.kind for v in findings.verdicts(simulated(rng, names, {}))}
        wins += bool(kinds & {statistics.LOWER, statistics.HIGHER})
    assert 0 < wins <= stats.binom.ppf(0.999, draws, statistics.LEVEL)


def test_a_planted_difference_is_found_among_identical_schemes():
    rng, names, planted = np.random.default_rng(1), ["rope", *"abcdefgh"], {"c": -0.3, "f": 0.3}
    draws, found, false = 60, 0, 0
    for _ in range(draws):
        kinds = {v.name: v.kind for v in findings.verdicts(simulated(rng, names, planted))}
        found += (kinds.pop("c"), kinds.pop("f")) == (statistics.LOWER, statistics.HIGHER)
        false += bool({*kinds.values()} & {statistics.LOWER, statistics.HIGHER})
    assert found >= 0.95 * draws
    assert false <= stats.binom.ppf(0.999, draws, statistics.LEVEL)


def test_an_estimate_keeps_every_seed_and_their_median():
    found = statistics.estimate([0.1, 0.2, 0.9])
    assert (found.n, found.median, found.values) == (3, 0.2, (0.1, 0.2, 0.9))


def test_ratios_are_paired_by_repeat():
    found = statistics.ratio([2.0, 30.0, 4.4], [1.0, 10.0, 2.0])  # a slow moment hits both
    assert (found.median, found.low, found.high) == (2.2, 2.0, 3.0)
    with pytest.raises(ValueError, match="repeats"):
        statistics.ratio([1.0], [1.0, 2.0])


def test_log_bins_keep_the_first_positions_and_every_value_once():
    values = np.arange(512.0)
    centres, means = statistics.log_bins(values)
    np.testing.assert_array_equal(centres[:4], [1, 2, 3, 4])
    np.testing.assert_array_equal(means[:4], values[:4])
    assert (np.diff(means) > 0).all()
    assert means[-1] > 450
