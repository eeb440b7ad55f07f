"""Synthetic tasks: an input string, then the answer, which alone is scored.

A row is `BOS string SEP answer EOS`, then padding. Rows are generated from (seed, index) and
nothing else, so they are endless, resumable and the same on any number of processes. See arXiv
2305.16843 and 2305.19466 for what such tasks say about encodings at lengths not trained on.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import NoReturn

import numpy as np

PAD, BOS, SEP, EOS = range(4)
SPECIAL = ("PAD", "BOS", "SEP", "EOS")
SYMBOLS = 16
_TRAIN, _EVAL = range(2)  # the two draw from separate streams, whatever the seed


def copy(string: np.ndarray) -> np.ndarray:
    """The string, int32 [n]."""
    return string


def reverse(string: np.ndarray) -> np.ndarray:
    """The string from its end, int32 [n]."""
    return string[::-1]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task in the place of a corpus.

    Attributes:
      name: `synthetic:NAME`.
      answer: From the string, int32 [n] of ids in [len(SPECIAL), vocab), to the answer, int32 [n].
    """

    name: str
    answer: Callable[[np.ndarray], np.ndarray]

    @property
    def vocab(self) -> int:
        """Four special tokens and the symbols."""
        return len(SPECIAL) + SYMBOLS

    @property
    def digest(self) -> str:
        """SHA-256 of a few rows: it changes when what is generated changes."""
        rows = examples(self, count=4, length=8, seed=0)
        rows = [rows[key].tobytes() for key in sorted(rows)]
        return hashlib.sha256(self.name.encode() + b"".join(rows)).hexdigest()

    def describe(self) -> str:
        """One line for logs and reports."""
        return f"{self.name}: generated, {SYMBOLS} symbols, sha256 {self.digest[:12]}"

    def documents(self, split: str) -> NoReturn:
        """A task has rows, not documents.

        Raises:
          ValueError: Always.
        """
        raise ValueError(f"data={self.name!r} has no {split} documents; use tasks.examples")


TASKS = {task.__name__: Task(f"synthetic:{task.__name__}", task) for task in (copy, reverse)}


def longest(width: int) -> int:
    """The longest string whose row, with its answer and BOS, SEP and EOS, has `width` tokens."""
    return (width - 3) // 2


def train_row(task: Task, seed: int, index: int, width: int) -> dict[str, np.ndarray]:
    """Row `index` of endless training data; its string has 1 to `longest(width)` symbols.

    Returns:
      `tokens`, `segments`, `positions` int32 [width], and `weights` float32 [width].
    """
    rng = _rng(_TRAIN, seed, index)
    return _row(task, rng, int(rng.integers(1, longest(width) + 1)), width)


def examples(task: Task | str, count: int, length: int, seed: int) -> dict[str, np.ndarray]:
    """Rows to evaluate on, every string of one length, apart from the training stream.

    Args:
      task: A task, or its name in `TASKS`.
      count: Number of rows.
      length: Symbols in each string; a row has 2·length + 3 tokens.
      seed: Chooses the strings.

    Returns:
      `tokens`, `segments`, `positions` int32 [count, 2·length + 3], and `weights` float32 of that
      shape, 1 on the answer and its EOS as targets.
    """
    if count < 1 or length < 1:
        raise ValueError(f"count={count}, length={length}: both must be at least 1")
    task = TASKS[task] if isinstance(task, str) else task
    rngs = (_rng(_EVAL, seed, index) for index in range(count))
    rows = [_row(task, rng, length, 2 * length + 3) for rng in rngs]
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def _rng(stream: int, seed: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=(2 * seed + stream, index)))


def _row(task: Task, rng: np.random.Generator, length: int, width: int) -> dict[str, np.ndarray]:
    string = rng.integers(len(SPECIAL), task.vocab, length, np.int32)
    used = 2 * length + 3
    tokens, segments, positions = np.zeros((3, width), np.int32)
    tokens[0], tokens[length + 1], tokens[used - 1] = BOS, SEP, EOS
    tokens[1 : length + 1] = string
    tokens[length + 2 : used - 1] = task.answer(string)
    segments[:used] = 1
    positions[:used] = np.arange(used)
    weights = np.zeros(width, np.float32)
    weights[length + 2 : used] = 1
    return {"tokens": tokens, "segments": segments, "positions": positions, "weights": weights}
