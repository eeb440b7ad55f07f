"""Timing of programs that share a machine: in turn, in a new order every round, compared by round.

Round i of every program runs next to round i of every other, so that ratios within a round hold
while the machine's speed changes. A `Row` is the measurement of one program; `Timings` compares
rows.
"""

import dataclasses
import math
import random
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

LEAST = 0.02  # seconds: a shorter call is repeated within a sample


class Refused(Exception):
    """Says why a program cannot run here."""


def reason(error: BaseException) -> str:
    """Why a program did not run, in a line: the message of `Refused`, or an error and its name."""
    kind = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
    return textwrap.shorten(f"{kind}{error}", 300, placeholder=" …")


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

    `proceed` is called before every sample with the number of finished rounds; False ends the
    timing and drops the unfinished round.
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
      scheme: name of the encoding, or "matmuls".
      engine: what computes it.
      seconds: per call, one sample per round; empty if it did not run.
      temp_bytes: of temporaries, by the compiler's count; None if it gives none.
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
LARGE, OWN = "large", "of the MLP"  # matrix products that training steps are compared with
CSV_HEADER = (
    *("length", "mode", "scheme", "engine", "note", "temp_bytes", "compile_seconds", "ms"),
    *("tokens", "operations", "samples", "ms_min", "ms_median", "ms_iqr"),
    *("to_none", "to_none_of_minima", "to_sdpa", "naive_to_this", "dense_to_this"),
    *("sdpa_to_this", "growth", "share_of_large", "share_of_own", "ours_to_this"),
)


@dataclasses.dataclass(frozen=True)
class Timings:
    """All rows of a benchmark, in the order in which they were measured."""

    rows: Sequence[Row]

    def find(self, length: int, mode: str, scheme: str, engine: str = OURS) -> Row | None:
        """The row, if there is one."""
        key = length, mode, scheme, engine
        return next((row for row in self.rows if row.key == key), None)

    def ratios(self, row: Row) -> dict[str, float | None]:
        """Ratios of this row and others, by their names in the CSV; None where one did not run."""
        none = self.find(row.length, row.mode, "nope")
        twice = self.find(2 * row.length, *row.key[1:])
        naive, dense, sdpa = (
            self.find(row.length, row.mode, row.scheme, engine) for engine in (NAIVE, DENSE, SDPA)
        )
        return {
            "to_none": paired(row, none),
            "to_none_of_minima": of_minima(row, none),
            "to_sdpa": paired(row, self.find(row.length, row.mode, "nope", SDPA)),
            "naive_to_this": paired(naive, row) if row.engine == OURS else None,
            "dense_to_this": paired(dense, row) if row.engine == OURS else None,
            "sdpa_to_this": paired(sdpa, row) if row.engine == OURS else None,
            "growth": (  # of temporaries, with the length doubled
                twice.temp_bytes / row.temp_bytes
                if twice and twice.temp_bytes and row.temp_bytes
                else None
            ),
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

    def csv_rows(self) -> list[tuple]:
        """One line per row, as `CSV_HEADER` names the columns."""
        lines = []
        for row in self.rows:
            ms = [1e3 * s for s in row.seconds]
            fields: dict[str, Any] = dataclasses.asdict(row) | self.ratios(row)
            fields |= {"ms": " ".join(f"{x:.6g}" for x in ms), "samples": len(ms)}
            if ms:
                low, median, high = np.percentile(ms, (25, 50, 75))
                fields |= {"ms_min": min(ms), "ms_median": median, "ms_iqr": high - low}
            lines.append(tuple(fields.get(name) for name in CSV_HEADER))
        return lines
