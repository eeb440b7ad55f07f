"""The driver of runs: which are finished, which fail and why, who trains which, the time left.

A program has a list of `Work`: the runs of one scheme, say, which follow each other, as they share
compiled programs and later ones depend on what earlier ones found. That runs are kept, stopped,
timed, or fail, is written here, once.
"""

import contextlib
import json
import queue
import signal
import sys
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

from absl import logging
from jax.sharding import Mesh

from experiments.running.files.provenance import environment, save_json
from experiments.running.files.run_table import RunTable
from experiments.running.process import signals
from experiments.running.process.errors import one_line_errors
from experiments.running.process.lock import Lock
from experiments.running.schedule.work import FAILED, Run, Work, Worker
from pe_jax.validation import ConfigError


class Driver:
    """Runs lists of work in a workdir that `opened` has locked.

    Attributes:
      meshes: the devices of each concurrent run.
      failures: label and reason of each run that failed.
    """

    def __init__(self, meshes: list[Mesh]):
        self.meshes, self.failures = meshes, list[str]()

    def run(self, works: Iterable[Work]) -> dict[Any, Any]:
        """Name → what came of the work; works start in this order, one per mesh at a time.

        A run that fails has a result with the status "failed" and the reason, and the others go on.
        Exits with a signal's status if one came; on one line after a ConfigError or an OSError, as
        these are not of one run.
        """
        works = list(works)
        steps = {work.name: work.steps for work in works}
        with signals.Stop() as stop, one_line_errors(), RunTable(steps) as table:
            outcomes = run_in_parallel(
                lambda work, mesh: self._all(work, mesh, stop, table), works, self.meshes, stop
            )
        stop.leave()
        return {work.name: outcome for work, outcome in zip(works, outcomes, strict=True)}

    def _all(self, work: Work, mesh: Mesh, stop: signals.Stop, table: RunTable) -> Any:
        """What came of a work; None if a signal came before its end."""
        try:
            run = next(work.runs)
            while (result := self._result(run, work.name, mesh, stop, table)) is not None:
                run = work.runs.send(result)
        except StopIteration as end:
            return end.value
        work.runs.close()

    def _result(
        self, run: Run, name: Hashable, mesh: Mesh, stop: signals.Stop, table: RunTable
    ) -> dict | None:
        """The result of a run, as it is in its file; None if a signal came."""
        if run.file.exists():
            try:
                saved = json.loads(run.file.read_text())
                table.skip(name, run.label, run.steps)
                return saved
            except ValueError as error:
                logging.warning("%s: %s; the run is done again", run.file, error)
        if stop.signal is not None:
            return None
        failed = run.file.with_suffix(FAILED)
        failed.unlink(missing_ok=True)  # of an earlier start
        table.start(name, run.label, run.steps)
        begin = time.monotonic()
        try:
            result = run.train(Worker(run.label, mesh, stop, table.report))
        except (ConfigError, OSError):
            raise
        except Exception as error:  # a compiler, an allocator or the code of an encoding
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            logging.error("%s failed: %s", run.label, "".join(traceback.format_exception(error)))
            self.failures.append(f"{run.label}: {reason}")
            result = {"status": "failed", "reason": reason, **environment()}
            save_json(failed, result)
            table.finish(run.label, "failed")
            return result
        if result is None:
            return None
        result |= {"seconds": time.monotonic() - begin, **environment()}
        save_json(run.file, result)
        table.finish(run.label)
        return json.loads(run.file.read_text())  # as when it is read again: keys are strings


@contextlib.contextmanager
def opened(workdir: Path, name: str, manifest: dict, meshes: list[Mesh]) -> Iterator[Driver]:
    """Locks a workdir, saves the manifest of its runs in a file of this name, and gives a driver.

    At the end the program exits with status 1 if a run failed, and names each. An OSError is one
    line.
    """
    with one_line_errors():
        lock = Lock(workdir)
    driver = Driver(meshes)
    with contextlib.closing(lock):
        with one_line_errors():
            save_json(workdir / name, manifest)
        yield driver
    if driver.failures:
        print("error: the same command tries these again, and no others:", file=sys.stderr)
        print(*driver.failures, sep="\n", file=sys.stderr)
        sys.exit(1)


def run_in_parallel(
    run: Callable[[Any, Mesh], Any], jobs: Iterable[Any], meshes: list[Mesh], stop: signals.Stop
) -> list:
    """The results of run(job, mesh), in the order of the jobs; each takes the next free mesh.

    After the first error no job starts and `stop` ends the running ones, as after a signal; then
    the error is raised.
    """
    free: queue.SimpleQueue = queue.SimpleQueue()
    for mesh in meshes:
        free.put(mesh)

    def run_job(job: Any) -> Any:
        mesh = free.get()
        try:
            return run(job, mesh)
        except BaseException:
            stop.signal = stop.signal or signal.SIGTERM
            raise
        finally:
            free.put(mesh)

    with futures.ThreadPoolExecutor(len(meshes)) as pool:
        submitted = [pool.submit(run_job, job) for job in jobs]
        while True:
            # Only this thread runs handlers, and a signal that came to another does not wake it: so
            # after SIGSTOP and SIGCONT, as SLURM suspends and resumes.
            done, pending = futures.wait(submitted, 1.0, futures.FIRST_EXCEPTION)
            failed = [future for future in done if future.exception() is not None]
            if failed or not pending:
                break
        for future in pending:
            future.cancel()
    return [future.result() for future in failed or submitted]
