"""Rows 46, 48, 49: who may write in a workdir."""

import errno
import fcntl
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

from experiments.running.command import launch
from experiments.running.process.lock import NAME, Lock

HOLD = "import sys, pathlib, experiments.running.process.lock as lock;"
HOLD += "lock.Lock(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


NO_FLOCK = (
    "from tests.faults.test_lock_faults import no_flock; import fcntl; fcntl.flock = no_flock;"
)


def no_flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.fixture
def other(tmp_path, request):
    """Another process, which holds the lock of the folder; its code may begin with a parameter."""
    code = getattr(request, "param", "") + HOLD.replace("lock.Lock", "kept = lock.Lock")
    command = [sys.executable, "-c", code, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


# 48
def test_a_second_run_is_refused_with_the_host_and_the_process_of_the_first(other, tmp_path):
    for _ in range(2):  # the first refusal leaves it as it was
        with pytest.raises(OSError) as found:
            Lock(tmp_path)
        said = str(found.value)
        assert f"workdir='{tmp_path}' is in use by process {other.pid}" in said
        assert f"on {socket.gethostname()} since" in said and "another --config.workdir" in said


# 49
def test_the_lock_of_a_killed_process_is_explained_and_taken_over(other, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "absl")
    other.send_signal(signal.SIGKILL)
    other.wait()
    lock = Lock(tmp_path)
    assert f"was left by process {other.pid} on" in caplog.text
    assert "which is gone: taken over" in caplog.text
    with pytest.raises(OSError, match=f"process {os.getpid()} on"):
        Lock(tmp_path)
    lock.close()
    caplog.clear()
    Lock(tmp_path).close()
    assert not caplog.text and (tmp_path / NAME).read_text() == ""


# 83
@pytest.mark.parametrize("other", [NO_FLOCK], indirect=True, ids=["no flock"])
def test_without_flock_a_file_is_the_lock(other, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "absl")
    monkeypatch.setattr(fcntl, "flock", no_flock)
    with pytest.raises(OSError, match=f"is in use by process {other.pid} on"):
        Lock(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.wait()
    lock = Lock(tmp_path)  # whose it was is gone
    assert "without flock (No locks available)" in caplog.text and "taken over" in caplog.text
    with pytest.raises(OSError, match=f"process {os.getpid()} on"):
        Lock(tmp_path)
    lock.close()
    Lock(tmp_path).close()
    assert (tmp_path / NAME).read_text() == ""


# 49
@pytest.mark.parametrize("left", [{"host": "far", "pid": 7, "since": "May"}, "torn"])
def test_a_lock_that_cannot_be_judged_from_here_is_explained(tmp_path, left):
    (tmp_path / NAME).write_text(json.dumps(left))
    with pytest.raises(OSError) as found:
        Lock(tmp_path)
    who = "process 7 on far since May" if isinstance(left, dict) else "another process"
    said = str(found.value)
    assert f"was locked by {who}, which cannot be seen from {socket.gethostname()}" in said
    assert f"remove {tmp_path / NAME}" in said and "\n" not in said


# 46
def test_a_folder_without_the_right_to_write_is_refused():
    users = os.getresuid()
    nobody = users[0] or 65534  # root may write anywhere
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        os.setresuid(nobody, nobody, users[2])
        try:
            launch.check_writable(pathlib.Path(folder, "run", "deeper"))
            os.setresuid(*users)
            os.chmod(folder, 0o555)
            os.setresuid(nobody, nobody, users[2])
            with pytest.raises(OSError, match="is not writable; choose another --config.workdir"):
                launch.check_writable(pathlib.Path(folder, "run", "deeper"))
        finally:
            os.setresuid(*users)
            os.chmod(folder, 0o777)
