"""Learning rates in a report: the grid, its edges, multiples for parameters of encodings."""

import json
import re

import numpy as np
import pytest

from experiments.reporting import results
from experiments.reporting.comparison import learning_rates
from experiments.reporting.comparison.caveats import summary
from experiments.running.schedule import rate_search
from tests.reporting.comparisons import SEEDS, Page, build, printed, table

pytestmark = pytest.mark.xdist_group("report")


def test_learning_rates_are_shown_with_what_diverged_and_the_edge_of_the_grid(fake, no_pictures):
    grid = {"rope": (2.5, 2.1, 2.3), "alibi": (None, 2.6, 2.2), "nope": (None, None, None)}
    used = {"rope": 0.01, "alibi": 0.1, "nope": 0.001}
    folder = fake([*grid], speed=False, rates=[0.001, 0.01, 0.1], rate_steps=50)
    for name, losses in grid.items():
        for rate, loss in zip((0.001, 0.01, 0.1), losses, strict=True):
            path = folder / results.rate_folder(name, rate, 1.0) / "evaluation.json"
            path.parent.mkdir(parents=True)
            status = "ok" if loss else "diverged"
            found = {"status": status, "losses": {"non-overlapping": {"64": [loss, loss]}}}
            path.write_text(json.dumps(found), encoding="utf-8")
        for seed in SEEDS:
            path = folder / "runs" / name / f"seed{seed}" / "evaluation.json"
            path.write_text(
                json.dumps({**json.loads(path.read_text()), "learning_rate": used[name]})
            )
    read = results.read(folder)
    rows = {row.name: row for row in learning_rates.rates(read)}
    for name, row in rows.items():
        assert rate_search.best(row.losses) == row.used == (used[name], 1.0)
    assert rows["rope"].remark == ""
    assert rows["alibi"].remark == "an edge of what was tried: 1 may be better"
    assert rows["nope"].remark == "none of them gave a loss: the least was used"
    words = summary(read)
    assert "best of 0.001, 0.01, 0.1 in 50 steps" in words.questions[0]
    assert "Of 9 checks of a learning rate: 4 diverged." in words.confidence
    assert "Best learning rate at the edge of the grid, or none: alibi, nope." in words.confidence
    build(folder)
    text = Page((folder / "report.html").read_text(encoding="utf-8")).text
    assert "Learning rates" in text and "one seed, in nats per token" in text
    shown = {(r["encoding"], r["learning_rate"]): r for r in table(folder / "rates.csv")}
    assert shown["rope", "0.01"]["used"] == "True" and shown["alibi", "0.001"]["loss"] == ""


