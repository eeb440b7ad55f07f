"""The comparison from end to end: stopped, continued, reported, and never mixed with another."""

import csv
import dataclasses
import functools
import itertools
import json
import shutil
import signal
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from experiments.programs import compare
from experiments.reporting import results
from experiments.reporting.comparison import report
from experiments.running.configs.compare import CompareConfig
from experiments.running.files import table
from experiments.running.files.provenance import environment
from experiments.running.files.run_names import folder as folder_of
from experiments.running.training import training_loop as program
from pe_jax.training.config import PROTOCOLS, EvalConfig
from pe_jax.validation import ConfigError
from tests import tiny
from tests.experiments.tiny_comparison import NAMES, RATES, SEEDS, STEPS, settings
from tests.reporting.comparisons import leave_out_pictures
from tests.trainers import at_step, change, interrupt, shared_programs  # noqa: F401

FOLDERS = {"nope": "nope", "learned": folder_of(f"learned(length={tiny.L})")}
CHECKS = 6  # of a table: two rates with two multiples, and one more step of either
pytestmark = pytest.mark.xdist_group("compare")


def chosen(folder) -> CompareConfig:
    """The same, with rates chosen for each encoding, and inference timed at a longer length."""
    rates = {"rates": RATES, "encoding_rates": (1, 4), "rate_steps": STEPS, "rate_rounds": 1}
    return change(settings(folder), **rates, timing_lengths=(32,))


def files(folder) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("evaluation.json")}


@pytest.fixture(scope="module")
def compared(tmp_path_factory, shared_programs):  # noqa: F811
    """A comparison, stopped in its second seed, then continued: folder, files at the stop."""
    folder = tmp_path_factory.mktemp("compared")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "Evaluator", functools.cache(compare.Evaluator))
        leave_out_pictures(patch)  # tests/reporting/test_comparison_page.py looks at them
        with patch.context() as during, pytest.raises(SystemExit) as end:
            at_step(during, CHECKS * STEPS + 2, interrupt)
            compare.main(chosen(folder))
        assert end.value.code == 128 + signal.SIGTERM
        before = files(folder)
        compare.main(chosen(folder))
    return folder, before


def test_a_stopped_comparison_goes_on_and_repeats_nothing(compared, monkeypatch):
    folder, before = compared
    after = files(folder)
    checks = {n: {x for x in after if x.startswith(f"rates/{f}/")} for n, f in FOLDERS.items()}
    assert len(checks["learned"]) == CHECKS  # it has most runs, and is the first
    assert before.keys() == {*checks["learned"], f"runs/{FOLDERS['learned']}/seed5/evaluation.json"}
    runs = {f"runs/{f}/seed{s}/evaluation.json" for f in FOLDERS.values() for s in SEEDS}
    assert after.keys() == runs.union(*checks.values())
    assert before.items() <= after.items()
    for run in (folder / "runs").glob("*/*"):
        rows = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2, 3], run
        evaluated = [row["step"] for row in rows if "eval_loss" in row]
        # a stop at a step does not evaluate
        stopped = run == folder / "runs" / FOLDERS["learned"] / "seed6"
        assert evaluated == ([3] if stopped else [2, 3]), run
    monkeypatch.setattr(compare, "train", None)
    monkeypatch.setattr(compare.model_speed, "measure", None)
    monkeypatch.setattr(report, "build", lambda _: "here")
    compare.main(chosen(folder))
    assert files(folder) == after


