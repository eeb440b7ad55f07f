"""One run a workdir: a lock that the kernel holds for as long as the process lives."""

import datetime
import fcntl
import json
import os
import socket
from pathlib import Path

from absl import logging

NAME = "lock"


class Lock:
    """The lock of a workdir, taken when it is made; released by `close`, or by the end.

    However a process ends, `flock` ends with it; a lock file that says more than that was left by
    a process that was killed. Locks of another host may not be seen from here, so that its file
    stands until it is removed by hand.

    Raises:
      OSError: another run is there, naming its host and process; or one of another host was.
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
        """Whether somebody is named in the file, its host, and who in words."""
        self.file.seek(0)
        text = self.file.read()
        try:
            said = json.loads(text)
            who = f"process {said['pid']} on {said['host']} since {said['since']}"
            return True, said["host"], who
        except (ValueError, KeyError, TypeError):  # empty for a moment, or torn
            return bool(text), "", "another process"

    def _write(self, text: str) -> None:
        self.file.truncate(0)
        self.file.write(text)
        self.file.flush()

    def close(self) -> None:
        """Lets the next run in."""
        self._write("")
        self.file.close()