def test_rates_of_encodings_are_part_of_the_grid(fake, no_pictures):
    losses = {
        "rope": {(0.01, 1.0): 2.1, (0.03, 1.0): 2.2, (0.1, 1.0): 2.3},
        "t5": {(0.01, 1.0): 2.9, (0.01, 30.0): 2.5, (0.03, 1.0): 2.8, (0.03, 30.0): 2.4},
        "alibi": {(0.01, 1.0): 2.9, (0.03, 1.0): 2.5, (0.1, 1.0): 2.8},
    }
    losses["t5"] |= {(0.1, 1.0): 2.6, (0.1, 30.0): None}
    used = {"rope": (0.01, 1.0), "t5": (0.03, 30.0), "alibi": (0.03, 1.0)}
    encodings = [
        {"name": n, "spec": n, "checks": [list(pair) for pair in pairs]}
        for n, pairs in losses.items()
    ]
    grid = {"rates": [0.01, 0.03, 0.1], "encoding_rates": [1.0, 30.0], "rate_steps": 50}
    folder = fake([*losses], speed=False, **grid, encodings=encodings)
    for name, pairs in losses.items():
        for pair, loss in pairs.items():
            path = folder / results.rate_folder(name, *pair) / "evaluation.json"
            path.parent.mkdir(parents=True)
            found = {"status": "ok" if loss else "diverged"}
            found["losses"] = {"non-overlapping": {"64": [loss]}}
            path.write_text(json.dumps(found))
        for run in (folder / "runs" / name).glob("*/evaluation.json"):
            about = dict(zip(("learning_rate", "encoding_rate"), used[name], strict=True))
            about["encoding_parameters"] = 0 if name != "t5" else 128
            run.write_text(json.dumps(json.loads(run.read_text()) | about))
    assert results.rate_folder("t5", 0.03, 30).as_posix() == "rates/t5/0.03x30.0"
    read = results.read(folder)
    rows = {row.name: row for row in learning_rates.rates(read)}
    for name, row in rows.items():
        assert rate_search.best(row.losses) == row.used == used[name]
    assert rows["t5"].remark == "an edge of what was tried: 0.03 (× 900) may be better"
    assert rows["rope"].remark == "an edge of what was tried: 0.00333333 may be better"
    assert rows["alibi"].remark == ""  # it has one multiple, and no edge there
    shown = {s.name: learning_rates.rate_used(read, s) for s in read.schemes}
    assert shown == {"rope": "0.01", "t5": "0.03 (× 30)", "alibi": "0.03"}
    words = "the best of 0.01, 0.03, 0.1, × 1, 30 for parameters of encodings, in 50 steps"
    assert words in learning_rates.rate_words(read)
    edges = "Best learning rate at the edge of the grid, or none: rope, t5."
    assert edges in summary(read).confidence
    text = Page(build(folder).read_text(encoding="utf-8")).text
    assert "encoding 0.01 0.03 0.1 × 1 × 30 used remark" in text
    assert re.search(r"t5 2\.500 2\.400 2\.600 2\.600 2\.400 0\.03 \(× 30\)", text)
    assert re.search(r"alibi 2\.900 2\.500 2\.800 — — 0\.03 ", text)
    listed = {
        (r["encoding"], r["learning_rate"], r["encoding_rate"]): r
        for r in table(folder / "rates.csv")
    }
    assert len(listed) == 12 and listed["t5", "0.03", "30.0"]["used"] == "True"
    assert "0.03 (× 30)" in printed(folder)


def test_one_stated_rate_is_no_grid_that_could_have_an_edge():
    losses = {(0.01, multiple): abs(multiple - 10) for multiple in (1.0, 10.0, 30.0)}
    assert learning_rates._remark(losses, (0.01, 10.0)) == ""
    assert "0.01 (× 90) may be better" in learning_rates._remark(losses, (0.01, 30.0))


def test_ties_of_a_check_go_to_the_least_rate_and_then_the_least_multiple():
    best = rate_search.best
    assert best({(0.1, 1.0): 2.0, (0.01, 30.0): 2.0, (0.01, 10.0): 2.0}) == (0.01, 10.0)
    assert best({(0.1, 1.0): 1.9, (0.01, 30.0): 2.0}) == (0.1, 1.0)
    assert best({(0.1, 1.0): np.inf, (0.01, 30.0): np.inf}) == (0.01, 30.0)


def test_one_stated_rate_of_encodings_is_told_and_older_checks_are_found(fake):
    folder = fake(["rope", "t5"], speed=False, encoding_rate=30.0)
    words = "one learning rate for all (0.001, 30 times that for parameters of encodings)"
    read = results.read(folder)
    assert learning_rates.rate_words(read) == words
    assert learning_rates.rate_used(read, read.scheme("t5")) == "0.001 (× 30)"
    path = folder / "runs" / "rope" / "seed0" / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"encoding_parameters": 0}))
    read = results.read(folder)
    assert (
        learning_rates.rate_used(read, read.scheme("rope")) == "0.001"
    )  # nothing learns at another
    older = folder / "rates" / "rope" / "0.01" / "evaluation.json"
    older.parent.mkdir(parents=True)
    losses = {"non-overlapping": {"64": [2.5]}}
    older.write_text(json.dumps({"status": "ok", "losses": losses}))
    checks = [results.read_check(folder, "rope", pair, 0) for pair in ((0.01, 1), (0.01, 30))]
    assert [results.rate_loss(check, 64) for check in checks] == [2.5, np.inf]


def test_a_rate_that_no_run_used_is_not_shown(fake):
    folder = fake(["nope", "rope"], seeds=(0,), speed=False, rates=[0.1, 0.2], rate_steps=5)
    (scheme, _) = results.read(folder).schemes
    assert learning_rates.rate_used(results.read(folder), scheme) == "—"
    plain = results.read(fake(["nope", "rope"], seeds=(0,), speed=False))
    assert learning_rates.rate_used(plain, plain.schemes[0]) == "0.001"