def test_each_scheme_is_trained_with_the_best_of_its_learning_rates(compared):
    folder, _ = compared
    shown = (folder / "report.html").read_text()
    assert "Learning rates" in shown and "A demonstration" not in shown
    assert "the outer ones only where the best was at an edge" in shown
    further = {RATES[0]: 0.004, RATES[1]: 0.5, 1: 0.25, 4: 16}  # a step past an end of the grid
    for name in NAMES:
        grid = [*itertools.product(RATES, (1, 4) if name == "learned" else (1,))]
        losses = {}
        for check in (folder / "rates" / FOLDERS[name]).iterdir():
            rate, multiple = map(float, check.name.split("x"))
            found = json.loads((check / "evaluation.json").read_text())
            assert (found["learning_rate"], found["encoding_rate"]) == (rate, multiple)
            assert not (check / "checkpoints").exists()
            losses[rate, multiple] = np.mean(found["losses"]["non-overlapping"][str(tiny.L)])
            config = json.loads((check / "config.json").read_text())
            assert config["eval"]["split"] == "validation" and config["steps"] == STEPS
            assert config["eval"]["lengths"] == [tiny.L]
        rate, multiple = min(grid, key=losses.__getitem__)
        tried = {*grid, (further[rate], multiple)}
        assert losses.keys() == tried | ({(rate, further[multiple])} if len(grid) > 2 else set())
        assert len({*losses.values()}) == len(losses)
        best = min(losses, key=losses.__getitem__)
        for seed in SEEDS:
            run = folder / "runs" / FOLDERS[name] / f"seed{seed}"
            evaluated = json.loads((run / "evaluation.json").read_text())
            optimizer = json.loads((run / "config.json").read_text())["optimizer"]
            for chosen_rates in (evaluated, optimizer):
                pair = chosen_rates["learning_rate"], chosen_rates["encoding_rate"]
                assert pair == best


def test_the_first_seed_is_the_check_of_its_rate_or_trains_to_the_same_bits(
    compared, tmp_path, monkeypatch
):
    folder, _ = compared
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    place = Path("runs", FOLDERS["nope"], f"seed{SEEDS[0]}")
    best = json.loads((folder / place / "evaluation.json").read_text())
    check = folder / "rates" / FOLDERS["nope"] / f"{best['learning_rate']}x1.0"
    assert (check / "metrics.jsonl").read_text() == (folder / place / "metrics.jsonl").read_text()
    shutil.rmtree(again / place)  # and its check has no checkpoint any more
    monkeypatch.setattr(compare.report, "build", lambda _: "here")
    monkeypatch.setattr(compare.report, "summary", lambda _: "")
    compare.main(chosen(again))
    anew = json.loads((again / place / "evaluation.json").read_text())
    assert {**anew, "seconds": 0} == {**best, "seconds": 0}


def test_every_run_has_its_numbers(compared):
    folder, _ = compared
    for name in NAMES:
        for seed in SEEDS:
            run = folder / "runs" / FOLDERS[name] / f"seed{seed}"
            found = json.loads((run / "evaluation.json").read_text())
            assert found["status"] == "ok" and found["seconds"] > 0 and found["train_loss"] > 0
            assert found["flops_per_token"] > 0
            table = tiny.L * 16 if name == "learned" else 0
            assert found["encoding_parameters"] == table < found["parameters"]
            losses = found["losses"]["non-overlapping"]
            assert len(losses[str(tiny.L)]) == 6 and np.isfinite(losses[str(tiny.L)]).all()
            assert (losses[str(2 * tiny.L)] is None) == (name == "learned")
            assert set(found["losses"]) == set(PROTOCOLS)
            with np.load(run / "encoding.npz") as arrays:
                shapes = [arrays[x].shape for x in arrays.files]
            assert shapes == ([(tiny.L, 16)] if name == "learned" else [])
            config = json.loads((run / "config.json").read_text())
            assert config["seed"] == seed and config["model"]["vocab"] == tiny.V
    runs = [json.loads(x)["losses"] for x in files(folder / "runs").values()]
    assert len({json.dumps(x) for x in runs}) == 4  # seeds and schemes are told apart


def test_operations_are_counted_in_every_layer_scanned_or_not(tmp_path):
    """XLA counts the body of a loop once: `rope*3,nope` had four layers where `rope` had one."""

    def count(spec: str, layers: int) -> float:
        config = change(settings(tmp_path), model={"encoding": spec, "layers": layers})
        trainer = compare.prepare(compare.with_vocab(config, tiny.V))
        return compare.traced_flops_per_token(config, trainer)

    scanned = count("rope", 8)
    assert count("rope*3,nope", 8) == scanned
    assert scanned - count("rope", 4) == count("rope", 12) - scanned > 0


def test_speed_is_measured_for_every_scheme_in_turn(compared):
    folder, _ = compared
    speed = json.loads((folder / "speed.json").read_text())
    assert list(speed["encodings"]) == list(NAMES)
    for found in speed["encodings"].values():
        assert len(found["train_ms"]) == len(found["eval_ms"]) == 5
        assert min(found["train_ms"]) > 0 and found["train_temp_bytes"] > 0


