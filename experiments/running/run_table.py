"""The runs of a sweep while they train: one table that is redrawn, or lines where it cannot be."""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

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
    """A run that has started; times in seconds of one clock.

    Attributes:
      job: what it belongs to: runs of a job follow each other, and share programs.
      steps: planned in this process; 0 where an earlier run is only evaluated anew.
      begin: when it started.
      later: whether others of its job came before it in this process.
      first: time and step of its first report.
      last: its last report, and when that came.
      end: when it finished.
    """

    job: Hashable
    steps: int
    begin: float
    later: bool
    first: tuple[float, int] | None = None
    last: tuple[float, metrics.Progress] | None = None
    end: float | None = None

    @property
    def seconds_per_step(self) -> float | None:
        """The mean since the first report; None before the second one."""
        if self.first is None or self.last is None or self.last[1].step == self.first[1]:
            return None
        return (self.last[0] - self.first[0]) / (self.last[1].step - self.first[1])


class RunTable(contextlib.AbstractContextManager):
    """Shows the runs of several threads, and when all will be finished.

    In a terminal it is a table that is redrawn, with log lines above it; elsewhere each report is a
    log line.

    Args:
      jobs: the steps of each run that is planned, by job; runs of a job follow each other.
      workers: jobs at a time.
      console: where the table goes; None for standard error.
      clock: seconds.
    """

    def __init__(
        self,
        jobs: Mapping[Any, Sequence[int]],
        workers: int,
        console: rich.console.Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.planned = {job: list(steps) for job, steps in jobs.items()}
        self.count, self.workers = sum(map(len, self.planned.values())), workers
        self.console, self.clock = console or rich.console.Console(stderr=True), clock
        self.runs: dict[str, Run] = {}
        self.finished, self.lock = 0, threading.RLock()
        self.live = rich.live.Live(
            console=self.console, get_renderable=self.table, refresh_per_second=2
        )

    def __enter__(self) -> "RunTable":
        if self.console.is_terminal:
            self.live.start()
            self.console.show_cursor()  # a second ctrl-C exits at once, and would leave it hidden
            self._log_to_standard_error()  # which is redirected, above the table
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()
            self._log_to_standard_error()

    def _log_to_standard_error(self) -> None:
        logging.get_absl_handler().python_handler.setStream(sys.stderr)

    def _take(self, job: Hashable, steps: int) -> None:
        """Takes a run off the plan; one that was not planned counts from now on."""
        if steps in self.planned[job]:
            self.planned[job].remove(steps)
        else:
            self.count += 1

    def skip(self, job: Hashable, label: str, steps: int) -> None:
        """Counts a run that was finished before this program started."""
        with self.lock:
            self._take(job, steps)
            self.finished += 1
        self._say(label, "was finished")

    def start(self, job: Hashable, label: str, steps: int) -> None:
        """Starts a run."""
        with self.lock:
            self._take(job, steps)
            later = any(run.job == job for run in self.runs.values())
            self.runs[label] = Run(job, steps, self.clock(), later)

    def report(self, progress: metrics.Progress) -> None:
        """Shows how far a run is."""
        with self.lock:
            run, now = self.runs[progress.label], self.clock()
            run.first = run.first or (now, progress.step)
            run.last = now, progress
        if not self.console.is_terminal:
            metrics.log(progress)

    def finish(self, label: str, how: str = "is finished") -> None:
        """Ends a run that was trained and evaluated, or failed."""
        with self.lock:
            self.runs[label].end = self.clock()
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
        ended = any(run.end is not None for run in self.runs.values())
        about = "about" if ended else "more than"  # what follows the last step is not known yet
        unit = "minutes" if seconds >= 60 else "seconds"
        return f"{about} {humanize.precisedelta(seconds, minimum_unit=unit, format='%d')} left"

    def seconds_left(self) -> float | None:
        """Seconds until the last run is finished; None before two reports of a run.

        A run takes the time to its first report, its steps, and what follows the last. The first of
        these is long where programs are compiled: the first run of a job is averaged separately.
        """
        with self.lock:
            runs, now = [*self.runs.values()], self.clock()
            rates = [r.seconds_per_step for r in runs if r.seconds_per_step is not None]
            if not rates:
                return None
            rate = sum(rates) / len(rates)
            warm_up = {
                later: _mean(r.first[0] - r.begin for r in runs if r.first and r.later == later)
                for later in (False, True)
            }
            tail = _mean(r.end - r.last[0] for r in runs if r.end is not None and r.last)
            by_job = dict.fromkeys(self.planned, 0.0)
            for run in runs:
                if run.end is None:
                    by_job[run.job] += _left(run, now, rate, warm_up[run.later], tail)
            for job, planned in self.planned.items():
                first = bool(planned) and all(run.job != job for run in runs)
                by_job[job] += first * (warm_up[False] - warm_up[True])
                by_job[job] += sum(warm_up[True] + steps * rate + tail for steps in planned)
        return max(sum(by_job.values()) / self.workers, max(by_job.values()))

    def table(self) -> rich.table.Table:
        """A row per run: the running ones, and as many finished ones as there is room for."""
        with self.lock:
            room = max(self.console.height - 6, 1)
            running = [label for label, run in self.runs.items() if run.end is None]
            ended = [label for label, run in self.runs.items() if run.end is not None]
            visible = {*running, *ended[len(ended) - max(room - len(running), 0) :]}
            caption = f"{self.finished} of {self.count} runs are finished; {self.left()}"
            table = rich.table.Table(caption=caption, box=None, pad_edge=False)
            table.add_column("run", no_wrap=True, max_width=self.console.width // 3)
            for name in ("", "step", "loss", "speed"):
                table.add_column(name, justify="right", no_wrap=True)
            for label, run in self.runs.items():
                if label in visible:
                    table.add_row(rich.text.Text(label), *_cells(run))  # no markup in brackets
        return table


class Reporter:
    """Reports the steps of a training loop that keeps no metrics.

    Args:
      label: of the run.
      report: called with the progress.
    """

    def __init__(self, label: str, report: Callable[[metrics.Progress], None]):
        self.label, self.send = label, report
        self.first = self.last = time.monotonic(), 0

    def __call__(self, step: int, steps: int, loss: float, tokens_per_step: int) -> None:
        """Reports a step, and the speed since the last report."""
        now, (since, before) = time.monotonic(), self.last
        speed = (step - before) * tokens_per_step / max(now - since, 1e-9)
        left = None
        if before:
            begin, begin_step = self.first
            left = (now - begin) / (step - begin_step) * (steps - step)
        else:
            self.first = now, step  # its time has the compilation in it
        self.last = now, step
        self.send(metrics.Progress(self.label, step, steps, loss, speed, None, left))


def _mean(values: Any) -> float:
    """The mean; 0 if there are no values."""
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def _left(run: Run, now: float, rate: float, warm_up: float, tail: float) -> float:
    """Seconds until the end of a run."""
    if run.last is None:
        return max(run.begin + warm_up - now, 0.0) + run.steps * rate + tail
    seconds_per_step = run.seconds_per_step or rate
    return max(run.last[0] + (run.steps - run.last[1].step) * seconds_per_step + tail - now, 0.0)


def _cells(run: Run) -> tuple[Any, ...]:
    step, steps, loss, speed = 0, run.steps, "", ""
    if run.last is not None:
        progress = run.last[1]
        step, steps, speed = progress.step, progress.steps, progress.speed
        loss = f"{progress.loss:.4f}"
    elif not steps:
        return "", "evaluation", "", ""
    bar = rich.progress_bar.ProgressBar(steps, step, width=BAR)
    return bar, f"{step:,}/{steps:,}", loss, speed
