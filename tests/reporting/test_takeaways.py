"""What titles say: only what the statistics of the results support."""

import math

import pytest

from experiments.reporting import differences, results, takeaways
from experiments.reporting.results import Question
from experiments.reporting.statistics import HIGHER, INCONCLUSIVE, LOWER, Ratio, estimate
from experiments.reporting.takeaways import (
    differences_title,
    headline,
    listed,
    losses_title,
    ratios_title,
)
from experiments.reporting.verdicts import UNDECIDED, Verdict, verdicts
from tests.reporting.comparisons import TRAIN

pytestmark = pytest.mark.xdist_group("report")
SECONDARY = {"protocol": "non-overlapping", "length": TRAIN}
FIVE = (0, 1, 2, 3, 4)


def title(folder):
    read = results.read(folder)
    near = verdicts(read, Question("", "non-overlapping", TRAIN))
    return headline(read, near, verdicts(read))


def test_the_headline_claims_what_the_verdicts_do(fake):
    made = fake(["rope", "alibi", "t5"], FIVE, {"rope": 0.3, "alibi": -0.1, "t5": 0.3}, speed=False)
    said = title(made)
    assert said == "alibi beats rope at 512 tokens; at the trained 64, none is shown to"
    worse = fake(["rope", "alibi", "t5"], FIVE, {"rope": 0, "alibi": 0.3, "t5": 0.3}, speed=False)
    assert (
        title(worse)
        == "rope beats alibi and t5 at 512 tokens; at the trained 64, no difference is shown"
    )
    three = fake(["rope", "alibi"], effects={"rope": 0.3, "alibi": 0.0}, speed=False)
    assert title(three).startswith("Over three seeds, alibi beats rope at 512 tokens; ")
    two = fake(["rope", "alibi"], (0, 1), {"rope": 0.9, "alibi": 0.0}, speed=False)
    assert title(two) == "Nothing can be claimed from two seeds: losses at 64 and 512 tokens"


def test_many_names_are_counted():
    assert listed(["a"]) == "a" and listed(["a", "b", "c"], 9) == "a, b and c"
    assert listed([*"abcd"], 9) == "4 of 9 schemes" and listed([*"abcd"], 4) == "all 4 schemes"


def test_a_lead_is_lost_where_it_is_not_shown_any_more():
    def said(*kinds):
        return differences_title({64 * 2**k: {"a": kind} for k, kind in enumerate(kinds)}, "rope")

    assert said(HIGHER, INCONCLUSIVE, LOWER) == "rope loses its lead over a by 128 tokens"
    assert said(HIGHER, HIGHER, LOWER) == "rope loses its lead over a by 256 tokens"
    assert said(HIGHER, HIGHER) == "rope keeps its lead over a to 128 tokens"
    assert said(INCONCLUSIVE, LOWER) == "a is ahead of rope at 128 tokens"
    assert said(INCONCLUSIVE, HIGHER).startswith("No scheme is shown ahead of rope")
    assert said(HIGHER, UNDECIDED).startswith("No scheme is shown ahead of rope")


def test_losses_and_ratios_name_the_extremes():
    means = {"a": {64: 2.0, 256: 3.0}, "b": {64: 2.1, 256: 2.2}, "c": {64: 1.9}}
    assert losses_title(means, 64) == (
        "c has the least mean at 64, b at 256; a rises most, by 1.00"
    )
    ratios = {"nope": Ratio(1, 1, 1), "t5": Ratio(1.5, 1, 2), "rope": Ratio(1.01, 1, 2)}
    assert ratios_title("time", ratios, "nope") == (
        "Time: t5 takes most, 1.50× nope; 1 of 2 within 5 %"
    )


@pytest.mark.parametrize("count, windows", [(512, 12), (512, 1), (1000, 400), (3, 1), (1, 200)])
def test_bins_cover_every_position_once_and_hold_enough_tokens(count, windows):
    found = differences.bins(count, windows)
    covered = [n for first, last in found for n in range(first, last + 1)]
    assert covered == [*range(1, count + 1)]
    least = min(last - first + 1 for first, last in found)
    assert least * windows >= differences.TOKENS or len(found) == 1
    assert all(b - a <= (math.sqrt(2) - 1) * a + 1 or len(found) < 4 for a, b in found[3:-1])


def test_differences_are_those_of_the_verdicts_and_paired(fake):
    read = results.read(fake(["rope", "alibi", "learned"], speed=False))
    found = differences.by_length(read, "non-overlapping")
    (verdict,) = [v for v in verdicts(read) if v.name == "alibi"]
    assert isinstance(verdict, Verdict) and found["alibi"][512] == verdict.difference
    assert "rope" not in found and [*found["learned"]] == [TRAIN]
    bins, missing = differences.by_position(read)
    assert [*bins] == ["alibi"] and missing == {"learned": "not defined"}
    ours, theirs = (s.by_position()[0] for n in ("alibi", "rope") if (s := read.scheme(n)))
    last = bins["alibi"][-1]
    each = [(ours[s] - theirs[s])[last.first - 1 : last.last].mean() for s in (0, 1, 2)]
    assert last.difference == estimate(each) and last.last == 512
    assert takeaways.position_title(bins, "rope").endswith("alibi below rope (95 %)")


def test_the_title_of_sizes_says_who_is_on_which_side_of_the_reference_at_all_of_them():
    below, above, unsure, single = map(
        estimate, ([-1, -1.1, -0.9], [1, 1.1, 0.9], [0.1, -0.1, 0.3], [-1])
    )

    def title(**found):
        return takeaways.series_title(found, "rope", 128, "size")

    assert title(t5=[below, below], nope=[above, above], alibi=[unsure, above]) == (
        "At 128 tokens and every size: t5 below, nope above rope (95 %)"
    )
    assert title(t5=[below, above], nope=[above, above]).endswith(
        "nope above, t5 on both sides of rope (95 %)"
    )
    nobody = "At 128 tokens no scheme is shown on one side of rope at every size"
    assert title(t5=[below, unsure]) == title(t5=[single, single]) == nobody
