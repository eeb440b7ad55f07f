"""What titles say: only what the statistics of the results support."""

import math

import pytest

from experiments.reporting import results
from experiments.reporting.comparison import sentences
from experiments.reporting.comparison.sentences import (
    differences_title,
    headline,
    listed,
    losses_title,
    ratios_title,
)
from experiments.reporting.results import Question
from experiments.reporting.statistics import HIGHER, INCONCLUSIVE, LOWER, SAME, Ratio, estimate
from experiments.reporting.verdicts import (
    REFERENCE,
    TOKENS,
    UNDECIDED,
    Bin,
    Verdict,
    bins,
    by_length,
    by_position,
    verdicts,
)
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


@pytest.mark.parametrize(
    ("first", "last", "title"),
    [
        ({"a": HIGHER}, {"a": LOWER}, "a ends 0.50 nats below rope at 512 tokens"),
        ({"a": HIGHER}, {"a": HIGHER}, "a ends 0.50 nats above rope at 512 tokens"),
        ({"a": SAME}, {"a": HIGHER}, "a ends 0.50 nats above rope at 512 tokens"),
        (
            {"a": HIGHER},
            {"a": INCONCLUSIVE},
            "No lead of rope over a is shown at 512 tokens any more",
        ),
        ({"a": HIGHER}, {"a": UNDECIDED}, "No scheme is shown to differ from rope at 512 tokens"),
        ({"a": LOWER}, {"a": INCONCLUSIVE}, "No scheme is shown to differ from rope at 512 tokens"),
        (
            {"a": HIGHER, "b": HIGHER, "c": SAME, "d": HIGHER},
            {"a": LOWER, "b": INCONCLUSIVE, "c": LOWER, "d": HIGHER},
            "c and a end 0.50 to 0.70 nats below rope, d ends 0.20 above it at 512 tokens;"
            " no lead of rope over b is shown there",
        ),
        (dict.fromkeys("abcd", HIGHER), dict.fromkeys("abcd", LOWER), "All 4 schemes end 0.10 to"),
    ],
)
def test_a_figure_of_differences_says_who_ends_where_and_which_leads_are_lost(first, last, title):
    means = {"a": -0.5, "b": 0.1, "c": -0.7, "d": -0.2}
    kinds = {64: {"rope": REFERENCE, **first}, 512: {"rope": REFERENCE, **last}}
    found = differences_title(kinds, {name: {512: mean} for name, mean in means.items()}, "rope")
    assert found.startswith(title)


def test_means_alone_say_who_has_the_least_at_the_last_positions():
    def two(mean):
        return [Bin(1, 8, estimate([-0.9])), Bin(9, 16, estimate([mean]))]

    title = sentences.position_title({"a": two(-0.2), "b": two(-0.31)}, "rope")
    assert title == "At positions 9 to 16 b has the least mean, 0.31 below rope"
    title = sentences.position_title({"a": two(0.2)}, "rope")
    assert title == "At positions 9 to 16 no mean is below that of rope"


def test_losses_and_ratios_name_the_extremes():
    means = {"a": {64: 2.0, 256: 3.0}, "b": {64: 2.1, 256: 2.2}, "c": {64: 1.9}}
    assert losses_title(means, 64) == (
        "c has the least mean at 64, b at 256; that of a rises most, by 1.00"
    )
    ratios = {"nope": Ratio(1, 1, 1), "t5": Ratio(1.5, 1, 2), "rope": Ratio(1.01, 1, 2)}
    assert ratios_title("time", ratios, "nope") == (
        "Time: t5 has the greatest median, 1.50× nope; 1 of 2 within 5 %"
    )


@pytest.mark.parametrize("count, windows", [(512, 12), (512, 1), (1000, 400), (3, 1), (1, 200)])
def test_bins_cover_every_position_once_and_hold_enough_tokens(count, windows):
    found = bins(count, windows)
    covered = [n for first, last in found for n in range(first, last + 1)]
    assert covered == [*range(1, count + 1)]
    least = min(last - first + 1 for first, last in found)
    assert least * windows >= TOKENS or len(found) == 1
    assert all(b - a <= (math.sqrt(2) - 1) * a + 1 or len(found) < 4 for a, b in found[3:-1])


def test_differences_are_those_of_the_verdicts_and_paired(fake):
    read = results.read(fake(["rope", "alibi", "learned"], speed=False))
    found = by_length(read, "non-overlapping")
    (verdict,) = [v for v in verdicts(read) if v.name == "alibi"]
    assert isinstance(verdict, Verdict) and found["alibi"][512] == verdict.difference
    assert "rope" not in found and [*found["learned"]] == [TRAIN]
    found, missing = by_position(read)
    assert [*found] == ["alibi"] and missing == {"learned": "not defined"}
    ours, theirs = (s.by_position()[0] for n in ("alibi", "rope") if (s := read.scheme(n)))
    last = found["alibi"][-1]
    each = [(ours[s] - theirs[s])[last.first - 1 : last.last].mean() for s in (0, 1, 2)]
    assert last.difference == estimate(each) and last.last == 512
    assert sentences.position_title(found, "rope").endswith("alibi below rope (Holm)")


def test_the_title_of_sizes_says_who_is_on_which_side_of_the_reference_at_all_of_them():
    below, above, unsure, single = map(
        estimate, ([-1, -1.1, -0.9], [1, 1.1, 0.9], [0.1, -0.1, 0.3], [-1])
    )

    def title(far=None, **found):
        by_length = {128: found, 512: far or {}}
        by_size = {n: {s: dict(enumerate(x)) for s, x in at.items()} for n, at in by_length.items()}
        return sentences.series_title(by_size, "rope", "size")

    near = {"t5": [below, below], "nope": [above, above], "alibi": [unsure, above]}
    said = "Against rope at every size: t5 below, nope above at 128 tokens"
    assert title(**near) == f"{said} (Holm)"
    far = {"t5": [below, below], "nope": [above, unsure], "alibi": [below, below]}
    assert title(far, **near) == f"{said}; t5 and alibi below at 512 tokens (Holm)"
    assert title(t5=[below, above], nope=[above, above]).endswith(
        "nope above, t5 on both sides at 128 tokens (Holm)"
    )
    nobody = "No scheme is shown on one side of rope at every size"
    assert title(t5=[below, unsure]) == title(t5=[single, single]) == nobody
    assert title(t5=[below, below], fox=[below]).endswith(
        "every size: t5 below at 128 tokens (Holm)"
    )
