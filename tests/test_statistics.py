import math

import numpy as np
import pytest
from scipy import stats

from experiments import statistics


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
        ([0.0, 0.0, 0.0], "none", "identical losses"),
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


def test_noise_alone_wins_no_more_often_than_the_level_over_the_whole_family():
    rng, wins = np.random.default_rng(0), 0
    for _ in range(15):
        found = {str(i): statistics.estimate(rng.normal(size=5)) for i in range(8)}
        adjusted = statistics.holm({name: e.p for name, e in found.items()})
        kinds = {statistics.judge(e, adjusted[name], "rope")[0] for name, e in found.items()}
        wins += kinds != {"none"}
    assert wins <= stats.binom.ppf(0.999, 15, statistics.LEVEL)


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
