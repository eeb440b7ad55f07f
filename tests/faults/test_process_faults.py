"""Rows 50 to 55: processes that are killed, stopped, or lose one another. All of them are real."""

import os
import pathlib
import random
import signal
import socket
import time

import numpy as np
import pytest

from pe_jax.training import manifest
from tests.faults import children
from tools import soak, trainer_process

BOUND = 30  # seconds until the last of a group is down
CACHE = pathlib.Path(__file__).parents[2] / ".jax_cache"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return soak.write_text(tmp_path_factory.mktemp("data") / "text", files=9)


@pytest.fixture
def shared(monkeypatch):
    """`soak` starts its processes with the settings of the tests."""
    start = trainer_process.start
    here = lambda flags, log: start(flags, log, {"CACHE": str(CACHE)}, children.devices)  # noqa: E731
    monkeypatch.setattr(soak.trainer_process, "start", here)


class Moments(random.Random):
    """Kills with a checkpoint some steps ago, and while it saves."""

    def __init__(self):
        super().__init__(2)
        self.chosen = iter(("step", signal.SIGKILL, "save", signal.SIGKILL))

    def choice(self, _):  # pyright: ignore[reportIncompatibleMethodOverride]
        return next(self.chosen)

    def randint(self, _, most):  # pyright: ignore[reportIncompatibleMethodOverride]
        return most


# 52, 56
def test_a_run_that_is_killed_twice_ends_with_the_same_bits(data, tmp_path, monkeypatch, shared):
    monkeypatch.setattr(soak, "STEPS", 30)
    monkeypatch.setattr(soak, "SAVE_EVERY", 3)  # so many that no machine is too fast
    peace, killed = tmp_path / "peace", tmp_path / "killed"
    soak.finish(soak.settings(peace, data, soak.STEPS, 3), tmp_path / "peace.log")
    lives = soak.one_run(killed, data, 2, Moments(), float("inf"))
    found = soak.figures(peace, [killed], lives)
    assert found["kills"] == 2 and found["bytes_compared"] > 10_000
    assert soak.good(found), found
    assert [row[0] for row in soak.rows(killed)] == list(range(1, soak.STEPS + 1))
    kept = sorted(path.name for path in (killed / "checkpoints").iterdir())
    assert kept == ["27", "30"] and (killed / "evaluation.json").exists()
    said = (tmp_path / "killed.log").read_text()
    assert "taken over" in said and "continues at step" in said  # the lock of who was killed


# 84
@pytest.mark.parametrize("file", ["metrics.jsonl", "tfevents"])
def test_a_disk_that_fills_between_checkpoints_is_one_line(data, tmp_path, file):
    full = {"FULL": file, "CACHE": str(CACHE)}
    flags = soak.settings(tmp_path / "run", data, 9, 0)
    process = trainer_process.start(flags, tmp_path / "log", full, children.full_disk)
    said = ended([process], 150), (tmp_path / "log").read_text()
    assert said[0] == [2] and "Traceback" not in said[1], said
    (error,) = errors(tmp_path / "log")
    assert error == "error: [Errno 28] No space left on device; free some space, and run it again"


# 87
def test_a_damaged_compiled_program_is_replaced(data, tmp_path):
    cache = dict.fromkeys(("CACHE", "JAX_COMPILATION_CACHE_DIR"), str(tmp_path / "cache"))
    sizes, small = [], {"model.layers": 1, "model.dropout": 0, "positions": "contiguous"}
    for name in ("first", "second"):
        flags = soak.settings(tmp_path / name, data, 5, 0)
        flags += [f"--config.{field}={value}" for field, value in small.items()]
        process = trainer_process.start(flags, tmp_path / f"{name}.log", cache, children.devices)
        assert ended([process], 150) == [0]
        entries = sorted((tmp_path / "cache").glob("*-cache"))
        sizes.append([path.stat().st_size for path in entries])
        for path in entries:
            path.write_bytes(path.read_bytes()[:100])  # it was killed while it wrote
    said = (tmp_path / "second.log").read_text()
    assert "A compiled program of jit_" in said and "UserWarning" not in said, said
    assert len(sizes[0]) > 3 and np.allclose(*sizes, rtol=0.1)  # whole again: not 100 bytes


