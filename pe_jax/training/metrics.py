"""Metrics of a run: JSON lines (the source of truth), TensorBoard events, log lines."""

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import humanize
import jax
from absl import logging
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore

from pe_jax.training.paths import files, is_bucket, remove

FLUSH_SECONDS = 120  # between flushes of events, which wait for the disk


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
      label: of the run.
      step: steps done.
      steps: total number of steps.
      loss: nats per token; None before there is one.
      tokens_per_second: since the last row of metrics; None before that.
      mfu: model FLOPs utilization; None if the devices' peak is unknown.
      seconds_left: until the last step, from the rate since the first row; None at that row.
    """

    label: str
    step: int
    steps: int
    loss: float | None
    tokens_per_second: float | None
    mfu: float | None = None
    seconds_left: float | None = None

    @property
    def speed(self) -> str:
        """Tokens per second, and MFU where it is known; "" before there are any."""
        if self.tokens_per_second is None:
            return ""
        tokens = humanize.metric(self.tokens_per_second).strip()
        return f"{tokens} tokens/s" + ("" if self.mfu is None else f", MFU {self.mfu:.0%}")


def log(progress: Progress) -> None:
    """Logs one line."""
    left = progress.seconds_left
    text = "" if left is None else humanize.precisedelta(round(left), format="%d") + " left"
    loss = "" if progress.loss is None else f"loss {progress.loss:.4f}"
    logging.info("%s step %d/%d  %s  %s  %s", *progress[:3], loss, progress.speed, text)


class Metrics:
    """Writes rows to `metrics.jsonl` and event files under a folder, and reports progress.

    Of several processes, only the first one writes.

    Args:
      folder: of the run.
      steps: total number of steps.
      label: of the run.
      done: steps already done; rows of later steps, which will be repeated, are dropped.
      tokens_at_peak: tokens per second at which model FLOPs utilization is 1; None if unknown.
      report: called with the progress at each row.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        label: str,
        done: int,
        tokens_at_peak: float | None = None,
        report: Callable[[Progress], None] = log,
    ):
        first = jax.process_index() == 0
        self.bucket = folder if is_bucket(folder) and first else None
        if self.bucket is not None:  # whose objects cannot be appended to
            folder = Path(tempfile.mkdtemp(prefix="metrics"))
            if (before := self.bucket / "metrics.jsonl").exists():
                (folder / before.name).write_bytes(before.read_bytes())
        self.folder = folder
        path = folder / "metrics.jsonl" if first else Path(os.devnull)
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_after(done, path)
        self.file = path.open("a", encoding="utf-8")
        self.events = _events(folder / "events", done) if first else None
        self.flushed = -math.inf  # when events were flushed
        self.steps, self.label = steps, label
        self.tokens_at_peak, self.report = tokens_at_peak, report
        self.since: tuple[float, int] | None = None
        self.first: tuple[float, int] | None = None  # time and step of the first row

    def start(self, step: int) -> None:
        """Starts the clock at `step`; call it again after a pause such as compilation."""
        self.since = time.monotonic(), step

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock while no step runs."""
        begin = time.monotonic()
        yield
        if self.since is not None:
            self.since = self.since[0] + time.monotonic() - begin, self.since[1]

    def write(self, step: int, tokens_per_step: int, **values: float) -> None:
        """Adds one row, with tokens per second and MFU since the last `start` or `write`.

        Non-finite and unknown values are null in the file and left out of the events.
        """
        now = time.monotonic()
        since, first_step = self.since or (now, step)
        steps_per_second = (step - first_step) / max(now - since, 1e-9)
        tokens_per_second = steps_per_second * tokens_per_step
        mfu = tokens_per_second / self.tokens_at_peak if self.tokens_at_peak else None
        row: dict[str, float | None] = {"step": step, **values}
        row |= {"tokens_per_second": tokens_per_second, "mfu": mfu}
        row = {n: None if x is None or not math.isfinite(x) else x for n, x in row.items()}
        print(json.dumps(row), file=self.file, flush=True)
        self._write_events(step, {n: x for n, x in row.items() if x is not None})
        # Pauses count here, and the first step, slower than others, does not.
        begin, begin_step = self.first = self.first or (now, step)
        rate = (now - begin) / (step - begin_step) if step > begin_step else None
        left = None if rate is None else rate * (self.steps - step)
        speed = tokens_per_second, mfu
        self.report(Progress(self.label, step, self.steps, values["loss"], *speed, left))
        self.start(step)

    def _write_events(self, step: int, row: dict[str, float]) -> None:
        if self.events is None:
            return
        values = [Summary.Value(tag=name, simple_value=x) for name, x in row.items()]
        summary = Summary(value=values)
        self.events.write_event(Event(wall_time=time.time(), step=step, summary=summary))
        if time.monotonic() - self.flushed > FLUSH_SECONDS:
            self.events.flush()
            self.upload()
            self.flushed = time.monotonic()

    def upload(self) -> None:
        """Writes all rows to the bucket, if the run is in one."""
        if self.bucket is not None:
            for path in files(self.folder):
                (self.bucket / path.relative_to(self.folder)).write_bytes(path.read_bytes())

    def close(self) -> None:
        """Flushes and closes the files."""
        self.file.close()
        if self.events is not None:
            self.events.close()
        self.upload()
        if self.bucket is not None:
            remove(self.folder)


def _events(folder: Path, done: int) -> EventsWriter:
    """A new event file; TensorBoard hides rows of earlier files after the step `done`.

    tensorboardX's SummaryWriter would write from a thread, which dies silently if the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    events = EventsWriter(str(folder / "events"))
    start = SessionLog(status=SessionLog.START)
    events.write_event(Event(wall_time=time.time(), step=done + 1, session_log=start))
    return events


def _drop_after(done: int, path: Path) -> None:
    """Keeps the rows of steps up to `done`; drops later rows and incomplete lines."""
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    lines = text.splitlines()
    rows, torn = [], 0
    for line in lines:
        try:
            rows += [line] if json.loads(line)["step"] <= done else []
        except (ValueError, TypeError, KeyError):
            torn += 1
    if torn:
        logging.warning("%s: %d torn line(s) dropped", path, torn)
    if len(rows) < len(lines) or (text and not text.endswith("\n")):  # the last newline is lost
        part = path.with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in rows), encoding="utf-8")
        os.replace(part, path)
