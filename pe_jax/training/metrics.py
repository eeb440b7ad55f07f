"""Metrics of a run: JSON lines (the source of truth), TensorBoard events, lines of progress."""

import json
import time
from pathlib import Path

import humanize
import jax
from absl import logging
from tensorboardX import SummaryWriter


class Metrics:
    """Writes rows to `metrics.jsonl` and event files under a folder, and logs progress.

    Of several processes the first one does; the others do nothing here.
    """

    def __init__(self, folder: Path, steps: int, label: str):
        self.first = jax.process_index() == 0
        if not self.first:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.file = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        self.events = SummaryWriter(str(folder / "events"))
        self.steps, self.label = steps, label
        self.since: tuple[float, int] | None = None

    def start(self, step: int) -> None:
        """Starts the clock at `step`; call it again after a pause such as compiling."""
        self.since = time.monotonic(), step

    def write(self, step: int, tokens_per_step: int, **values: float) -> None:
        """Adds one row, with tokens per second since the last `start` or `write`."""
        if not self.first:
            return
        now = time.monotonic()
        then, before = self.since or (now, step)
        pace = (step - before) / max(now - then, 1e-9)
        row = {"step": step, **values, "tokens_per_second": pace * tokens_per_step}
        print(json.dumps(row), file=self.file, flush=True)
        for name, value in row.items():
            self.events.add_scalar(name, value, step)
        left = (self.steps - step) / pace if pace else 0
        logging.info(
            "%s step %d/%d  loss %.4f  %s tokens/s  %s left",
            self.label,
            step,
            self.steps,
            values["loss"],
            humanize.metric(row["tokens_per_second"]).strip(),
            humanize.precisedelta(round(left), format="%d") if left >= 1 else "0 seconds",
        )
        self.start(step)

    def close(self) -> None:
        """Flushes and closes the files."""
        if not self.first:
            return
        self.file.close()
        self.events.close()
