"""A model under test: what its function takes, how exact its numbers are, what a fault is worth.

B batch, T tokens, V vocabulary. Results of JAX, PyTorch and NumPy are read as float64.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from pe_jax.conformance.report import Row

INPUTS = ("positions", "mask", "segments")
ROUNDINGS = {2**-8: 24, 2**-11: 24, 2**-23: 200}  # machine epsilon: how many the logits may be off


def array(x: Any) -> np.ndarray:
    """The numbers of an array of any framework, float64."""
    for name in ("detach", "float", "cpu"):  # of PyTorch
        x = getattr(x, name)() if hasattr(x, name) else x
    return np.asarray(x, np.float64)


def taken(function: Callable) -> tuple[str, ...]:
    """The names of a function's arguments, in order."""
    return tuple(inspect.signature(function).parameters)


class Subject:
    """A model's function, a row that probes share, tolerances, and the rows that were found.

    Attributes:
      x: tokens, int32 [2, T]; y: their logits, float64 [2, T, V].
      at: the positions 0 … T - 1 of both rows, int [2, T].
      first: what the model calls position 0 (RoBERTa 2): it is added to all positions.
      tol: the difference that rounding may make.
      one_off: what one position off does to the logits; 0 where positions are not read.
      unit: that, or what swapping two tokens does.
      rows: what was found so far.
    """

    def __init__(self, model: Callable, vocab: tuple[int, int], length: int, seed: int):
        self.model, self.vocab, self.length = model, vocab, length
        self.rng, self.takes, self.calls = np.random.default_rng(seed), taken(model), 0
        self.rows: list[Row] = []
        self.first = 0
        self.x, self.at = self.draw(2, length), np.tile(np.arange(length), (2, 1))
        self.y, again = self(self.x), self(self.x)
        if self.y.ndim != 3 or self.y.shape[:2] != self.x.shape or not np.isfinite(self.y).all():
            finite = "finite" if np.isfinite(self.y).all() else "not finite"
            raise ValueError(
                f"the model gives {list(self.y.shape)}, {finite}, for tokens {list(self.x.shape)}; "
                "it must give finite logits [B, T, V]"
            )
        spread = float(self.y.std()) or 1.0
        self.repeats = bool(np.abs(again - self.y).max() <= 1e-6 * spread)
        three = np.concatenate([self.x[:1], self.draw(2, length)])
        noise = max(np.abs(self(rows)[:1] - self.y[:1]).max() for rows in (self.x[:1], three))
        bits = self.y.astype(np.float32).view(np.int32)  # half precision ends in zeros
        epsilon = 2**-11 if not (bits & 0x1FFF).any() else 2**-23
        epsilon = 2**-8 if not (bits & 0xFFFF).any() else epsilon
        self.tol = max(30 * noise, ROUNDINGS[epsilon] * epsilon * spread)
        self.half = epsilon > 2**-23
        half = length // 2
        swapped = self.x.copy()
        swapped[:, [half - 2, half - 1]] = self.other(self.x[:, [half - 1, half - 2]])
        if "positions" in self.takes:
            self.first = next((n for n in (0, 1, 2, 3) if self._begins_at(n)), 0)
        self.one_off = self.off(0)
        self.unit = self.one_off or np.abs(self(swapped) - self.y)[:, half:].max() or 1.0
        self.blind = self.unit < (2 if self.half else 5) * self.tol

    def draw(self, *shape: int) -> np.ndarray:
        """Random tokens, int32."""
        return self.rng.integers(*self.vocab, size=shape).astype(np.int32)

    def other(self, tokens: np.ndarray) -> np.ndarray:
        """Random tokens, each different from the one given, int32."""
        low, high = self.vocab
        steps = self.rng.integers(1, high - low, tokens.shape)
        return ((tokens - low + steps) % (high - low) + low).astype(np.int32)

    def __call__(self, tokens: np.ndarray, **inputs: Any) -> np.ndarray:
        """Logits [B, T, V], float64; the model gets those of the inputs that it takes, int32.

        Explicit positions come with a mask of ones: without it transformers takes a jump for the
        beginning of another document.
        """
        self.calls += 1
        if "positions" in inputs and "segments" not in inputs:
            inputs = {"mask": np.ones(np.shape(tokens)), **inputs}
        if "positions" in inputs:
            inputs["positions"] = inputs["positions"] + self.first
        given = {k: np.asarray(v, np.int32) for k, v in inputs.items() if k in self.takes}
        return array(self.model(np.ascontiguousarray(tokens, np.int32), **given))

    def _begins_at(self, first: int) -> bool:
        return self.same(self(self.x, positions=self.at + first), self.y)

    def off(self, start: int) -> float:
        """What one position off from the middle on does, at positions from `start` on."""
        if "positions" not in self.takes:
            return 0.0
        base = self.y if start == 0 else self(self.x, positions=self.at + start)
        late = self.at + start + (self.at >= self.length // 2)
        return np.abs(self(self.x, positions=late) - base)[:, self.length // 2 :].max()

    def same(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Whether logits agree within the tolerance."""
        return bool(np.abs(a - b).max() <= self.tol)

    def at_positions(self, positions: np.ndarray, y: np.ndarray) -> bool:
        """Whether the row at these positions [T] has these logits, within four tolerances."""
        explained = self(self.x, positions=np.tile(positions, (2, 1)))
        return bool(np.abs(explained - y).max() <= 4 * self.tol)

    def add(self, probe: str, verdict: str, cause: str = "", first: str = "") -> None:
        """A row without numbers."""
        self.rows.append(Row(probe, verdict, None, first, cause))

    def judge(
        self, probe: str, diff: np.ndarray, cause: str, allowed: float = 0.0, accuse: bool = True
    ) -> bool:
        """Adds a row: differences [T] must be within the tolerance. Whether they are.

        With `accuse` False a difference is a note.
        """
        bad = np.flatnonzero(~(diff <= max(self.tol, allowed)))
        if not len(bad):
            verdict, first, cause = "blind" if self.blind else "held", "", ""
        else:
            verdict, first = "broken" if accuse else "note", f"token {bad[0]}"
        self.rows.append(Row(probe, verdict, float(diff.max()) / self.unit, first, cause))
        return not len(bad)

    def compare(self, probe: str, y: np.ndarray, cause: str, **options: Any) -> bool:
        """`judge` of the differences of logits [2, T, V] from those of the shared row."""
        return self.judge(probe, np.abs(y - self.y).max((0, 2)), cause, **options)
