"""Timing of programs that share a machine: in turn, in a new order every round, compared by round.

Round i of every program runs next to round i of every other, so that ratios within a round hold
while the machine's speed changes. A `Row` is the measurement of one program; `Timings` are the
rows of a CSV file and compares them.
"""

import csv
import dataclasses
import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

LEAST = 0.02  # seconds: a shorter call is repeated within a sample


def plain(x: float | None, digits: int = 3) -> str:
    """A figure for a table: 12,345 from 100 on, `digits` digits below, – for None."""
    if x is None:
        return "–"
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.{digits}g}"


def _seconds(program: Callable[[], Any], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):  # wait for each call: dispatch is asynchronous
        jax.block_until_ready(program())
    return (time.perf_counter() - begin) / calls


def interleave(
    programs: dict[Any, Callable[[], Any]],
    rounds: int,
    *,
    proceed: Callable[[int], bool] = lambda done: True,
) -> dict[Any, list[float]]:
    """Seconds per call, one sample per round, of programs that have been called once.

    Args:
      programs: called without arguments; their results are waited for.
      rounds: number of samples of each.
      proceed: called before every sample with the number of finished rounds; False ends the timing
        and drops the unfinished round.
    """
    calls = {name: max(1, math.ceil(LEAST / _seconds(run, 1))) for name, run in programs.items()}
    order, shuffle = list(programs), random.Random(0).shuffle
    samples_of: dict[Any, list[float]] = {name: [] for name in programs}
    for done in range(rounds):
        shuffle(order)
        samples = {}
        for name in order:
            if not proceed(done):
                return samples_of
            samples[name] = _seconds(programs[name], calls[name])
        for name, seconds in samples.items():
            samples_of[name].append(seconds)
    return samples_of


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurement of one program, or why it did not run.

    Attributes:
      length: tokens.
      mode: what is timed.
      scheme: name of the encoding, or "matmuls".
      engine: what computes it.
      seconds: per call, one sample per round; empty if it did not run.
      temp_bytes: of temporaries, by the compiler's count; None if it gives none.
      compile_seconds: None if it did not compile.
      note: why it did not run, or a remark.
      tokens: per call, of a training step.
      operations: floating-point operations of its matrix products, of a training step or a product.
    """

    length: int
    mode: str
    scheme: str
    engine: str
    seconds: tuple[float, ...] = ()
    temp_bytes: int | None = None
    compile_seconds: float | None = None
    note: str = ""
    tokens: int | None = None
    operations: float | None = None

    @property
    def key(self) -> tuple[int, str, str, str]:
        """The fields that identify the row."""
        return self.length, self.mode, self.scheme, self.engine


def quartiles(row: Row | None, base: Row | None) -> tuple[float, float, float] | None:
    """Quartiles over rounds of the ratio of two rows; None if either did not run."""
    if row is None or base is None or not (row.seconds and base.seconds):
        return None
    low, median, high = np.percentile(np.divide(row.seconds, base.seconds), (25, 50, 75))
    return float(low), float(median), float(high)


def paired(row: Row | None, base: Row | None) -> float | None:
    """The median over rounds of the ratio of two rows; None if either did not run."""
    ratios = quartiles(row, base)
    return ratios and ratios[1]


def of_minima(row: Row | None, base: Row | None) -> float | None:
    """The ratio of the least times."""
    if row is None or base is None or not (row.seconds and base.seconds):
        return None
    return min(row.seconds) / min(base.seconds)


OURS, DENSE, NAIVE, SDPA = "ours", "dense", "jax.nn", "sdpa"  # engines that are compared
LIMIT = "limit"
LARGE, OWN = "large", "of the MLP"  # matrix products that training steps are compared with
STORED = (
    *("length", "mode", "scheme", "engine", "note", "temp_bytes", "compile_seconds", "ms"),
    *("tokens", "operations"),
)
DERIVED = ("samples", "ms_min", "ms_median", "ms_iqr")
RATIOS = (
    *("to_none", "to_none_of_minima", "to_matmuls", "to_sdpa"),
    *("naive_to_this", "dense_to_this", "sdpa_to_this", "growth"),
    *("share_of_large", "share_of_own", "ours_to_this"),
)


@dataclasses.dataclass(frozen=True)
class Timings:
    """All rows of a benchmark, in the order in which they were measured."""

    rows: Sequence[Row]

    def find(self, length: int, mode: str, scheme: str, engine: str = OURS) -> Row | None:
        """The row, if there is one."""
        key = length, mode, scheme, engine
        return next((row for row in self.rows if row.key == key), None)

    def groups(self) -> dict[tuple[int, str], list[Row]]:
        """(length, mode) → the rows that were timed together."""
        groups: dict[tuple[int, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.length, row.mode), []).append(row)
        return groups

    def ratios(self, row: Row) -> dict[str, float | None]:
        """The ratios in RATIOS, by name."""
        none = self.find(row.length, row.mode, "nope")
        naive, dense, sdpa = (
            self.find(row.length, row.mode, row.scheme, engine) for engine in (NAIVE, DENSE, SDPA)
        )
        return {
            "to_none": paired(row, none),
            "to_none_of_minima": of_minima(row, none),
            "to_matmuls": paired(row, self.find(row.length, row.mode, "matmuls", LIMIT)),
            "to_sdpa": paired(row, self.find(row.length, row.mode, "nope", SDPA)),
            "naive_to_this": paired(naive, row) if row.engine == OURS else None,
            "dense_to_this": paired(dense, row) if row.engine == OURS else None,
            "sdpa_to_this": paired(sdpa, row) if row.engine == OURS else None,
            "growth": self.growth(row),
            "share_of_large": self.share(row, LARGE),
            "share_of_own": self.share(row, OWN),
            "ours_to_this": paired(self.ours(row), row),
        }

    def ours(self, row: Row) -> Row | None:
        """Our training step, if this is another one."""
        other = row.tokens is not None and row.engine != OURS
        return self.find(row.length, row.mode, row.scheme) if other else None

    def share(self, row: Row, product: str) -> float | None:
        """Operations per second of a training step, as a share of those of a matrix product."""
        base = self.find(row.length, row.mode, "matmuls", product)
        ratio = paired(base, row)
        if ratio is None or base is None or not (row.tokens and row.operations and base.operations):
            return None
        return ratio * row.operations / base.operations

    def growth(self, row: Row) -> float | None:
        """Temporaries at twice the length ÷ at this length."""
        twice = self.find(2 * row.length, *row.key[1:])
        if twice is None or not (row.temp_bytes and twice.temp_bytes):
            return None
        return twice.temp_bytes / row.temp_bytes

    def csv_rows(self) -> list[tuple]:
        """One line per row, as `CSV_HEADER` names the columns."""
        lines = []
        for row in self.rows:
            ms = [1e3 * s for s in row.seconds]
            stored = {**dataclasses.asdict(row), "ms": " ".join(f"{x:.6g}" for x in ms)}
            fields = [stored[name] for name in STORED]
            lines.append((*fields, *_samples_min_median_iqr(ms), *self.ratios(row).values()))
        return lines

    @classmethod
    def read(cls, path: Path) -> "Timings":
        """Reads a file of `csv_rows`; derived columns are computed again."""
        with path.open(encoding="utf-8", newline="") as file:
            return cls(tuple(map(_row, csv.DictReader(file))))


def _row(line: dict[str, str]) -> Row:
    temp_bytes, compile_seconds = line["temp_bytes"], line["compile_seconds"]
    tokens, operations = line.get("tokens"), line.get("operations")  # older files have none
    return Row(
        int(line["length"]),
        line["mode"],
        line["scheme"],
        line["engine"],
        tuple(float(x) / 1e3 for x in line["ms"].split()),
        int(temp_bytes) if temp_bytes else None,
        float(compile_seconds) if compile_seconds else None,
        line["note"],
        int(tokens) if tokens else None,
        float(operations) if operations else None,
    )


def _samples_min_median_iqr(ms: list[float]) -> tuple[float | None, ...]:
    if not ms:
        return 0, None, None, None
    q1, median, q3 = np.percentile(ms, (25, 50, 75))
    return len(ms), min(ms), median, q3 - q1


CSV_HEADER = (*STORED, *DERIVED, *RATIOS)
