"""What a report says of its files: torn lines, other code, other corpora, earlier reports."""

import json

import pytest

from experiments.reporting import results
from experiments.reporting.comparison import report
from experiments.reporting.comparison.caveats import irregularities
from tests.reporting.comparisons import Page, build, manifest, table

pytestmark = pytest.mark.xdist_group("report")


def test_torn_lines_are_counted_and_the_last_of_a_repeated_step_stands(whole, page):
    run = results.read(whole).scheme("rope").runs[0]
    assert (run.torn, run.repeated, run.metrics[-1]["loss"]) == (1, 1, 9.25)
    assert "1 torn line of metrics.jsonl skipped" in page.text


def test_runs_that_lie_elsewhere_may_be_linked(fake, tmp_path):
    folder = fake(["rope"], speed=False)
    before = [*results.read(folder).rows()]
    (folder / "runs" / "rope").rename(tmp_path / "moved")
    (folder / "runs" / "rope").symlink_to(tmp_path / "moved")
    assert [*results.read(folder).rows()] == before


def test_a_name_that_leaves_the_runs_is_refused(fake):
    folder = fake(["rope"], speed=False)
    for name in ("../rope", "/etc", "..", "a/b", ""):
        content = manifest([name])
        (folder / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ValueError, match="outside runs/"):
            results.read(folder)


def test_what_was_added_or_left_out_after_a_report_is_noted(fake, no_pictures):
    folder = fake(["nope", "rope", "alibi"], speed=False)

    def notes(**fields):
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        report.declare(results.read(folder))
        found = irregularities(results.read(folder))
        return [note for note in found if "There was a report before" in note]

    assert notes() == [] and notes() == []
    fewer = [{"name": name, "spec": name} for name in ("nope", "rope")]
    (found,) = notes(encodings=fewer)
    assert "of seeds 0, 1, 2 and of nope, rope, alibi" in found
    assert len(notes(seeds=[0, 1])) == 2
    assert "There was a report before" in build(folder).read_text()


def test_a_scheme_that_ran_out_of_memory_in_timing_is_told(fake, no_pictures):
    folder = fake(["nope", "rope", "alibi"])
    path = folder / "speed.json"
    speed = json.loads(path.read_text())
    one = dict(speed["encodings"]["nope"])
    speed["encodings"]["rope"] = {"problem": "out of memory with 2 programs of other schemes"}
    speed["lengths"] = {
        "128": {"batch": 4, "encodings": {"nope": {"problem": "out of memory"}, "alibi": one}}
    }
    path.write_text(json.dumps(speed))
    build(folder)
    page = Page((folder / "report.html").read_text()).text
    # sizes and speed, irregularities, and the table by length of each of three measures
    assert page.count("out of memory with 2 programs of other schemes") == 5
    rows = [r for r in table(folder / "speed.csv") if r["encoding"] == "rope"]
    assert [r["problem"] for r in rows] == ["out of memory with 2 programs of other schemes"]
    assert (
        "Training step, by length: microseconds per token" in page
    )  # without a ratio, as without nope
    speed["encodings"]["nope"] = {"problem": "out of memory"}
    path.write_text(json.dumps(speed))
    build(folder)
    page = Page((folder / "report.html").read_text()).text
    assert "No ratios: nope was not timed." in page and "Not measured." not in page


def test_a_corpus_that_is_not_the_published_one_is_noted(fake, no_pictures):
    corpus = {"name": "embedded", "digest": "0123", "describe": "five wheels"}
    plain = irregularities(results.read(fake(["nope", "rope"], corpus=corpus)))
    corpus["warning"] = "the embedded corpus (sha256 0123) is not that of the published numbers"
    folder = fake(["nope", "rope"], corpus=corpus)
    notes = irregularities(results.read(folder))
    sentence = "The embedded corpus (sha256 0123) is not that of the published numbers."
    assert set(notes) - set(plain) == {sentence}
    build(folder)
    assert sentence in (folder / "report.html").read_text(encoding="utf-8")


def test_runs_of_other_code_are_noted(fake):
    folder = fake(["nope", "rope"], seeds=(0, 1))
    path = folder / "runs" / "nope" / "seed0" / "evaluation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "commit": "89ab"}))
    notes = irregularities(results.read(folder))
    assert "Not the same commit in all runs: unknown (3), 89ab (1)." in notes
    assert not [note for note in notes if "device" in note]
