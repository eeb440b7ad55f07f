"""The training program: stopped, resumed, evaluated, logged."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import struct
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tensorboardX.proto.event_pb2 import Event, SessionLog

from experiments import generate
from experiments.running.configs.extend import ExtendConfig
from experiments.running.configs.images import ImagesConfig
from experiments.running.configs.tasks import TasksConfig
from experiments.running.process import profiler, signals
from experiments.running.training import trained_run
from experiments.running.training import training_loop as program
from pe_jax.training import tokenizer, utilization
from pe_jax.training.config import Config
from pe_jax.training.evaluate import Evaluator
from pe_jax.training.step import Trainer
from pe_jax.validation import ConfigError
from tests.experiments.tiny_run import (
    losses,
    main,
    rows_of,
    settings,
    stopped,
    tiny_config,  # noqa: F401
)
from tests.tiny import L
from tests.trainers import OPTIMIZER, change, shared_programs  # noqa: F401

pytestmark = pytest.mark.xdist_group("runs")  # they share programs


@pytest.fixture(scope="module")
def continued(tmp_path_factory, shared_programs):  # noqa: F811
    """A run that is stopped in its third step, kept as it is then, and continued.

    Its config, the exit status at the stop, the state at the end.
    """
    folder = tmp_path_factory.mktemp("continued")
    config = change(settings(folder), positions="randomized(maximum=40)")
    with pytest.MonkeyPatch.context() as patch:
        status = stopped(config, patch, 3, signal.SIGTERM)
        shutil.copytree(folder / "run", folder / "stopped")
        shutil.rmtree(folder / "run" / "events")  # the next may have the same name, of one second
        return config, status, main(config, patch)


def copied(continued, tmp_path) -> Config:
    """The config of a copy of the run as it was when it stopped."""
    config, *_ = continued
    shutil.copytree(pathlib.Path(config.workdir).parent / "stopped", tmp_path / "run")
    return change(config, workdir=str(tmp_path / "run"))


# 42, 50, 51
def test_a_stopped_run_resumes_bitwise(continued, monkeypatch, tmp_path):
    config, status, got = continued
    run, straight = pathlib.Path(config.workdir), tmp_path / "straight"
    want = main(change(config, workdir=str(straight)), monkeypatch)
    assert status == 143 and not (run.parent / "stopped" / "evaluation.json").exists()
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert losses(config) == losses(change(config, workdir=str(straight)))
    assert len(losses(config)) == int(got.step) == 6
    assert losses(config)[-1][1] < losses(config)[0][1]
    found, wanted = (json.loads((x / "evaluation.json").read_text()) for x in (run, straight))
    assert found["losses"] == wanted["losses"] and found["status"] == "ok"
    model, _ = trained_run.load(run)
    read = nnx.as_pure(nnx.state(model, nnx.Param))
    jax.tree.map(np.testing.assert_array_equal, read, got.params)
    with monkeypatch.context() as patch:  # 42: nothing is left to do
        patch.setattr(program, "train", None)
        program.run(config)


def test_a_run_is_evaluated_along_the_way_and_logs_the_mean_since_the_last_row(
    config, monkeypatch, tmp_path
):
    every = dataclasses.replace(config, workdir=str(tmp_path / "every"))
    main(every, monkeypatch)
    each = [row["loss"] for row in rows_of(every)]
    assert all("eval_loss" not in row for row in rows_of(every))  # 0: none
    config = change(config, log_every=4, eval={"every": 4})
    main(config, monkeypatch)
    rows = rows_of(config)
    assert [row["step"] for row in rows] == [1, 4, 6]  # the first, those asked for, the last
    means = [each[0], np.mean(each[1:4]), np.mean(each[4:])]
    np.testing.assert_allclose([row["loss"] for row in rows], means, rtol=1e-6)
    assert [row["step"] for row in rows if "eval_loss" in row] == [4, 6]
    found = json.loads(pathlib.Path(config.workdir, "evaluation.json").read_text())
    want = np.mean(found["losses"]["non-overlapping"][str(L)])
    assert rows[-1]["eval_loss"] == pytest.approx(want, rel=1e-6) != rows[1]["eval_loss"]
    assert rows[0]["learning_rate"] == 0 < rows[2]["learning_rate"] < rows[1]["learning_rate"]


def events(path: pathlib.Path) -> list:
    """The events of a file for TensorBoard: a length, its checksum, an event, its checksum."""
    found, rest = [], path.read_bytes()
    while rest:
        (size,) = struct.unpack("Q", rest[:8])
        found.append(Event.FromString(rest[12 : 12 + size]))
        rest = rest[16 + size :]
    return found


def test_tensorboard_reads_the_rows_and_what_a_continued_run_does_again_is_hidden(continued):
    config, *_ = continued
    for name, steps in (("stopped", (1, 2, 3)), ("run", (4, 5, 6))):
        (path,) = (pathlib.Path(config.workdir).parent / name / "events").iterdir()
        version, start, *rows = events(path)
        assert version.file_version == "brain.Event:2"
        assert start.step == steps[0] and start.session_log.status == SessionLog.START
        assert tuple(row.step for row in rows) == steps
        shown = {value.tag: value.simple_value for value in rows[-1].summary.value}
        assert shown["loss"] == pytest.approx(dict(losses(config))[steps[-1]])


def test_a_run_says_its_speed_and_share_of_the_peak_and_the_time_left(config, monkeypatch):
    seen, kinds = [], {d.device_kind: 1e9 for d in jax.devices()}
    monkeypatch.setattr(utilization, "PEAKS", kinds)
    monkeypatch.setattr(program.metrics.logging, "info", lambda *x: seen.append(x))
    main(change(config, log_every=2), monkeypatch)
    rows = rows_of(config)
    trainer = program.prepare(program.with_vocab(config, 257))
    flops = utilization.flops_per_token(trainer.config, trainer.shapes, L)
    for row in rows:
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] * flops / 1e9)
    lines = [line[0] % line[1:] for line in seen if "step %d/%d" in str(line[0])]
    assert all(f"MFU {row['mfu']:.0%}" in line for row, line in zip(rows, lines, strict=True))
    assert len(lines) == 4 and "left" not in lines[0]  # one step says nothing
    assert all(line.endswith(" left") for line in lines[1:])
    kinds.clear()
    other = change(config, workdir=config.workdir + "2")
    main(other, monkeypatch)
    assert {row["mfu"] for row in rows_of(other)} == {None}


def test_a_profile_is_a_trace_of_a_few_steps_that_says_how_to_open_it(config, monkeypatch):
    seen = []
    monkeypatch.setattr(profiler.logging, "info", lambda *x: seen.append(x))
    monkeypatch.setattr(profiler, "STEPS", 2)
    program.run(config, profile=True)
    (line,) = (x[0] % x[1:] for x in seen if str(x[0]).startswith("Trace"))
    (trace,) = pathlib.Path(config.workdir, "profile").rglob("perfetto_trace.json.gz")
    assert "2 steps from 5 on" in line and f"drop {trace} on" in line and "xprof --logdir" in line
    assert trace.stat().st_size > 1000


class Slow:
    """A trainer whose steps take the device long, and the host no time."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.losses, self.queued = trainer, [], []
        self.wait = jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda i, x: jnp.tanh(x @ x), x))
        self.block = jnp.ones((256, 256))
        self.wait(self.block).block_until_ready()

    def __getattr__(self, name):
        return getattr(self.trainer, name)

    def step(self, state, batch, seed):
        state, metrics = self.trainer.step(state, batch, seed)
        self.block = self.wait(self.block)
        self.losses.append(metrics.loss + 0 * self.block[0, 0])
        self.queued.append(sum(not loss.is_ready() for loss in self.losses))
        return state, metrics._replace(loss=self.losses[-1])


