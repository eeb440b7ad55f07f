"""Metrics of a run: JSON lines (the source of truth), TensorBoard events, log lines."""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import humanize
import jax
from absl import logging
from tensorboardX import SummaryWriter


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
      label: of the run.
      step: steps done.
      steps: total number of steps.
      loss: nats per token.
      tokens_per_second: since the last row of metrics.
      mfu: model FLOPs utilization; None if the devices' peak is unknown.
      seconds_left: until the last step, from the rate since the first row; None at that row.
    """

    label: str
    step: int
    steps: int
    loss: float
    tokens_per_second: float
    mfu: float | None
    seconds_left: float | None

    @property
    def speed(self) -> str:
        """Tokens per second, and MFU where it is known."""
        tokens = humanize.metric(self.tokens_per_second).strip()
        return f"{tokens} tokens/s" + ("" if self.mfu is None else f", MFU {self.mfu:.0%}")


def log(progress: Progress) -> None:
    """Logs one line."""
    left = progress.seconds_left
    text = "" if left is None else humanize.precisedelta(round(left), format="%d") + " left"
    logging.info("%s step %d/%d  loss %.4f  %s  %s", *progress[:4], progress.speed, text)


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
        path = folder / "metrics.jsonl" if first else Path(os.devnull)
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_after(done, path)
        self.file = path.open("a", encoding="utf-8")
        events = str(folder / "events")
        self.events = SummaryWriter(events, purge_step=done + 1, write_to_disk=first)
        self.steps, self.label = steps, label
        self.tokens_at_peak, self.report = tokens_at_peak, report
        self.since: tuple[float, int] | None = None
        self.first: tuple[float, int] | None = None  # time and step of the first row

    def start(self, step: int) -> None:
        """Starts the clock at `step`; call it again after a pause such as compilation."""
        self.since = time.monotonic(), step

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock for what is not a step."""
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
        for name, value in row.items():
            if value is not None:
                self.events.add_scalar(name, value, step)
        # Pauses count here, and the first step, slower than others, does not.
        begin, begin_step = self.first = self.first or (now, step)
        rate = (now - begin) / (step - begin_step) if step > begin_step else None
        left = None if rate is None else rate * (self.steps - step)
        speed = tokens_per_second, mfu
        self.report(Progress(self.label, step, self.steps, values["loss"], *speed, left))
        self.start(step)

    def close(self) -> None:
        """Flushes and closes the files."""
        self.file.close()
        self.events.close()


def _drop_after(done: int, path: Path) -> None:
    """Keeps the rows of steps up to `done`; drops later rows and incomplete lines."""
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    lines = text.splitlines()
    kept, torn = [], 0
    for line in lines:
        try:
            kept += [line] if json.loads(line)["step"] <= done else []
        except (ValueError, TypeError, KeyError):
            torn += 1
    if torn:
        logging.warning("%s: %d torn line(s) dropped", path, torn)
    if len(kept) < len(lines) or (text and not text.endswith("\n")):  # the last newline is lost
        part = path.with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        os.replace(part, path)
