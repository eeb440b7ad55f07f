"""How runs share the devices: side by side, in turn, or not at all."""

import os
import signal
import threading
import time
from typing import NamedTuple

import jax
import pytest

from experiments.programs import compare
from experiments.running.process import devices, signals
from experiments.running.schedule import driver
from pe_jax.training import sharding
from pe_jax.validation import ConfigError
from tests.experiments.tiny_comparison import settings
from tests.trainers import change, shared_programs  # noqa: F401

MAKE_MESH = sharding.make_mesh
pytestmark = pytest.mark.xdist_group("compare")


def test_after_the_first_error_the_others_end_too():
    failed = threading.Event()

    def run(slot):
        if slot == "a":
            failed.set()
            raise ValueError("in a")
        until = time.monotonic() + 30
        while stop.signal is None and time.monotonic() < until:
            time.sleep(0.01)
        assert failed.is_set() and time.monotonic() < until

    with pytest.raises(ValueError, match="in a"):
        driver.in_parallel(run, ["a", "b"], stop := signals.Stop())
    assert stop.signal == signal.SIGTERM


def test_a_signal_that_another_thread_receives_is_handled_within_seconds():
    """A process that was suspended (SIGSTOP, SIGCONT) may get it in any thread."""
    with signals.Stop() as stop:

        def run(slot):
            time.sleep(0.2)  # the main thread waits by then
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            until = time.monotonic() + 30
            while not stop.due() and time.monotonic() < until:
                time.sleep(0.01)
            assert time.monotonic() < until

        driver.in_parallel(run, ["a"], stop)


def shared(monkeypatch, tmp_path, **fields) -> dict[str, list]:
    """Which devices each encoding's runs took, without training anything."""
    found = {}

    def train_run(runs, run, source, check, worker):
        found.setdefault(runs.name, []).append(worker.mesh.devices.ravel().tolist())
        barrier.wait(timeout=30)  # all lanes are busy at the same time
        return {"status": "ok"}

    names = ("nope", "rope", "alibi", "t5")
    given = {"encodings": names, "reference": "rope", "seeds": 1, "workers": 0, **fields}
    config = change(settings(tmp_path), **given)
    barrier = threading.Barrier(min(len(names), len(devices.run_meshes(config))))
    monkeypatch.setattr(compare.SchemeRuns, "train_run", train_run)
    monkeypatch.setattr(compare.model_speed, "measure", lambda *_: {})
    monkeypatch.setattr(compare.report, "build", lambda _: "here")
    monkeypatch.setattr(compare.report, "summary", lambda _: "")
    compare.main(config)
    return found


def test_runs_take_one_device_each_side_by_side_or_all_in_turn(tmp_path, monkeypatch, caplog):
    four = jax.devices()[:4]
    monkeypatch.setattr(jax, "devices", lambda: four)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(4)}, raising=False)
    monkeypatch.setattr(sharding, "make_mesh", MAKE_MESH)  # for `shared_programs` has one device
    with caplog.at_level("INFO", logger="absl"):
        each = shared(monkeypatch, tmp_path / "one")
    assert sorted(sum(sum(each.values(), []), []), key=lambda d: d.id) == four
    assert "4 runs side by side, each on one of 4 × cpu" in caplog.text
    with caplog.at_level("INFO", logger="absl"):
        turns = shared(monkeypatch, tmp_path / "all", devices="all", mesh={"model": 2})
    assert set(map(tuple, sum(turns.values(), []))) == {tuple(four)} and len(turns) == 4
    assert "Each run takes all of 4 × cpu, one run after the other" in caplog.text


def test_on_gpus_a_process_has_one_run_at_a_time(tmp_path, monkeypatch, caplog):
    """CUDA graphs of two threads: both comparisons that ran so on an H200 ended in an error."""

    class Gpu(NamedTuple):
        platform: str = "gpu"
        device_kind: str = "H200"

    monkeypatch.setattr(jax, "devices", lambda: [Gpu()] * 2)
    monkeypatch.setattr(sharding, "make_mesh", lambda config, devices: devices)
    config = settings(tmp_path)
    with caplog.at_level("INFO", logger="absl"):
        assert devices.run_meshes(change(config, workers=0)) == [[Gpu()]]
    assert "One of 2 × H200 is used: pass --config.cluster=local, for a process" in caplog.text
    with pytest.raises(ConfigError, match=r"workers=2: .* --config.cluster=local"):
        devices.run_meshes(change(config, workers=2))


@pytest.mark.parametrize(
    "fields, processes, words",
    [
        ({"mesh": {"model": 2}}, 1, ("mesh.model=2", "pass --config.devices=all")),
        ({"devices": "all", "workers": 2}, 1, ("workers=2", "pass --config.devices=one")),
        ({}, 2, ("2 processes", "--config.cluster=ray")),
    ],
)
def test_a_comparison_that_cannot_share_the_devices_is_refused(
    tmp_path, monkeypatch, capsys, fields, processes, words
):
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    with pytest.raises(SystemExit) as end:
        compare.main(change(settings(tmp_path), **fields))
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1 and all(w in error for w in words), error
    assert not (tmp_path / "manifest.json").exists()
