"""Verdicts and the summary of a comparison, on the page and in the terminal."""

import dataclasses
import json

import pytest

from experiments.reporting import results, statistics
from experiments.reporting.comparison import figures, report
from experiments.reporting.comparison.caveats import summary
from experiments.reporting.comparison.sentences import first_screen
from experiments.reporting.verdicts import verdicts
from tests.reporting.comparisons import HOSTILE, SEEDS, TRAIN, Page, build, printed, table

pytestmark = pytest.mark.xdist_group("report")


def words_of(folder):
    return {row.name: row.words for row in verdicts(results.read(folder))}


def test_identical_schemes_under_other_names_have_no_winner(fake):
    folder = fake(["rope", "twin", "alibi"], effects={})
    for seed in SEEDS:
        source = folder / "runs" / "rope" / f"seed{seed}" / "evaluation.json"
        for name in ("twin", "alibi"):
            target = folder / "runs" / name / f"seed{seed}" / "evaluation.json"
            target.write_bytes(source.read_bytes())
    found = words_of(folder)
    assert found["twin"] == found["alibi"] == "no practical difference (identical numbers)"
    read = results.read(folder)
    (found,) = first_screen(read).answers
    assert found.words == "No practical difference to rope: twin and alibi."


def test_a_planted_difference_is_found_and_one_seed_shows_none(fake):
    names, effects = ["rope", "twin", "alibi", "sinusoidal"], {"alibi": -0.1, "sinusoidal": 0.5}
    effects |= {"rope": 0.1, "twin": 0.1}
    found = words_of(fake(names, effects=effects))
    assert found["alibi"] == "lower loss than rope"
    assert found["sinusoidal"] == "higher loss than rope"
    assert found["twin"] == "inconclusive"
    alone = words_of(fake(names, seeds=(0,), effects=effects, speed=False))
    assert alone["alibi"] == alone["sinusoidal"] == "inconclusive (one seed)"


def test_both_questions_are_answered_and_the_secondary_is_called_so(fake, no_pictures):
    effects = {"rope": 0.1, "alibi": -0.1, "t5": 0.1}
    secondary = {"protocol": "non-overlapping", "length": TRAIN}
    folder = fake(["nope", "rope", "alibi", "t5"], effects=effects, secondary=secondary)
    read = results.read(folder)
    first, second = read.questions
    assert (first.role, first.length, second.role, second.length) == (
        "primary",
        512,
        "secondary",
        64,
    )
    found = summary(read)
    assert found.questions[1] == "Secondary: the same at length 64 (non-overlapping evaluation)."
    trained, longest = first_screen(read).answers
    assert (trained.length, longest.length) == (64, 512)
    assert longest.words.startswith("Lower loss than rope: alibi (")
    assert trained.words.startswith("Inconclusive: ")
    assert "Each question is corrected separately." in " ".join(found.confidence)
    windows = read.schemes[0].runs[0].measured("non-overlapping", 512).size
    assert windows > 1 and f"over {windows} windows" in " ".join(found.confidence)
    looks = dataclasses.replace(read.manifest, looks=[{}, {}])
    looked = dataclasses.replace(read, manifest=looks)
    assert "were evaluated 2 times: one confirms" in " ".join(summary(looked).confidence)
    text = Page(build(folder).read_text(encoding="utf-8")).text
    for words in ("Primary: length 512, non-overlapping", "Secondary: the trained length, 64, "):
        assert words in text
    rows = {(r["encoding"], r["question"]): r for r in table(folder / "verdicts.csv")}
    assert len(rows) == 8 and rows["alibi", "primary"]["verdict"] == "lower loss than rope"
    assert rows["alibi", "secondary"]["length"] == "64"
    assert abs(float(rows["alibi", "secondary"]["difference"])) < 0.01
    assert (folder / "figures" / "differences-secondary.png").is_file()
    shown = printed(folder)
    assert "Primary: loss at length 512" in shown and "Secondary: loss at length 64" in shown
    same = {"protocol": "non-overlapping", "length": 512}
    (only,) = results.read(fake(["rope"], speed=False, secondary=same)).questions
    assert only.role == "primary"


