"""Signals that end a program: a run saves first, then exits with the signal's status."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

import jax
from absl import logging
from jax.experimental import multihost_utils

# SIGHUP comes when a terminal closes, SIGUSR1 from SLURM (`--signal=USR1@60`) before time is up.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextlib.contextmanager
def quiet_interrupt() -> Iterator[None]:
    """Ends the program on ctrl-C with its status, not a traceback, where nothing is to be saved."""
    try:
        yield
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


class Stop:
    """Records a signal of `STOP_SIGNALS`, so that a run can save before it exits with its status.

    SIGHUP stays ignored where it is, as under `nohup`.

    Attributes:
      signal: the signal that came, or None; with several processes, once all agreed to stop.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.calls = 0
        self.received: int | None = None

    def __enter__(self) -> "Stop":
        # With several processes JAX itself catches SIGTERM, so that all stop at one step.
        handled = {*STOP_SIGNALS} - ({signal.SIGTERM} if jax.process_count() > 1 else set())
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            handled.remove(signal.SIGHUP)
        self.before = {number: signal.signal(number, self._receive) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def due(self) -> bool:
        """Whether to stop here: before the first step, and after each. All processes agree.

        They agree on the number of a call, counted from this start: where a run continues and a
        signal comes before its first call, the number of a step would have passed already.
        """
        self.calls += 1
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(self.calls):
            self.signal = self.received or signal.SIGTERM
        return self.signal is not None

    def leave(self) -> None:
        """Exits with the signal's status, if one came."""
        if self.signal is not None:
            logging.info("Stopped; the same command continues here.")
            sys.exit(128 + self.signal)

    def _receive(self, number: int, _: object) -> None:
        if self.received is not None:
            if number in (signal.SIGINT, signal.SIGTERM):  # a second one exits immediately
                os._exit(128 + number)
            return  # a terminal that closes sends SIGHUP more than once
        self.received = number
        logging.info("Signal %d: saving, then stopping. A second one exits immediately.", number)
        if jax.process_count() == 1:
            self.signal = number
        else:
            os.kill(os.getpid(), signal.SIGTERM)
