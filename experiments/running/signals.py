"""SIGINT and SIGTERM: a run that gets one saves first, then exits with the signal's status."""

import os
import signal
import sys

import jax
from absl import logging
from jax.experimental import multihost_utils

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Records SIGINT and SIGTERM, so that a run can save before it exits with their status.

    Attributes:
      signal: the one that came, or None; of several processes, once all have agreed to stop.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.received: int | None = None

    def __enter__(self) -> "Stop":
        # Of several processes, JAX itself catches SIGTERM, to have them all stop at one step.
        handled = STOP_SIGNALS if jax.process_count() == 1 else (signal.SIGINT,)
        self.before = {number: signal.signal(number, self._receive) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def after(self, step: int) -> bool:
        """Whether to stop after this step; asked after each, all processes get the same answer."""
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.signal = self.received or signal.SIGTERM
        return self.signal is not None

    def leave(self) -> None:
        """Exits with the signal's status, if one came."""
        if self.signal is not None:
            logging.info("Stopped; the same command continues here.")
            sys.exit(128 + self.signal)

    def _receive(self, number: int, _: object) -> None:
        if self.received is not None:  # a second signal exits immediately
            os._exit(128 + number)
        self.received = number
        logging.info("Signal %d: saving, then stopping. Once more stops at once.", number)
        if jax.process_count() == 1:
            self.signal = number
        else:
            os.kill(os.getpid(), signal.SIGTERM)