def test_times_are_of_the_tokens_that_a_call_computes(tmp_path, monkeypatch, shared_programs):  # noqa: F811
    config = change(settings(tmp_path), timing_lengths=(64,))
    config = change(config, model=tiny.config("nope"))
    evaluator = compare.Evaluator(compare.prepare(compare.with_vocab(config, tiny.V)), config.eval)
    rows = []
    evaluate = compare.Evaluator.run
    monkeypatch.setattr(
        compare.Evaluator, "run", lambda e, p, x: (rows.append(x.shape), evaluate(e, p, x))[1]
    )
    seconds = lambda programs, repeats, proceed: {name: [1.0] * repeats for name in programs}  # noqa: E731
    monkeypatch.setattr(compare.model_speed.timing, "interleave", seconds)
    found = compare.model_speed.measure({"nope": evaluator}, tiny.R, tiny.L, (64,), 5)
    count = tiny.R * tiny.L // 64  # rows of a batch at that length
    there = found["lengths"]["64"]
    assert there["batch"] == count and rows[-1] == (count, 65)
    inferred = {"prefill_ms": 64 / 48, "decode_ms": 1 / 16}
    for what, each in {"train_ms": 1, "eval_ms": 1, **inferred}.items():
        np.testing.assert_allclose(there["encodings"]["nope"][what], 1e3 * each, err_msg=what)


@pytest.mark.parametrize(
    "error, words",
    [
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
            "out of memory with 2 programs of other schemes",
        ),
        (ValueError("no such length"), "ValueError: no such length"),
    ],
)
def test_a_scheme_that_fails_in_timing_is_words(error, words, tmp_path, monkeypatch):
    config = settings(tmp_path)
    there = compare.Evaluator(
        compare.prepare(change(config, model=tiny.config("nope"))), EvalConfig()
    )
    full = compare.Evaluator(
        compare.prepare(change(config, model=tiny.config("rope"))), EvalConfig()
    )

    def compiled(*_):
        raise error

    monkeypatch.setattr(full.trainer, "compile", compiled)
    found = compare.model_speed.measure({"nope": there, "rope": full}, tiny.R, tiny.L, (), 5)[
        "encodings"
    ]
    assert found["rope"]["problem"] == words
    assert len(found["nope"]["train_ms"]) == 5


def test_inference_is_timed_at_other_lengths_where_a_scheme_is_defined(compared):
    folder, _ = compared
    there = json.loads((folder / "speed.json").read_text())["lengths"]["32"]
    assert there["batch"] == tiny.R * tiny.L // 32
    assert there["encodings"]["learned"] == {"problem": "not defined"}
    found = there["encodings"]["nope"]
    assert {*found} == {"train_ms", "eval_ms", "prefill_ms", "decode_ms", "train_temp_bytes"}
    assert all(len(found[x]) == 5 and min(found[x]) > 0 for x in found if x.endswith("_ms"))
    with (folder / "speed.csv").open(newline="") as file:
        rows = {
            (r["encoding"], r["measure"]): r for r in csv.DictReader(file) if r["length"] == "32"
        }
    decoded = rows["nope", "decode_ms"]
    rate = there["batch"] / np.median(found["decode_ms"]) * 1e3
    np.testing.assert_allclose(float(decoded["tokens_per_second"]), rate)
    assert float(decoded["median_ratio"]) == 1 and rows["learned", ""]["problem"] == "not defined"
    assert (
        "Decoding one token, by length: microseconds per token"
        in (folder / "report.html").read_text()
    )


def test_the_manifest_says_what_was_compared(compared):
    folder, _ = compared
    saved = json.loads((folder / "manifest.json").read_text())
    assert {*saved} == {"config", "corpus", "grids", "looks", "versions", "command", "code"} | {
        *environment()
    }
    assert saved["code"] == {}  # no encoding of the user's own
    about = results.read(folder).manifest
    specs = {x["name"]: x["spec"] for x in about.encodings}
    assert specs == {"nope": "nope", "learned": f"learned(length={tiny.L})"}
    assert about.seeds == list(SEEDS) and about.steps == STEPS
    assert about.primary == {"protocol": "non-overlapping", "length": 2 * tiny.L}
    assert about.secondary == {"protocol": "non-overlapping", "length": tiny.L}
    assert about.smallest_effect == 0.01
    assert about.corpus["name"] == "synthetic:copy" and len(about.corpus["digest"]) == 64


