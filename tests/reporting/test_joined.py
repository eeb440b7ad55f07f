"""Several comparisons joined into one report, and what cannot be."""

import json
import re
import shutil

import pytest

from experiments.reporting import results
from experiments.reporting.comparison import joined, report
from experiments.reporting.comparison.caveats import summary
from experiments.reporting.verdicts import verdicts

pytestmark = pytest.mark.xdist_group("report")
CONFIG = {"model": {"width": 32, "encoding": "rope"}, "data": "text:a", "steps": 400}


def copied(folder, target, **fields):
    """A copy of a comparison whose manifest has other fields; `config` is merged."""
    shutil.copytree(folder, target)
    path = target / "manifest.json"
    about = json.loads(path.read_text())
    about |= fields | {"config": {**about["config"], **fields.get("config", {})}}
    path.write_text(json.dumps(about), encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def parts(fake):
    """Seeds 0–2 of some schemes, seeds 0–2 of others, and seeds 0 and 3 of all."""
    first = fake(["nope", "rope", "alibi"], config=CONFIG)
    other = fake(["rope", "t5", "nope"], config={**CONFIG, "data": "text:b"}, commit="89ab")
    later = fake(["nope", "rope", "alibi", "t5"], seeds=(0, 3), config=CONFIG, speed=False)
    return first, other, later


def test_a_join_is_what_one_comparison_would_have_been(parts, fake, tmp_path, no_pictures):
    one = fake(["nope", "rope", "alibi", "t5"], seeds=(0, 1, 2, 3), config=CONFIG)
    whole, single = joined.read(parts, tmp_path / "joined"), results.read(one)
    assert [s.name for s in whole.schemes] == ["nope", "rope", "alibi", "t5"]
    assert whole.manifest.seeds == [0, 1, 2, 3]
    assert verdicts(whole) == verdicts(single)
    assert {run.status for s in whole.schemes for run in s.runs.values()} == {"ok"}
    page = report.build(whole).read_text(encoding="utf-8")
    assert "Not the same commit in all" in page and "89ab" in page
    assert "ratios hold within one process" in page and "other numbers" not in page


def test_a_joined_report_has_the_commands_that_make_it_in_their_order(parts, tmp_path, no_pictures):
    target, other = tmp_path / "joined", copied(parts[1], tmp_path / "other", commit="89abcde")
    page = report.build(joined.read([parts[0], other], target)).read_text("utf-8")
    (shown,) = re.findall(r"<h3>Commands</h3>\s*<pre><code>(.*?)</code>", page, re.S)
    compare = "python -m experiments.compare --steps=400"
    assert shown.strip().split("\n") == [
        *("git checkout 0123abc", compare, "git checkout 89abcde", compare),
        f"python -m experiments.report --join={parts[0]},{other} --workdir={target}",
    ]


def test_what_the_parts_had_reports_of_before_is_still_noted(parts, tmp_path):
    folder = shutil.copytree(parts[1], tmp_path / "part")
    earlier = {"seeds": [0, 1], "encodings": ["rope", "t5", "nope"]}
    own = {"seeds": [0, 1, 2], "encodings": ["rope", "t5", "nope"]}
    (folder / results.REPORTED).write_text(json.dumps([earlier, own]))
    assert joined.read([parts[0], folder], tmp_path / "joined").reported == (earlier,)


def test_seeds_that_are_joined_after_a_report_are_exploratory(parts, tmp_path):
    first, later = (shutil.copytree(parts[k], tmp_path / str(k)) for k in (0, 2))
    report.declare(results.read(first))  # of seeds 0, 1 and 2
    for _ in range(2):  # a join that is made anew does not forget
        found = joined.read([first, later], tmp_path / "joined")
        assert found.changes == "seed 3 added; encoding t5 added"
        report.declare(found)
    assert summary(found).confidence[0].startswith("Exploratory, not confirmatory: seed 3 added")


def test_encodings_of_several_hosts_are_one_declaration_and_a_join_that_grows_is_not(
    parts, tmp_path
):
    hosts = [shutil.copytree(parts[k], tmp_path / str(k)) for k in (0, 1)]
    for folder in hosts:
        report.declare(results.read(folder))
    target = tmp_path / "joined"
    report.declare(found := joined.read(hosts, target))
    assert found.changes == ""
    assert joined.read(hosts[:1], target).changes == "encoding t5 left out"


def test_what_no_part_has_is_missing_and_other_numbers_of_a_run_are_noted(parts, tmp_path):
    path = copied(parts[2], tmp_path / "other") / "runs" / "alibi" / "seed0" / "evaluation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "losses": {}}))
    found = joined.read([parts[0], tmp_path / "other"], tmp_path / "joined")
    assert {seed: run.status for seed, run in found.scheme("t5").runs.items()} == {
        **dict.fromkeys((1, 2), "missing"),
        **dict.fromkeys((0, 3), "ok"),
    }
    assert "alibi, seed 0: other has other numbers; the first are used." in found.manifest.notes
    assert found.scheme("alibi").runs[0].numbers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"corpus": {"name": "embedded", "digest": "other"}}, "corpus='other'"),
        ({"config": {"steps": 800}}, "steps=800"),
        ({"config": {"eval": {"windows": 99}}}, "eval.windows=99"),
        ({"config": {"eval": {"lengths": [64, 512]}}}, "eval.lengths=(64, 512)"),
        ({"config": {"optimizer": {"learning_rate": 0.5}}}, "optimizer.learning_rate=0.5"),
        ({"config": {"model": {"width": 64}}}, "model.width=64"),
        ({"config": {"reference": "nope"}}, "reference='nope'"),
        ({"config": {"smallest_effect": 0.5}}, "smallest_effect=0.5"),
        ({"config": {"rates": [0.1, 0.2]}}, "rates=(0.1, 0.2)"),
        ({"encodings": [{"name": "rope", "spec": "rope(base=5e5)"}]}, "spec of rope"),
    ],
)
def test_what_is_not_comparable_is_refused_in_one_line(parts, tmp_path, fields, words):
    other = copied(parts[1], tmp_path / "other", **fields)
    with pytest.raises(ValueError, match="not comparable") as error:
        joined.read([parts[0], other], tmp_path / "joined")
    assert words in str(error.value) and str(other) in str(error.value)
    assert "\n" not in str(error.value) and not (tmp_path / "joined").exists()


def test_runs_of_one_scheme_at_two_learning_rates_are_refused(parts, tmp_path):
    folders = [copied(parts[0], tmp_path / name) for name in "ab"]
    for field in ("learning_rate", "encoding_rate"):
        for folder, rate in zip(folders, (0.001, 0.003), strict=True):
            path = folder / "runs" / "rope" / "seed0" / "evaluation.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), field: rate}))
        with pytest.raises(ValueError, match=f"{field} of rope is 0.003"):
            joined.read(folders, tmp_path / "joined")
        for folder in folders:
            path = folder / "runs" / "rope" / "seed0" / "evaluation.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), field: 0.001}))


def test_a_join_is_not_reported_in_the_folder_of_a_comparison(parts):
    with pytest.raises(ValueError, match="holds a comparison"):
        joined.read(parts[1:], parts[0])


def test_every_part_is_compared_with_every_other(parts, fake, tmp_path):
    encodings = [{"name": "rope", "spec": "rope"}, {"name": "t5", "spec": "t5(num_buckets=8)"}]
    third = copied(parts[1], tmp_path / "third", encodings=encodings)
    with pytest.raises(ValueError, match=r"spec of t5 is 't5\(num_buckets=8\)'"):
        joined.read([parts[0], parts[1], third], tmp_path / "joined")