def test_what_holm_does_not_show_crosses_zero_wherever_it_is_drawn(fake, no_pictures):
    names = ["rope", "alibi", "t5", "nope", "shaw", "sinusoidal", "learned"]
    folder = fake(names, effects=dict.fromkeys(names, 0.1))
    offset = {0: 0.02, 1: 0.03, 2: 0.045}  # p is 0.05 by itself, and 0.3 in the family of six
    for seed, extra in offset.items():
        source = folder / "runs" / "rope" / f"seed{seed}" / "evaluation.json"
        found = json.loads(source.read_text())
        found["losses"]["non-overlapping"]["512"] = [
            loss + extra for loss in found["losses"]["non-overlapping"]["512"]
        ]
        (folder / "runs" / "alibi" / f"seed{seed}" / "evaluation.json").write_text(
            json.dumps(found)
        )
    build(folder)
    (row,) = [r for r in table(folder / "verdicts.csv") if r["encoding"] == "alibi"]
    assert float(row["p"]) < 0.05 < float(row["p_holm"])
    assert row["verdict"] == "inconclusive (not after Holm's correction)"
    assert float(row["low"]) < 0 < float(row["high"])
    read = results.read(folder)
    decided = verdicts(read)
    (tested,) = [v.tested for v in decided if v.name == "alibi"]
    (axes,) = figures.differences(read, read.questions[0], decided).figure.axes
    assert [tested.low, tested.high] in [[*line.get_xdata()] for line in axes.lines]
    shown = tested.interval()
    assert shown in Page((folder / "report.html").read_text(encoding="utf-8")).text
    assert shown in printed(folder)


def test_a_zero_that_only_holm_excludes_is_where_the_interval_ends():
    estimate = statistics.estimate([0.30, 0.31, 0.29])
    shown = statistics.Tested(estimate, 0.03, 0.0, 0.62).interval()
    assert shown == "(+0.0000, +0.6200]"
    same = statistics.Tested(estimate, 1.0, 0.0, 0.0).interval()
    assert same == "[+0.0000, +0.0000]"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seeds": [0, 1, 2, 3]}, "seed 3 added"),
        ({"encodings": ["rope", "alibi", "nope", "t5"]}, "encoding t5 added"),
        ({"encodings": ["rope", "alibi"]}, "encoding nope left out"),
    ],
)
def test_what_comes_after_a_report_is_exploratory_wherever_it_is_told(
    fake, no_pictures, fields, words
):
    names, effects = ["rope", "alibi", "nope", "t5"], {"rope": 0.3, "alibi": -0.03, "nope": 0.3}
    folder = fake(names, seeds=(0, 1, 2, 3), effects=effects, speed=False)
    path = folder / "manifest.json"
    about = json.loads(path.read_text())

    def shown(seeds, encodings):
        chosen = [{"name": name, "spec": name} for name in encodings]
        path.write_text(json.dumps(about | {"seeds": seeds, "encodings": chosen}))
        report.declare(read := results.read(folder))
        (row,) = [v for v in verdicts(read) if v.name == "alibi"]
        if "seeds" not in fields:  # one page is enough
            return row.words, summary(read), "", row.claimed
        page = Page(build(folder).read_text(encoding="utf-8"))
        claimed = [a for tag, a in page.tags if tag == "tr" and "claimed" in a.get("class", "")]
        assert bool(claimed) == row.claimed and row.words in page.text
        return row.words, summary(read), page.text, row.claimed

    first = {"seeds": [0, 1, 2], "encodings": names[:3]}
    for _ in range(2):  # the same again is no change
        verdict, found, text, claimed = shown(**first)
        assert verdict == "lower loss than rope" and claimed
        assert "xploratory" not in text + printed(folder)
    for _ in range(2):  # and one report more does not make it confirmatory
        verdict, found, text, claimed = shown(**first | fields)
        assert verdict == "lower loss than rope (exploratory)" and not claimed
        assert first_screen(results.read(folder)).headline.startswith("Exploratory: ")
        assert found.confidence[0].startswith(
            f"Exploratory, not confirmatory: {words} after a report"
        )
        assert not text or f"Exploratory, not confirmatory: {words}" in text
        terminal = printed(folder)
        assert "lower loss than rope (exploratory)" in terminal
        assert f"{words} after a report" in terminal


def test_a_reference_without_all_seeds_decides_nothing(fake):
    folder = fake(["rope", "alibi"], speed=False)
    (folder / "runs" / "rope" / "seed1" / "evaluation.json").unlink()
    found = words_of(folder)
    assert found["alibi"] == "not decided: the reference rope has missing seed 1"
    assert found["rope"] == "the reference (missing seed 1)"


def test_the_summary_prints_names_as_they_are(whole):
    text = printed(whole)
    assert HOSTILE in text
    assert "missing seed 2" in text