def test_the_report_is_there(compared):
    folder, _ = compared
    page = (folder / "report.html").read_text()
    assert all(name in page for name in NAMES) and "not defined" in page
    assert list((folder / "figures").glob("*.png")) and (folder / "loss_by_length.csv").exists()


def test_an_encoding_that_comes_later_is_timed_with_the_others(compared, monkeypatch, tmp_path):
    folder, _ = compared
    more = tmp_path / "more"
    shutil.copytree(folder, more)
    timed = []
    monkeypatch.setattr(compare.SchemeRuns, "train_run", lambda *_: {"status": "ok"})
    note = lambda e, *_: timed.extend(e) or {"encodings": {}}  # noqa: E731
    monkeypatch.setattr(compare.model_speed, "measure", note)
    monkeypatch.setattr(report, "build", lambda _: "here")
    monkeypatch.setattr(report, "summary", lambda _: "")
    compare.main(change(chosen(more), encodings=("nope", "learned(length={length})", "alibi")))
    assert timed == [*NAMES, "alibi"]


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"seed": 7}, ("seed=7", "made with 5")),
        ({"steps": 4}, ("steps=4", "3")),
        ({"length": 8}, ("length=8", "made with 12")),
        ({"data": "synthetic:reverse"}, ("data='synthetic:reverse'", "made with")),
        ({"model": {"width": 32}}, ("model.width=32", "made with 16")),
        ({"eval": {"windows": 7}}, ("eval.windows=7", "made with 6")),
        ({"rates": (0.01, 1.0)}, ("rates=(0.01, 1.0)", "made with (0.02, 0.1)")),
        ({"rate_steps": 2}, ("rate_steps=2", "made with 3")),
        ({"rate_rounds": 0}, ("rate_rounds=0", "made with 1")),
        ({"reference": "nope"}, ("reference='nope'", "made with 'learned(length=12)'")),
        ({"protocol": "sliding"}, ("protocol='sliding'", "made with 'non-overlapping'")),
        ({"smallest_effect": 0.5}, ("smallest_effect=0.5", "made with 0.01")),
        (
            {"encodings": ("nope", "learned(length=40)")},
            ("reference='learned(length=40)'", "made with 'learned(length=12)'"),
        ),
    ],
)
def test_another_comparison_in_the_same_folder_is_refused(compared, fields, words):
    config = change(chosen(compared[0]), **fields).resolved()
    with pytest.raises(ConfigError) as error:
        compare.looks(config, source(config.data))
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


@functools.cache
def source(data: str) -> program.Source:
    config = change(settings("unused"), data=data)
    return program.open_source(config, config.eval)[0]


def test_the_refusal_of_another_comparison_is_one_line_and_changes_nothing(compared, capsys):
    folder, _ = compared
    before = files(folder), (folder / "manifest.json").read_bytes()
    with pytest.raises(SystemExit) as end:
        compare.main(change(chosen(folder), seed=7))
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.startswith("error: seed=7") and error.count("\n") == 1
    assert before == (files(folder), (folder / "manifest.json").read_bytes())


def test_a_diverged_run_is_noted_and_the_others_go_on(tmp_path, monkeypatch, shared_programs):  # noqa: F811
    config = change(settings(tmp_path), encodings=("nope",), reference="nope")
    train = compare.train

    def diverges(run, *rest, **more):
        if run.seed == 5:
            raise program.Diverged("loss nan by step 2: the output of layer 1 is not finite")
        return train(run, *rest, **more)

    monkeypatch.setattr(compare, "train", diverges)
    monkeypatch.setattr(compare.model_speed, "measure", lambda *_: {})
    monkeypatch.setattr(compare.report, "build", lambda _: "here")
    monkeypatch.setattr(compare.report, "summary", lambda _: "")
    monkeypatch.setattr(compare, "evaluate", lambda *_: {"losses": {}})
    compare.main(config)
    found = [json.loads(x) for _, x in sorted(files(tmp_path).items())]
    assert [x["status"] for x in found] == ["diverged", "ok"] and "layer 1" in found[0]["reason"]


