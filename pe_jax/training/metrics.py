"""Metrics of a run: JSON lines (the source of truth), TensorBoard events, log lines."""

import json
import math
import os
import time
from pathlib import Path

import humanize
import jax
from absl import logging
from tensorboardX import SummaryWriter


class Metrics:
    """Writes rows to `metrics.jsonl` and event files under a folder, and logs progress.

    Of several processes, only the first one writes.

    Args:
      folder: of the run.
      steps: total number of steps.
      label: prefix of its log lines.
      done: steps already done; rows of later steps, which will be repeated, are dropped.
    """

    def __init__(self, folder: Path, steps: int, label: str, done: int):
        first = jax.process_index() == 0
        path = folder / "metrics.jsonl" if first else Path(os.devnull)
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_after(done, path)
        self.file = path.open("a", encoding="utf-8")
        events = str(folder / "events")
        self.events = SummaryWriter(events, purge_step=done + 1, write_to_disk=first)
        self.steps, self.label = steps, label
        self.since: tuple[float, int] | None = None

    def start(self, step: int) -> None:
        """Starts the clock at `step`; call it again after a pause such as compilation."""
        self.since = time.monotonic(), step

    def pause(self, seconds: float) -> None:
        """Excludes seconds that were not spent on steps."""
        if self.since is not None:
            self.since = self.since[0] + seconds, self.since[1]

    def write(self, step: int, tokens_per_step: int, **values: float) -> None:
        """Adds one row, with tokens per second since the last `start` or `write`.

        Non-finite values are null in the file and left out of the events.
        """
        now = time.monotonic()
        since, first_step = self.since or (now, step)
        steps_per_second = (step - first_step) / max(now - since, 1e-9)
        tokens_per_second = steps_per_second * tokens_per_step
        row = {"step": step, **values, "tokens_per_second": tokens_per_second}
        row = {name: value if math.isfinite(value) else None for name, value in row.items()}
        print(json.dumps(row), file=self.file, flush=True)
        for name, value in row.items():
            if value is not None:
                self.events.add_scalar(name, value, step)
        left = (self.steps - step) / steps_per_second if steps_per_second else 0
        logging.info(
            "%s step %d/%d  loss %.4f  %s tokens/s  %s left",
            self.label,
            step,
            self.steps,
            values["loss"],
            humanize.metric(tokens_per_second).strip(),
            humanize.precisedelta(round(left), format="%d") if left >= 1 else "0 seconds",
        )
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