class Ended:
    """The statuses with which the process would have ended."""

    def __init__(self, monkeypatch):
        self.statuses = []
        monkeypatch.setattr(signals.os, "_exit", self.statuses.append)

    def wait(self) -> list[int]:
        until = time.monotonic() + 30
        while not self.statuses and time.monotonic() < until:
            time.sleep(0.01)
        return self.statuses


# 69
# 81
def test_a_hangup_is_ignored_where_it_is_and_only_what_a_user_repeats_exits_at_once(monkeypatch):
    ended, before = Ended(monkeypatch), signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup
    try:
        with signals.Stop() as stop:
            signal.raise_signal(signal.SIGHUP)
            time.sleep(0.1)
            assert stop.signal is None
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with signals.Stop() as stop:
            for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGUSR1):
                signal.raise_signal(number)
            time.sleep(0.1)
            assert stop.signal == signal.SIGHUP and not ended.statuses
            signal.raise_signal(signal.SIGTERM)
            assert ended.wait() == [143]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_while_compiling_ends_without_a_step(config, monkeypatch):
    compile = Trainer.compile

    def signalled(self, *shape):
        os.kill(os.getpid(), signal.SIGINT)
        return compile(self, *shape)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(Trainer, "compile", signalled)
        main(config, monkeypatch)
    folder = pathlib.Path(config.workdir)
    assert end.value.code == 130 and not losses(config) and not any(folder.glob("checkpoints/*"))


# 69
def test_a_signal_while_nothing_is_to_be_saved_exits_at_once(monkeypatch, capsys):
    ended = Ended(monkeypatch)
    with signals.Stop(saves=False):
        os.kill(os.getpid(), signal.SIGINT)
        assert ended.wait() == [130]
    assert capsys.readouterr().err == "Stopped.\n"


# 69
def test_a_program_that_hears_nothing_ends_in_seconds_once_it_has_saved(monkeypatch):
    ended = Ended(monkeypatch)
    monkeypatch.setattr(signals, "GRACE", 0.01)
    with signals.Stop() as stop:
        with stop.saving():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
            assert stop.signal == signal.SIGTERM and not ended.statuses
        assert ended.wait() == [143]