@pytest.fixture
def group(data, tmp_path):
    """Starts two processes as SLURM does: () → processes; and stops what is left of them."""
    running = []

    def start(before=children.devices, count=2):
        with socket.socket() as free:
            free.bind(("", 0))
            port = str(free.getsockname()[1])
        flags = soak.settings(tmp_path / "run", data, 5000, 2500)
        for index in range(count):
            slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
            slurm |= {"SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)}
            slurm |= {"JAX_COORDINATOR_PORT": port, "DEVICES": "2", "CACHE": str(CACHE)}
            running.append(trainer_process.start(flags, tmp_path / f"{index}.log", slurm, before))
        return running

    yield start
    for process in running:
        process.kill()
        process.join()


def wait(ready, process, seconds=300):
    end = time.monotonic() + seconds
    while not ready():
        assert process.is_alive() and time.monotonic() < end
        time.sleep(0.02)


def ended(running, seconds=BOUND) -> list[int]:
    """The exit statuses, all there in time."""
    end = time.monotonic() + seconds
    for process in running:
        process.join(max(end - time.monotonic(), 0))
    return [process.exitcode for process in running]


def errors(log: pathlib.Path) -> list[str]:
    return [x for x in log.read_text().splitlines() if x.startswith("error: ")]


# 50, 51
def test_a_signal_to_any_of_a_group_saves_all_at_one_step(group, tmp_path):
    running = group()
    wait(lambda: soak.last_logged(tmp_path / "run") >= 3, running[0])
    os.kill(running[1].pid, signal.SIGUSR1)
    assert ended(running) == [143, 138], (tmp_path / "0.log").read_text()[-2000:]
    step = soak.last_saved(tmp_path / "run")
    assert 3 < step == soak.last_logged(tmp_path / "run")
    manifest.check(tmp_path / "run" / "checkpoints" / str(step))
    again = group(children.interrupted)[2:]  # 69: they continue, and compile
    assert ended(again, 150) == [143, 130]
    assert soak.last_saved(tmp_path / "run") == soak.last_logged(tmp_path / "run") == step


# 53
def test_a_process_that_raises_brings_down_all_and_says_why(group, tmp_path):
    running = group(children.boom)
    wait(lambda: soak.last_logged(tmp_path / "run") >= 3, running[0])
    survivor, first = ended(running)
    assert first == 1 and survivor not in (None, 0)
    assert errors(tmp_path / "1.log") == ["error: process 1 of 2: ArithmeticError: boom"]
    assert told(tmp_path / "0.log")


# 53
def test_a_process_that_is_killed_brings_down_the_other(group, tmp_path):
    running = group()
    wait(lambda: soak.last_logged(tmp_path / "run") >= 3, running[0])
    running[0].kill()  # the one that all others are connected to
    first, survivor = ended(running)
    assert first == -signal.SIGKILL and survivor not in (None, 0)
    assert told(tmp_path / "1.log")


def told(log: pathlib.Path) -> bool:
    """Whether it says that another one ended first: our line, or JAX's where it was faster."""
    said = log.read_text()
    ours = f"error: process {log.stem} of 2: lost another process"
    return ours in said or "This most likely indicates that another task died" in said


# 54
def test_a_host_that_does_not_come_is_not_waited_for_without_end(group, tmp_path):
    (alone,) = group(children.impatient, count=1)
    (status,) = ended([alone], 60)
    assert status not in (None, 0)
    assert not (tmp_path / "run").exists()
    said = (tmp_path / "0.log").read_text()
    assert "not all processes came within 3 s" in said or "DEADLINE_EXCEEDED" in said, said
