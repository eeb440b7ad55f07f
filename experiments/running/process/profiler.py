"""A trace of a few steps by JAX's profiler: what the device and the host do, and for how long."""

from pathlib import Path
from typing import Any

import jax
from absl import logging

WARM_UP, STEPS = 10, 5


class Profiler:
    """Traces `STEPS` steps after `WARM_UP`, or fewer of both if the run is shorter.

    Of several processes, only the first one writes. `done` of all `steps` were made before this
    process.
    """

    def __init__(self, folder: Path, on: bool, done: int, steps: int):
        self.folder, self.tracing = folder, False
        self.on = on and jax.process_index() == 0
        self.first = done + 1 + min(WARM_UP, max(steps - done - STEPS, 0))

    def before(self, step: int, state: Any) -> None:
        """Starts the trace before its first step; ends it once `state`, after its last, is ready.

        Call it before each step.
        """
        if self.on and step == self.first:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.folder), create_perfetto_trace=True)
            self.tracing = True
        if self.tracing and step == self.first + STEPS:
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """Writes the trace, if one is running, and says how to open it."""
        if not self.tracing:
            return
        self.tracing = False
        jax.profiler.stop_trace()
        trace = max(self.folder.rglob("perfetto_trace.json.gz"))  # folders are named by time
        logging.info(
            "Trace of at most %d steps from %d on in %s; to open it: pip install xprof, then"
            " xprof --logdir=%s; or drop %s on https://ui.perfetto.dev",
            *(STEPS, self.first, self.folder, self.folder, trace),
        )
