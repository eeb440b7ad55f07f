"""Signals that end a program: what is unsaved is saved first; the status is the signal's."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import jax
from absl import logging
from jax.experimental import multihost_utils

# SIGHUP comes when a terminal closes, SIGUSR1 from SLURM (`--signal=USR1@60`) before time is up.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
GRACE = 5.0  # seconds in which a program may end by itself, besides those in which it saves


class Stopped(Exception):
    """A signal came in the middle of what is not saved, as an evaluation."""


class Stop:
    """Hears signals of `STOP_SIGNALS`, so that a run can save before it exits with its status.

    A thread hears them, as Python's handlers wait for the main thread, which may be inside XLA's
    compiler. Where nobody looks at `signal`, the program exits after `GRACE` seconds, or as soon as
    nothing is unsaved. SIGHUP stays ignored where it is, as under `nohup`.

    Args:
      saves: False where nothing is to be saved: the program exits at once.

    Attributes:
      signal: the signal that came, or None; with several processes, once all agreed to stop.
    """

    def __init__(self, saves: bool = True) -> None:
        self.signal: int | None = None
        self.calls = 0
        self.received: int | None = None
        self.saves, self.entered, self.unsaved = saves, False, set[object]()

    def __enter__(self) -> "Stop":
        handled = {*STOP_SIGNALS}
        if self.saves and jax.process_count() > 1:
            handled.remove(signal.SIGTERM)  # JAX itself catches it, so that all stop at one step
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            handled.remove(signal.SIGHUP)
        heard, self.told = os.pipe()
        os.set_blocking(self.told, False)
        threading.Thread(target=self._listen, args=(heard, handled), daemon=True).start()
        self.before = {number: signal.signal(number, self._handle) for number in handled}
        self.told_before = signal.set_wakeup_fd(self.told, warn_on_full_buffer=False)
        self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.entered = False
        signal.set_wakeup_fd(self.told_before)
        for number, handler in self.before.items():
            signal.signal(number, handler)
        os.close(self.told)

    def due(self) -> bool:
        """Whether to stop here: before the first step, and after each. All processes agree.

        They agree on the number of a call, counted from this start: where a run continues and a
        signal comes before its first call, the number of a step would have passed already.
        """
        self.calls += 1
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(self.calls):
            self.signal = self.received or signal.SIGTERM
        return self.signal is not None

    def check(self) -> None:
        """Raises Stopped if it is `due`."""
        if self.due():
            raise Stopped

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Something is unsaved, until which no signal but a second one ends the program."""
        part = object()
        self.unsaved.add(part)
        try:
            yield
        finally:
            self.unsaved.remove(part)

    def leave(self) -> None:
        """Exits with the signal's status, if one came."""
        if self.signal is not None:
            logging.info("Stopped; the same command continues here.")
            sys.exit(128 + self.signal)

    def _handle(self, number: int, _: object) -> None:
        """In the main thread: if it runs Python, the next bytecode knows of the signal."""
        if self.saves and jax.process_count() == 1:
            self.signal = self.signal or number

    def _listen(self, heard: int, handled: set[int]) -> None:
        with open(heard, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] in handled:
                    self._receive(number[0])

    def _receive(self, number: int) -> None:
        if self.received is not None:
            if number in (signal.SIGINT, signal.SIGTERM):  # a second one exits immediately
                os._exit(128 + number)
            return  # a terminal that closes sends SIGHUP more than once
        self.received = number
        if not self.saves:
            self._exit("Stopped.")
        logging.info("Signal %d: saving, then stopping. A second one exits immediately.", number)
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.signal = self.signal or number
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        """Exits in the place of a program that does not hear, as while XLA compiles."""
        until = time.monotonic() + GRACE
        while self.entered and (self.unsaved or time.monotonic() < until):
            time.sleep(0.05)
        if self.entered:
            self._exit("Stopped; the same command continues here.")

    def _exit(self, words: str) -> None:
        assert self.received is not None
        print(words, file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(128 + self.received)
