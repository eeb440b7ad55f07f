"""Results, written to the disk as they come, and the time that is left."""

import contextlib
import json
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

KEY = ("stage", "scheme", "dtype", "case", "length", "mode", "engine")  # what identifies a row
Row = dict[str, Any]


class Results:
    """A file with a line of JSON for each result, written as it comes.

    The rows of an earlier run with the same file come first.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):  # cut short
            path.write_text(text + "\n", encoding="utf-8")
        self.path = path
        self.rows: list[Row] = [row for row in map(_row, text.splitlines()) if row is not None]
        self.keys = {key(row) for row in self.rows}

    def add(self, row: Row) -> None:
        """Writes a result, to the disk, and prints it."""
        self.rows.append(row)
        self.keys.add(key(row))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        about = " ".join(str(row[name]) for name in KEY if row.get(name) is not None)
        values = "  ".join(f"{name}={_short(x)}" for name, x in row.items() if name not in KEY)
        print(f"{about}: {values}", flush=True)

    def of(self, stage: str) -> list[Row]:
        """The rows of a stage."""
        return [row for row in self.rows if row["stage"] == stage]


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:  # cut short
        return None
    return row if isinstance(row, dict) and "stage" in row else None


def key(row: Row) -> tuple:
    """What identifies a result."""
    return tuple(row.get(name) for name in KEY)


def _short(x: Any) -> str:
    return f"{x:.4g}" if isinstance(x, float) else str(x)


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


class Shared(NamedTuple):
    """What the processes of a stage share.

    Attributes:
      found: a queue of the results.
      next: the number of the next job that nobody has taken.
      barrier: where all wait for each other.
      lock: held by the one that uses the device alone.
    """

    found: Any
    next: Any
    barrier: Any
    lock: Any

    @classmethod
    def of(cls, count: int) -> "Shared":
        """Shared by `count` processes that import everything anew: JAX does not survive a fork."""
        context = multiprocessing.get_context("spawn")
        return cls(context.Queue(), context.Value("i", 0), context.Barrier(count), context.Lock())

    def taken(self, jobs: Iterable[Any]) -> Iterator[Any]:
        """The jobs of a list, the same in all processes, that this process is the first to take."""
        for number, job in enumerate(jobs):
            with self.next.get_lock():
                mine = self.next.value == number
                self.next.value += mine
            if mine:
                yield job

    def wait(self, clock: Clock) -> None:
        """Waits until all processes are here, one has died, or time is up."""
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait(clock.left)


def in_processes(work: Callable[[int, Shared], None], count: int, clock: Clock) -> Iterator[Row]:
    """The results of `work(number, shared)` in each of `count` processes, as they come.

    Compilers in one Python process wait for each other. A process that dies loses only its current
    job; one that still runs when time is up is killed.
    """
    shared = Shared.of(count)
    context = multiprocessing.get_context("spawn")
    running = [
        context.Process(target=_work, args=(work, number, shared), daemon=True)
        for number in range(count)
    ]
    for process in running:
        process.start()
    try:
        while clock.left and any(process.is_alive() for process in running):
            with contextlib.suppress(queue.Empty):
                yield shared.found.get(timeout=min(0.5, clock.left))
            if any(process.exitcode for process in running):
                shared.barrier.abort()
        codes = [process.exitcode for process in running]  # None: it still ran when time was up
    finally:
        for process in running:
            process.kill()
    with contextlib.suppress(queue.Empty):
        while True:
            yield shared.found.get(timeout=0.1)
    for number, code in enumerate(codes):
        if code:
            raise RuntimeError(f"process {number} of {count} ended with {code}")


def _work(work: Callable[[int, Shared], None], number: int, shared: Shared) -> None:
    """The body of one process."""
    work(number, shared)
    shared.found.close()
    shared.found.join_thread()
    os._exit(0)  # does not wait for threads that still compile
