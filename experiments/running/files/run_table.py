"""The runs of a sweep while they train: one table that is redrawn, or lines where it cannot be."""

import collections
import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence

import humanize
import rich.console
import rich.live
import rich.progress_bar
import rich.table
import rich.text
from absl import logging

from pe_jax.training import metrics

BAR = 24  # characters


@dataclasses.dataclass
class Run:
    """A run that has started.

    Attributes:
      steps: planned in this process; 0 where an earlier run is only evaluated anew.
      first: the step of its first report.
      where: node and device, on a cluster.
    """

    steps: int
    first: int = 0
    last: metrics.Progress | None = None
    ended: bool = False
    where: str = ""


class RunTable(contextlib.AbstractContextManager):
    """Shows the runs of several threads, and when all will be finished.

    In a terminal it is a table that is redrawn, with log lines above it; elsewhere each report is a
    log line. `jobs` has the steps of each run that is planned; without a console it is standard
    error.
    """

    def __init__(
        self,
        jobs: Mapping[Hashable, Sequence[int]],
        console: rich.console.Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.planned = collections.Counter((job, n) for job, steps in jobs.items() for n in steps)
        self.count, self.finished = self.planned.total(), 0
        self.console, self.clock = console or rich.console.Console(stderr=True), clock
        self.runs: dict[str, Run] = {}
        self.begin: float | None = None  # time of the first report, which compiling comes before
        self.lock = threading.RLock()
        self.live = rich.live.Live(
            console=self.console, get_renderable=self.table, refresh_per_second=2
        )

    def __enter__(self) -> "RunTable":
        if self.console.is_terminal:
            self.live.start()
            self.console.show_cursor()  # a second ctrl-C exits at once, and would leave it hidden
            logging.get_absl_handler().python_handler.setStream(sys.stderr)  # above the table
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()
            logging.get_absl_handler().python_handler.setStream(sys.stderr)

    def _take(self, job: Hashable, steps: int) -> None:
        """Takes a run off the plan; one that was not planned counts from now on."""
        if self.planned[job, steps]:
            self.planned[job, steps] -= 1
        else:
            self.count += 1

    def skip(self, job: Hashable, label: str, steps: int) -> None:
        """Counts a run that was finished before this program started."""
        with self.lock:
            self._take(job, steps)
            self.finished += 1
        self._say(label, "was finished")

    def start(self, job: Hashable, label: str, steps: int, where: str = "") -> None:
        """Starts a run, or starts it again elsewhere."""
        with self.lock:
            if label not in self.runs:
                self._take(job, steps)
            self.runs[label] = Run(steps, where=where)
        if where:
            self._say(label, f"begins on {where}")

    def report(self, progress: metrics.Progress) -> None:
        """Shows how far a run is."""
        with self.lock:
            run = self.runs[progress.label]
            if run.last is None:
                run.first = progress.step
            run.last = progress
            if self.begin is None:
                self.begin = self.clock()
        if not self.console.is_terminal:
            metrics.log(progress)

    def finish(self, label: str, how: str = "is finished") -> None:
        """Ends a run that was trained and evaluated, or failed."""
        with self.lock:
            self.runs[label].ended = True
            self.finished += 1
        self._say(label, f"{how}; {self.left()}")

    def _say(self, label: str, what: str) -> None:
        if not self.console.is_terminal:
            logging.info("[%d/%d runs] %s %s", self.finished, self.count, label, what)

    def left(self) -> str:
        """When all runs will be finished, in words."""
        seconds = self.seconds_left()
        if seconds is None:
            return "no estimate yet"
        unit = "minutes" if seconds >= 60 else "seconds"
        return f"about {humanize.precisedelta(seconds, minimum_unit=unit, format='%d')} left"

    def seconds_left(self) -> float | None:
        """Seconds until the last run is finished, at the mean rate of steps so far.

        That rate is over all runs together and has their evaluations in it. None before a run has
        made steps since its first report.
        """
        with self.lock:
            reported = [(run, run.last) for run in self.runs.values() if run.last is not None]
            done = sum(last.step - run.first for run, last in reported)
            if self.begin is None or not done:
                return None
            steps = sum(steps * count for (_, steps), count in self.planned.items())
            for run in self.runs.values():
                if not run.ended:
                    steps += run.steps if run.last is None else run.last.steps - run.last.step
            return steps * (self.clock() - self.begin) / done

    def table(self) -> rich.table.Table:
        """A row per run: the running ones, and as many finished ones as there is room for."""
        with self.lock:
            room = max(self.console.height - 6, 1)
            running = [label for label, run in self.runs.items() if not run.ended]
            ended = [label for label, run in self.runs.items() if run.ended]
            visible = {*running, *ended[len(ended) - max(room - len(running), 0) :]}
            caption = f"{self.finished} of {self.count} runs are finished; {self.left()}"
            table = rich.table.Table(caption=caption, box=None, pad_edge=False)
            table.add_column("run", no_wrap=True, max_width=self.console.width // 3)
            names = ("", "step", "loss", "speed")
            on_nodes = any(run.where for run in self.runs.values())
            for name in (*names, "on") if on_nodes else names:
                table.add_column(name, justify="right", no_wrap=True)
            for label, run in self.runs.items():
                name, last = rich.text.Text(label), run.last  # no markup in brackets
                step, steps = (0, run.steps) if last is None else (last.step, last.steps)
                bar = rich.progress_bar.ProgressBar(steps, step, width=BAR)
                cells = (bar, f"{step:,}/{steps:,}") if steps else ("", "evaluation")
                loss = "" if last is None or last.loss is None else f"{last.loss:.4f}"
                speed = "" if last is None else last.speed
                if label in visible:
                    table.add_row(name, *cells, loss, speed, *[run.where] * on_nodes)
        return table
