"""One run per workdir: a lock that the kernel holds for as long as the process lives."""

import datetime
import fcntl
import json
import os
import socket
from pathlib import Path

from absl import logging

NAME = "lock"


class Lock:
    """The lock of a workdir, taken on construction; released by `close` or when the process ends.

    The kernel releases `flock` however a process ends; a lock file with text but without `flock`
    was left by a killed process. Locks of another host may be invisible here, so its file counts
    until it is removed by hand.

    Raises:
      OSError: another run holds the lock, naming its host and process; or another host's file.
    """

    def __init__(self, workdir: Path):
        workdir.mkdir(parents=True, exist_ok=True)
        path = workdir / NAME
        self.file = path.open("a+", encoding="utf-8")
        try:
            self._take(path)
        except OSError:
            self.file.close()
            raise

    def _take(self, path: Path) -> None:
        here, workdir = socket.gethostname(), str(path.parent)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _, _, who = self._owner()
            raise OSError(
                f"workdir={workdir!r} is in use by {who}; stop that run, or choose another"
                " --config.workdir"
            ) from None
        left, host, who = self._owner()
        if left and host != here:
            raise OSError(
                f"workdir={workdir!r} was locked by {who}, which cannot be seen from {here};"
                f" if that run has ended, remove {path}"
            )
        if left:
            logging.warning("%s was left by %s, which is gone: taken over", path, who)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self._write(json.dumps({"host": here, "pid": os.getpid(), "since": now}))

    def _owner(self) -> tuple[bool, str, str]:
        """Whether the file names an owner, its host, and a description."""
        self.file.seek(0)
        text = self.file.read()
        try:
            owner = json.loads(text)
            who = f"process {owner['pid']} on {owner['host']} since {owner['since']}"
            return True, owner["host"], who
        except (ValueError, KeyError, TypeError):  # being written, or torn
            return bool(text), "", "another process"

    def _write(self, text: str) -> None:
        self.file.truncate(0)
        self.file.write(text)
        self.file.flush()

    def close(self) -> None:
        """Releases the lock."""
        self._write("")
        self.file.close()
