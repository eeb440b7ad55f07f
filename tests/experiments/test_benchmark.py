"""The benchmark end to end on tiny sizes; what it makes of its numbers, on numbers made up."""

import csv
import dataclasses
import json
import sys

import jax
import numpy as np
import pytest

from experiments.measuring import benchmark_settings, timing, training_steps, workloads
from experiments.measuring.benchmark_settings import Settings
from experiments.measuring.timing import Row, Timings
from experiments.programs import benchmark
from experiments.reporting import benchmark_report
from experiments.running.command import launch
from experiments.running.process import signals
from pe_jax.models.config import ModelConfig
from tests.command_lines import status

FORWARD, BACKWARD = workloads.MODES["forward"] + workloads.MODES["backward"]
FEW = ("nope", "shaw", "t5", "rope", workloads.PLAIN, "fox", "wavlm", "rerope", "cope")
TINY = Settings(lengths=(32,), heads=2, head_dim=8, engines=("ours",), schemes=FEW)
FORWARDS = ("nope", "shaw", "fox")  # the others in the backward pass alone
pytestmark = pytest.mark.xdist_group("benchmark")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Folders of two runs, all their rows, and the outputs of every program."""
    folder, rows, outputs = tmp_path_factory.mktemp("benchmark"), [], {}

    def build(*args, original=benchmark.build):
        for row, program in original(*args):
            outputs[row.key] = jax.tree.leaves(program.run()) if program else None
            yield row, program

    runs = {
        "backward": {"modes": ("backward",), "engines": ("ours", "jax.nn")},
        "forward": {"modes": ("forward", "decode"), "schemes": FORWARDS},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "LEAST", 0)
        patch.setattr(benchmark, "build", build)
        for name, given in runs.items():
            settings = dataclasses.replace(TINY, **given, out=str(folder / name))
            rows += benchmark.main(settings).rows
    return folder, Timings(tuple(rows)), outputs


def test_every_scheme_and_mode_has_its_numbers(measured):
    _, results, _ = measured
    wanted = {(32, m, s) for m in (FORWARD, "decoding step") for s in FORWARDS}
    wanted |= {(32, BACKWARD, s) for s in FEW}
    assert wanted == {row.key[:3] for row in results.rows if row.engine == "ours"}
    for row in results.rows:
        assert len(row.seconds) == 5 and 0 < min(row.seconds) and max(row.seconds) < 60, row
        assert row.temp_bytes > 0 and row.compile_seconds > 0, row
        assert bool(row.note) == (row.key[2:] == ("shaw", "jax.nn")), row
        assert results.ratios(row)["to_none"] > 0


def test_the_results_are_in_files(measured):
    folder, results, _ = measured
    folder /= "backward"
    about = json.loads((folder / "benchmark.json").read_text())
    assert about["flags"]["heads"] == 2 and "cpu" in about["device"] and "jax" in about["versions"]
    with (folder / "benchmark.csv").open(encoding="utf-8", newline="") as file:
        lines = [*csv.DictReader(file)]
    mine = [row for row in results.rows if row.mode == BACKWARD]
    for line, row in zip(lines, mine, strict=True):
        assert (int(line["length"]), line["mode"], line["scheme"], line["engine"]) == row.key
        assert [float(x) / 1e3 for x in line["ms"].split()] == pytest.approx(row.seconds, rel=1e-5)
        assert float(line["ms_median"]) == pytest.approx(1e3 * np.median(row.seconds))
        assert int(line["samples"]) == 5 and int(line["temp_bytes"]) == row.temp_bytes
        assert line["note"] == row.note and line["tokens"] == line["growth"] == ""
        for name, ratio in results.ratios(row).items():
            assert line[name] == ("" if ratio is None else str(ratio))


def test_jax_nn_computes_what_we_compute(measured):
    """Outputs are the gradients of q, k, v and of every parameter."""
    told = [key[2] for key in measured[2] if key[:2] == (32, BACKWARD) and key[3] == "jax.nn"]
    assert {"rope", "t5", "fox", "wavlm"} <= set(told) and not {"rerope", "cope"} & set(told)
    for name in told:
        if name != "shaw":  # jax.nn takes no vectors at the values
            ours, naive = (measured[2][32, BACKWARD, name, e] for e in ("ours", "jax.nn"))
            for a, b in zip(ours, naive, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5, err_msg=name)


def test_programs_take_turns_and_a_round_that_is_not_whole_is_left_out(monkeypatch):
    monkeypatch.setattr(timing, "LEAST", 0)
    calls: list[str] = []
    programs = {name: lambda name=name: calls.append(name) for name in "abcd"}
    found = timing.interleave(programs, 6)
    rounds = ["".join(calls[i : i + 4]) for i in range(4, len(calls), 4)]
    assert len(rounds) == 6 and len({*rounds}) > 1
    assert all(sorted(r) == [*"abcd"] for r in rounds)
    assert {len(seconds) for seconds in found.values()} == {6}
    calls.clear()
    found = timing.interleave(programs, 6, proceed=lambda done: len(calls) < 4 + 2 * 4 + 3)
    assert {len(seconds) for seconds in found.values()} == {2}


def row(scheme, ms, length=4096, mode=FORWARD, engine="ours", temp=2**20) -> Row:
    return Row(length, mode, scheme, engine, tuple(x / 1e3 for x in ms), temp, 1.0)


def test_ratios_are_paired_by_round():
    none, slow = row("nope", [10, 20, 40]), row("rope", [11, 24, 44], temp=300)
    naive = row("rope", [33, 96, 88], engine="jax.nn")
    twice = row("rope", [1, 1, 1], length=8192, temp=630)
    dense = row("rope", [22, 24, 88], engine="dense")
    others = [row(name, [5.5, 6, 11], engine="sdpa") for name in ("nope", "rope")]
    results = Timings((none, slow, naive, twice, dense, *others))
    assert results.ratios(slow) == pytest.approx(
        {
            "to_none": 1.1,
            "to_none_of_minima": 1.1,
            "to_sdpa": 4,
            "sdpa_to_this": 0.25,
            "naive_to_this": 3,
            "dense_to_this": 2,
            "growth": 2.1,
            "share_of_large": None,
            "share_of_own": None,
            "ours_to_this": None,
        }
    )
    assert results.ratios(naive)["naive_to_this"] is None
    assert results.ratios(twice)["to_none"] is None
    assert results.ratios(Row(4096, FORWARD, "t5", "ours", note="no"))["to_none"] is None


def test_training_steps_are_compared_in_a_table(monkeypatch, tmp_path):
    tiny = training_steps.Size(ModelConfig(vocab=257, width=16, layers=1, heads=2), 16, 8)
    monkeypatch.setitem(training_steps.SIZES, "0.1M", tiny)
    monkeypatch.setattr(training_steps, "SIDE", 32)
    monkeypatch.setattr(timing, "LEAST", 0)
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    monkeypatch.delitem(sys.modules, "experiments.measuring.torch_model", raising=False)
    monkeypatch.delitem(sys.modules, "experiments.measuring.torch_attention", raising=False)
    engines = ("ours", "jax", "torch")
    given = {"modes": ("train",), "train_sizes": ("0.1M",), "engines": engines}
    timings = benchmark.main(dataclasses.replace(TINY, **given, out=str(tmp_path / "run")))
    rows = {row.key[2:]: row for row in timings.rows}
    ours, plain, product = rows["rope", "ours"], rows["rope", "jax"], rows["matmuls", "of the MLP"]
    assert "torch" in rows["rope", "torch"].note and not rows["rope", "torch"].seconds
    assert product.note == f"128 × 16 × {tiny.model.hidden}"
    projections = 128 * (4 * 16 * 16 + 3 * 16 * tiny.model.hidden + 16 * 257)
    scores = 2 * 16 * 8 * 8 * 16
    assert ours.operations == plain.operations == 6 * (projections + scores)
    assert ours.tokens == 128 and timings.ratios(ours)["ours_to_this"] is None
    median = timing.paired(ours, plain)
    assert timings.ratios(plain)["ours_to_this"] == median
    share, to_product = timings.ratios(plain)["share_of_own"], timing.paired(product, plain)
    assert to_product and plain.operations and product.operations
    assert share == pytest.approx(to_product * plain.operations / product.operations)
    table, *notes = benchmark_report.terminal(timings, *ours.key[:2])
    columns = {column.header: [*column.cells] for column in table.columns}
    assert "tokens/s" in columns and "÷ none" not in columns
    assert any(cell.startswith(f"{median:.2f} (") for cell in columns["ours ÷ this"])
    assert any("rope (torch): not run" in note for note in notes)


def test_what_fails_is_a_row_with_the_reason(monkeypatch, tmp_path):
    def fails(*_):
        raise RuntimeError("no\ncompiler")

    monkeypatch.setattr(workloads, "_in_torch", fails)
    monkeypatch.setattr(timing, "LEAST", 0)
    given = {"schemes": ("nope", "rope"), "engines": ("ours", "dense", "flex"), "dense_limit": 16}
    settings = dataclasses.replace(TINY, **given, modes=("forward",))
    found = {r.key[2:]: r for r in benchmark.measure(settings, 32, FORWARD, signals.Stop())}
    assert found["nope", "flex"].note == "RuntimeError: no compiler"
    assert "limited to length 16" in found["rope", "dense"].note and ("rope", "flex") not in found
    assert [r.note for r in found.values() if r.seconds] == [""] * 2
    monkeypatch.setattr(workloads, "free_bytes", lambda: 10)
    (row, *_) = benchmark.measure(settings, 32, FORWARD, signals.Stop())
    assert not row.seconds and "GiB are free" in row.note


def test_a_signal_ends_it_and_what_is_there_is_written(monkeypatch, tmp_path):
    stop = signals.Stop()

    def interrupted(programs, *_, **__):
        stop.signal = 2
        return {next(iter(programs)): [0.001]}

    monkeypatch.setattr(timing, "interleave", interrupted)
    given = {"schemes": ("nope", "rope"), "engines": ("ours",), "out": str(tmp_path)}
    first, second = benchmark.run(dataclasses.replace(TINY, **given), stop).rows
    assert first.seconds == (0.001,) and "stopped" in second.note
    assert "stopped" in (tmp_path / "benchmark.csv").read_text().splitlines()[2]


@pytest.fixture
def command(capsys):
    """Command line → the line of its error."""

    def start():
        benchmark_settings.define()
        launch.run_flags(lambda: benchmark.main(benchmark_settings.settings()))

    def call(*args: str) -> str:
        assert status(start, *args) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
        return error

    return call


@pytest.mark.parametrize(
    "flag, words",
    [
        ("--lengths=4k", "lengths='4k': pass integers of at least 2"),
        ("--lengths=64,1", "lengths=(64, 1): pass integers of at least 2"),
        ("--lengths=64,64", "lengths=(64, 64): pass integers of at least 2, each once"),
        ("--schemes=nope,rop", "schemes='rop': did you mean 'rope'?"),
        ("--schemes=rope", "schemes=('rope',): add nope"),
        ("--modes=forwards", "modes='forwards': did you mean 'forward'?"),
        ("--engines=jax.n", "engines='jax.n': did you mean 'jax.nn'?"),
        ("--train_sizes=3M", "train_sizes='3M': did you mean '3.2M'?"),
        ("--dtype=bf16", "dtype='bf16': pass float32 or bfloat16; did you mean 'bfloat16'?"),
        ("--repeats=3", "repeats=3: pass an integer of at least 5"),
        ("--heads=two", "heads=two"),
        ("--head_dim=7", "schemes='rope': head_dim=7"),
        ("--nocausal", "causal=False: decoding is causal: take it out of --modes"),
        ("--length=64", "--length is not a flag; did you mean --lengths?"),
        ("now", "'now' is not a flag"),
    ],
)
def test_a_bad_flag_is_one_line(command, tmp_path, flag, words):
    assert words in command(f"--out={tmp_path / 'run'}", flag)
    assert not (tmp_path / "run").exists()


def test_a_scheme_that_needs_a_causal_mask_is_refused_before_anything_runs(command, tmp_path):
    flags = "--nocausal", "--modes=forward", "--schemes=nope,t5"
    said = command(f"--out={tmp_path / 'run'}", *flags)
    assert "schemes='t5': causal=False: all later tokens look alike to T5" in said


def test_results_are_not_written_over(command, tmp_path):
    (tmp_path / "benchmark.csv").write_text("mine")
    assert "choose another folder" in command(f"--out={tmp_path}")
    assert (tmp_path / "benchmark.csv").read_text() == "mine"


def test_a_first_call_is_compiled_in_each_round(monkeypatch):
    sizes = workloads.Sizes(1, 2, 4, "float32", True)
    (row,) = workloads.plan(sizes, 9, "first call", ("rope",), ("ours",), {})
    kept = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", True)
    with pytest.raises(timing.Refused, match="JAX_ENABLE_COMPILATION_CACHE=0"):
        row.compile()
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        program, traced = row.compile(), []
        monkeypatch.setattr(workloads, "attend", lambda *_: lambda *x: traced.append(1) or x[1])
        for _ in range(2):
            program.run()
    finally:
        jax.config.update("jax_enable_compilation_cache", kept)
    assert len(traced) == 2
