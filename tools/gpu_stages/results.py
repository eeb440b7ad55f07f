"""Results that are on disk as soon as they are there, and the time that is left for more."""

import concurrent.futures
import itertools
import json
import os
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

KEY = ("stage", "scheme", "dtype", "case", "length", "mode", "engine")  # what tells rows apart
Row = dict[str, Any]


class Refused(Exception):
    """Says why something is not run."""


class Results:
    """A file with a line of JSON for each result, written as it comes.

    Attributes:
      rows: all of them; those of an earlier run with the same file come first.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):  # cut short
            path.write_text(text + "\n", encoding="utf-8")
        self.path = path
        self.rows: list[Row] = [row for row in map(_row, text.splitlines()) if row is not None]
        self.keys = {_key(row) for row in self.rows}

    def has(self, row: Row) -> bool:
        """Whether there is a result of what this row is about."""
        return _key(row) in self.keys

    def add(self, row: Row) -> None:
        """Writes a result, to the disk, and prints it."""
        self.rows.append(row)
        self.keys.add(_key(row))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        about = " ".join(str(row[name]) for name in KEY if row.get(name) is not None)
        said = "  ".join(f"{name}={_short(x)}" for name, x in row.items() if name not in KEY)
        print(f"{about}: {said}", flush=True)

    def of(self, stage: str) -> list[Row]:
        """The rows of a stage."""
        return [row for row in self.rows if row["stage"] == stage]


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:  # cut short
        return None
    return row if isinstance(row, dict) and "stage" in row else None


def _key(row: Row) -> tuple:
    return tuple(row.get(name) for name in KEY)


def _short(x: Any) -> str:
    return f"{x:.4g}" if isinstance(x, float) else str(x)


def reason(error: BaseException) -> str:
    """An exception in a line."""
    kind = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
    return textwrap.shorten(f"{kind}{error}", 300, placeholder=" …")


class Clock:
    """Seconds that are left until a deadline."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds; 0 when there are none."""
        return max(0.0, self.end - time.monotonic())

    def share(self, part: float) -> "Clock":
        """A clock for a part of what is left."""
        return Clock(part * self.left)


def in_parallel(
    jobs: Iterable[tuple[Row, Callable[[], Any]]], threads: int, clock: Clock
) -> Iterator[tuple[Row, Any]]:
    """What each job gives, or the exception that it raised, as they end, until time is up.

    Compilers leave Python to other threads for most of their time. A job that has not begun when
    time is up is dropped; one that has is left alone.
    """
    waiting = iter(jobs)
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    running: dict[concurrent.futures.Future, Row] = {}
    try:
        while clock.left:
            for row, job in itertools.islice(waiting, threads - len(running)):
                running[pool.submit(job)] = row
            if not running:
                return
            first = concurrent.futures.FIRST_COMPLETED
            for future in concurrent.futures.wait(running, clock.left, first).done:
                yield running.pop(future), future.exception() or future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