# 69
@pytest.mark.parametrize("every", [0, 2])
def test_a_signal_in_an_evaluation_is_heard_after_a_pass(every, config, monkeypatch):
    """The final one, or that of step 2, after which the run saves step 3; then it goes on."""
    evaluate = Evaluator.run

    def signalled(self, params, rows, size=None):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, params, rows, size)

    config = change(config, eval={"every": every, "batch_tokens": 4})
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(Evaluator, "run", signalled)
        main(config, monkeypatch)
    folder = pathlib.Path(config.workdir)
    assert end.value.code == 143 and not (folder / "evaluation.json").exists()
    assert (folder / "checkpoints" / ("3" if every else "6")).exists()
    main(config, monkeypatch)
    assert [step for step, _ in losses(config)] == [*range(1, 7)]


# 68
def test_the_host_is_never_more_than_two_steps_ahead_of_the_device(config, monkeypatch):
    prepare, slow = program.prepare, []
    monkeypatch.setattr(program, "prepare", lambda *a: slow.append(Slow(prepare(*a))) or slow[-1])
    main(change(config, log_every=100, steps=8), monkeypatch)
    assert 2 <= max(slow[0].queued) <= program.AHEAD + 1, slow[0].queued  # one is new


# 87
def test_a_run_continued_with_other_steps_names_both_schedules(
    continued, monkeypatch, caplog, tmp_path
):
    config = copied(continued, tmp_path)
    main(change(config, steps=12), monkeypatch)
    said = [line for line in caplog.messages if line.startswith("steps=12: ")]
    assert len(said) == 1 and "the first 3 steps" in said[0] and "of steps=6;" in said[0]
    rates = {row["step"]: row["learning_rate"] for row in rows_of(config)}
    new = rates[4] / OPTIMIZER.learning_rate
    assert f"has {new:.3g} of the peak, not 0." in said[0] and rates[4] > rates[3]


# 88
def test_generate_finds_the_tokenizer_from_any_folder_and_refuses_another(
    config, monkeypatch, tmp_path
):
    text = (tmp_path / "text" / "train" / "a").read_bytes()
    tokenizer.train_bpe([text], f"{tmp_path}/bpe.json")
    config = change(config, tokenizer="bpe:bpe.json", length=4, eval={"lengths": (4,)})
    monkeypatch.chdir(tmp_path)
    main(config, monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder = pathlib.Path(config.workdir)
    make = lambda: generate.text(folder, "abc", 3, 0.0, 0, 0)  # noqa: E731
    assert make().startswith("abc")
    with pytest.raises(ValueError, match="byte 0xe9 at offset 3 is not UTF-8"):
        generate.text(folder, "caf\udce9", 3, 0.0, 0, 0)  # as a command line gives it
    _, saved = trained_run.read(folder)
    trained_with = saved["tokens"]
    tokenizer.train_bpe([text[::-1]], f"{tmp_path}/bpe.json")
    with pytest.raises(ValueError, match=f"was trained with another .sha256 {trained_with[:12]}"):
        make()
    os.remove(tmp_path / "bpe.json")
    with pytest.raises(ValueError, match="bpe:bpe.json': no such file"):
        make()


@pytest.mark.parametrize("kind", [TasksConfig, ImagesConfig, ExtendConfig])
def test_the_folder_of_a_sweep_is_not_a_run(kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(kind())))
    with pytest.raises(ConfigError, match="holds a sweep; pass the workdir of experiments.train"):
        generate.text(tmp_path, "a", 2, 0.0, 0, 0)


@pytest.mark.parametrize("spec", ["text:a", "text:a/*.txt", "passkeys:text:a", "tfds:x:a", "bpe:a"])
def test_relative_paths_of_a_run_are_those_of_where_it_was_trained(spec, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("text")
    field = "tokenizer" if spec == "bpe:a" else "data"
    saved = {"folder": str(tmp_path), field: spec}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    kind, _, path = spec.rpartition(":")
    found, _ = trained_run.read(tmp_path)
    assert getattr(found, field) == f"{kind}:{tmp_path}/{path}"
    for other in (saved | {"folder": "/nowhere"}, {field: spec}, saved | {field: "text:~/a"}):
        (tmp_path / "config.json").write_text(json.dumps(other))
        assert getattr(trained_run.read(tmp_path)[0], field) == other[field]


# 56
@pytest.mark.parametrize("newline", [False, True], ids=["torn", "without its newline"])
def test_rows_after_the_checkpoint_and_torn_ones_are_dropped_when_it_continues(
    continued, monkeypatch, tmp_path, newline
):
    config = copied(continued, tmp_path)
    path = tmp_path / "run" / "metrics.jsonl"
    good = path.read_text()
    path.write_text(
        good[:-1] if newline else good + '{"step": 4, "loss": 1.0}\n[]\n{"step": 5, "lo'
    )
    main(config, monkeypatch)
    assert path.read_text().startswith(good)
    assert [step for step, _ in losses(config)] == [1, 2, 3, 4, 5, 6]
