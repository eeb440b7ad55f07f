"""One run per workdir: a lock that the kernel holds for as long as the process lives."""

import datetime
import fcntl
import hashlib
import json
import os
import socket
import tempfile
from pathlib import Path

import filelock
from absl import logging

from pe_jax.training.paths import bucket_errors, is_bucket

NAME = "lock"


class Lock:
    """The lock of a workdir, taken on construction; released by `close` or when the process ends.

    The kernel releases `flock` however a process ends; a lock file with text but without `flock`
    was left by a killed process. Locks of another host may be invisible here, so its file counts
    until it is removed by hand. On a file system without `flock` a second file is the lock. In a
    bucket, which has no locks, two hosts that start within the same second are not told apart.

    Raises:
      OSError: another run holds the lock, naming its host and process; or another host's file.
    """

    def __init__(self, workdir: Path):
        self.path = local = workdir / NAME
        if is_bucket(workdir):  # has no locks; a file of this machine tells if its owner lives
            digest = hashlib.sha256(str(workdir).encode()).hexdigest()[:16]
            local = Path(tempfile.gettempdir(), f"pe_jax-{os.getuid()}-{digest}.lock")
        local.parent.mkdir(parents=True, exist_ok=True)
        self.file = local.open("a+", encoding="utf-8")
        self.soft = filelock.SoftFileLock(local.with_suffix(".held"))
        try:
            self._take(self.path)
        except OSError:
            self.file.close()
            raise

    def _take(self, path: Path) -> None:
        here, workdir = socket.gethostname(), str(path.parent)
        try:
            self._acquire(workdir)
        except (BlockingIOError, filelock.Timeout):
            _, _, who = self._owner()
            raise OSError(
                f"workdir={workdir!r} is in use by {who}; stop that run, or choose another"
                " --config.workdir"
            ) from None
        has_owner, host, who = self._owner()
        if has_owner and host != here:
            raise OSError(
                f"workdir={workdir!r} was locked by {who}, which cannot be seen from {here};"
                f" if that run has ended, remove {path}"
            )
        if has_owner:
            logging.warning("%s was left by %s, which is gone: taken over", path, who)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self._write(json.dumps({"host": here, "pid": os.getpid(), "since": now}))

    def _acquire(self, workdir: str) -> None:
        """Raises BlockingIOError or Timeout if another process has the lock."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            self.soft.acquire(blocking=False)
            text = "%s is on a file system without flock (%s): the file %s locks it"
            logging.warning(text, workdir, error.strerror, self.soft.lock_file)

    def _owner(self) -> tuple[bool, str, str]:
        """Whether the file names an owner, its host, and a description."""
        self.file.seek(0)
        text = self._object() if is_bucket(self.path) else self.file.read()
        try:
            owner = json.loads(text)
            who = f"process {owner['pid']} on {owner['host']} since {owner['since']}"
            return True, owner["host"], who
        except (ValueError, KeyError, TypeError):  # being written, or torn
            return bool(text), "", "another process"

    def _object(self) -> str:
        return self.path.read_text() if self.path.exists() else ""

    def _write(self, text: str) -> None:
        if is_bucket(self.path):
            with bucket_errors(self.path.parent, "written"):
                self.path.write_text(text)
            return
        self.file.truncate(0)
        self.file.write(text)
        self.file.flush()

    def close(self) -> None:
        """Releases the lock."""
        self._write("")
        self.soft.release()
        self.file.close()
