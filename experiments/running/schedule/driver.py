"""The driver of runs: which are finished, which fail and why, who does which, the time left.

A program has a list of `Work`: the runs of one scheme, say. That runs are kept, stopped, timed, or
fail, is written here, once. What does a run is a slot: a device of this process, or a process of a
cluster.
"""

import contextlib
import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from absl import logging
from jax.sharding import Mesh

from experiments.running.configs.sweep import Sweep
from experiments.running.files.provenance import environment, save_json
from experiments.running.files.run_table import RunTable
from experiments.running.process import signals
from experiments.running.process.devices import check_alone
from experiments.running.process.errors import one_line_errors
from experiments.running.process.lock import Lock
from experiments.running.schedule import cluster
from experiments.running.schedule.pending import Pending, Place
from experiments.running.schedule.work import FAILED, TRIES, Lost, Run, Work, Worker, do
from pe_jax.training.metrics import Progress


class Device:
    """A slot of this process: the devices of a mesh."""

    where = ""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh

    def do(
        self, run: Run, place: Place, stop: signals.Stop, report: Callable[[Progress], None]
    ) -> dict | None:
        """The result of a run, as of `work.do`."""
        return do(run, Worker(run.label, self.mesh, stop, report))

    def ready(self, needed: Callable[[], bool]) -> bool:
        """Always."""
        return True


Slot = Device | cluster.Remote  # does one run at a time


class Driver:
    """Runs lists of work in a workdir that `opened` has locked.

    Attributes:
      slots: what does the runs.
      shared: whether runs of one work may go to several slots.
      failures: label and reason of each run that failed.
      lost: how many processes each run has lost.
      file: names of the works that are under way, for the next start if the process is killed.
      died: names of those that were when the process before was.
    """

    def __init__(self, slots: Sequence[Slot], file: Path, shared: bool = False):
        self.slots, self.shared, self.file = slots, shared, file
        self.failures, self.lost = list[str](), Counter[str]()
        self.earlier: list[Any] = []  # results of lists that are done
        self.under_way, self.writing = Counter[str](), threading.Lock()
        self.died: list[str] = json.loads(file.read_text()) if file.exists() else []

    def run(self, works: Iterable[Work]) -> dict[Any, Any]:
        """Name → what came of the work; works start in this order.

        The last are those during which the process before was killed, as for want of memory.
        A run that fails has a result with the status "failed" and the reason, and the others go on.
        Exits with a signal's status if one came; on one line after a ConfigError or an OSError, as
        these are not of one run.
        """
        works = list(works)
        ordered = sorted(works, key=lambda work: str(work.name) in self.died)
        steps = {work.name: work.steps for work in works}
        for name in {*self.died} & {str(work.name) for work in works}:
            logging.warning("%s was under way when the process before was killed", name)
        with signals.Stop() as stop, one_line_errors(), RunTable(steps) as table:
            stopped = lambda: stop.signal is not None  # noqa: E731
            pending = Pending(ordered, self.shared, stopped, self.earlier)
            in_parallel(lambda slot: self._serve(slot, pending, stop, table), self.slots, stop)
            if not (pending.over() or stopped()):
                raise OSError("all processes of the cluster are lost; the same command continues")
        stop.leave()
        self.earlier.append(pending.results())
        outcomes = pending.outcomes()
        return {work.name: outcomes.get(work.name) for work in works}

    def _serve(self, slot: Slot, pending: Pending, stop: signals.Stop, table: RunTable) -> None:
        """Has a slot do runs, as long as there are some."""
        while slot.ready(pending.open) and (place := pending.take(slot)) is not None:
            run = pending.run(place)
            try:
                result = self._result(run, place, slot, stop, table)
            except Lost as error:
                self._log_loss(run, error)
                pending.back(place)
            else:
                pending.give(place, result)

    @contextlib.contextmanager
    def _noted(self, name: Hashable) -> Iterator[None]:
        """Keeps the name of a work in the file while one of its runs is under way."""
        self._note(str(name), 1)
        try:
            yield
        finally:
            self._note(str(name), -1)

    def _note(self, name: str, more: int) -> None:
        with self.writing:
            self.under_way[name] += more
            if names := sorted(+self.under_way):
                save_json(self.file, names)
            else:
                self.file.unlink(missing_ok=True)

    def _result(
        self, run: Run, place: Place, slot: Slot, stop: signals.Stop, table: RunTable
    ) -> dict | None:
        """The result of a run, as it is in its file; None if a signal came."""
        if run.file.exists():
            try:
                saved = json.loads(run.file.read_text())
                table.skip(place.work, run.label, run.steps)
                return saved
            except ValueError as error:
                logging.warning("%s: %s; the run is done again", run.file, error)
        failed = run.file.with_suffix(FAILED)
        failed.unlink(missing_ok=True)  # of an earlier start
        table.start(place.work, run.label, run.steps, slot.where)
        try:
            with self._noted(place.work):
                result = slot.do(run, place, stop, table.report)
        except Lost as error:
            if self.lost[run.label] + 1 < TRIES:
                raise
            reason = f"lost {TRIES} processes, the last one so: {error}"
            result = {"status": "failed", "reason": reason, "traceback": "", **environment()}
        if result is None:
            return None
        if result.get("status") == "failed":
            logging.error("%s failed: %s", run.label, result.pop("traceback"))
            self.failures.append(f"{run.label}: {result['reason']}")
            save_json(failed, result)
            table.finish(run.label, "failed")
            return result
        save_json(run.file, result)
        table.finish(run.label)
        return json.loads(run.file.read_text())  # as when it is read again: keys are strings

    def _log_loss(self, run: Run, error: Lost) -> None:
        self.lost[run.label] += 1
        text = "%s: its process is lost, and it goes on in another: %s"
        logging.warning(text, run.label, error)


@contextlib.contextmanager
def opened(
    program: Callable[[Any], Any], config: Sweep, path: Path, manifest: dict, meshes: list[Mesh]
) -> Iterator[Any]:
    """Locks a workdir, saves the manifest of its runs, and gives a driver.

    At the end the program exits with status 1 if a run failed, and names each. An OSError is one
    line. The processes of a cluster call `program` too, with the config; `path` is where the
    manifest goes, which all runs depend on; `meshes` are the devices of each concurrent run in this
    process.
    """
    if cluster.HOST is not None:  # this is such a process
        yield cluster.HOST.opened(manifest, path, meshes[0])
        return
    with one_line_errors():
        check_alone()
        lock = Lock(path.parent)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(lock))
        with one_line_errors():
            save_json(path, manifest)
            slots: Sequence[Slot] = [Device(mesh) for mesh in meshes]
            if config.cluster:
                slots = stack.enter_context(cluster.slots(program, config, manifest))
            driver = Driver(slots, path.with_name("under_way.json"), bool(config.cluster))
        yield driver
    if driver.failures:
        print("error: the same command tries these again, and no others:", file=sys.stderr)
        print(*driver.failures, sep="\n", file=sys.stderr)
        sys.exit(1)


def in_parallel(run: Callable[[Any], None], slots: Sequence[Any], stop: signals.Stop) -> None:
    """Calls run(slot) for all slots at the same time.

    After the first error `stop` ends the others, as after a signal; then the error is raised.
    """

    def guarded(slot: Any) -> None:
        try:
            run(slot)
        except BaseException:
            stop.signal = stop.signal or signal.SIGTERM
            raise

    with futures.ThreadPoolExecutor(len(slots)) as pool:
        submitted = [pool.submit(guarded, slot) for slot in slots]
    for future in submitted:
        future.result()