def test_without_the_run_of_a_rate_none_is_chosen(tmp_path):
    trainer = types.SimpleNamespace(config=tiny.config("nope"), mesh=None)
    evaluator: Any = types.SimpleNamespace(trainer=trainer)
    pairs = [(rate, 1.0) for rate in RATES]
    sources: Any = (None, None)
    runs = compare.SchemeRuns(settings(tmp_path), sources, "nope", pairs, evaluator)()
    assert len(next(runs)) == len(RATES)
    # A second start may find that rate to be the best.
    for run in runs.send([{"status": "failed"}] * len(RATES)):
        with pytest.raises(RuntimeError, match="the run of a rate failed: none is chosen"):
            run.train(None)


@pytest.mark.usefixtures("shared_programs")
def test_a_run_that_fails_is_in_the_report_and_the_others_are_finished(
    tmp_path, monkeypatch, capsys
):
    leave_out_pictures(monkeypatch)
    config = change(settings(tmp_path), encodings=("nope", "rope"), reference="rope")
    train, timed = compare.train, []

    def fails(run, *rest, **more):
        if run.model.encoding == "nope" and run.seed == 5:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return train(run, *rest, **more)

    note = lambda e, *_: timed.extend(e) or {"encodings": {}}  # noqa: E731
    monkeypatch.setattr(compare.model_speed, "measure", note)
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(compare, "train", fails)
        compare.main(config)
    assert end.value.code == 1 and "nope seed 5: JaxRuntimeError" in capsys.readouterr().err
    nope, rope = results.read(tmp_path).schemes
    assert [run.status for run in (*nope.runs.values(), *rope.runs.values())] == [
        *("failed", "ok", "ok", "ok")
    ]
    assert "Out of memory" in nope.runs[5].reason and timed == ["rope"]
    assert "failed in seed 5" in (tmp_path / "report.html").read_text()
    before = files(tmp_path)
    compare.main(config)  # tries that one again
    assert before.items() < files(tmp_path).items() and timed == ["rope", "nope", "rope"]
    assert results.read(tmp_path).schemes[0].runs[5].status == "ok"


@pytest.mark.usefixtures("shared_programs")
def test_a_last_look_is_at_the_kept_files_alone_and_is_counted(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for name in ("train/a", "validation/b", "test/c", "test/d"):
        path = tmp_path / "text" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.integers(97, 101 if name[-1] != "d" else 123, 900, np.uint8).tobytes())
    leave_out_pictures(monkeypatch)
    monkeypatch.setattr(compare.model_speed, "measure", lambda *_: {"of": None, "encodings": {}})
    lengths = {"lengths": (tiny.L, 2 * tiny.L), "stride": tiny.L}
    evaluation = EvalConfig(**lengths, windows=6, split="test", kept=("d.txt",))
    common = {"data": f"text:{tmp_path / 'text'}", "eval": evaluation, "reference": "nope"}
    config = change(settings(tmp_path / "runs"), **common, encodings=("nope", "rope"))
    with pytest.raises(SystemExit, match="2"):
        compare.look(config)
    assert "runs/nope/seed5 is not finished" in capsys.readouterr().err
    compare.main(config)
    before = files(tmp_path / "runs")
    assert json.loads((tmp_path / "runs/manifest.json").read_text())["looks"] == []
    other = change(config, eval=dataclasses.replace(evaluation, kept=()))
    with pytest.raises(SystemExit, match="2"):
        compare.look(change(other, workdir=str(tmp_path / "other")))
    assert "eval.kept=(): no files were kept" in capsys.readouterr().err
    for count in (1, 2):
        compare.look(config)
        looks = json.loads((tmp_path / "runs/manifest.json").read_text())["looks"]
        assert len(looks) == count and looks[-1]["windows"] == 6
    compare.main(config)  # keeps the count
    assert len(json.loads((tmp_path / "runs/manifest.json").read_text())["looks"]) == 2
    assert files(tmp_path / "runs") == before
    assert "rope" in capsys.readouterr().out
    losses = []
    for name, seed in itertools.product(("nope", "rope"), SEEDS):
        run = tmp_path / "runs" / "runs" / name / f"seed{seed}"
        seen, kept = (
            json.loads((run / file).read_text())["losses"]["sliding"][str(tiny.L)]
            for file in ("evaluation.json", "last_look.json")
        )
        assert np.mean(kept) > np.mean(seen) + 0.1  # letters that the model was not trained on
        losses += kept
    rows = table.read(tmp_path / "runs" / "last_look.csv")
    written = [x for r in rows if (r.test, r.length) == ("sliding", tiny.L) for x in r.parts]
    np.testing.assert_allclose(written, losses, atol=1e-6)
