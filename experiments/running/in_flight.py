"""How far the host may run ahead of the device: a stop then waits for two steps, not for all."""

import collections
from typing import Any

import jax

LIMIT = 2  # one step runs, the next is queued: the device never waits for the host


class InFlight:
    """The last steps that were dispatched; adding one waits until at most `LIMIT` are unfinished.

    JAX returns before a program has run: without a bound the host queues steps until its memory is
    full, and a signal, a row of metrics or a checkpoint waits for all of them.
    """

    def __init__(self) -> None:
        self.results: collections.deque = collections.deque()

    def add(self, result: Any) -> None:
        """Adds a step by one of its results, an array that no later step donates."""
        self.results.append(result)
        if len(self.results) > LIMIT:
            jax.block_until_ready(self.results.popleft())
