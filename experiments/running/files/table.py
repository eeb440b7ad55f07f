"""One table of results: what every program measures, and what reports and tools read.

A row is one number of one trained model, or why there is none:

| column | |
|---|---|
| scheme | the short name of the encoding |
| variant | what else tells models of one scheme apart, e.g. the positions it was trained with |
| seed | of the run, or the number of a document that one model reads; empty where no run is |
| learning_rate, encoding_rate | of the run; the second is a multiple, for its own parameters |
| test | what was asked: a protocol, a view of images, "TASK: tokens", "passkeys: exact" |
| length | of the test: tokens, symbols, pixels per side |
| position | where in that length: a token, the depth of a passkey; empty for a test of one number |
| value | the number; empty without one |
| parts | the numbers whose mean it is, as the loss of each window, to six decimals; may be empty |
| status | "ok", or why there is no number: "diverged", "failed", "not defined", "not finite", … |

Machines that share an experiment write a table each; `[*read(a), *read(b)]` is the table of both.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Row(NamedTuple):
    """A row of the table; columns are those of the module's docstring."""

    scheme: str
    variant: str
    seed: int | None
    learning_rate: float | None
    encoding_rate: float | None
    test: str
    length: int
    position: float | None
    value: float | None
    parts: tuple[float, ...] = ()
    status: str = "ok"


NUMBERS = {"seed": int, "length": int}  # columns that a table has as text
NUMBERS |= dict.fromkeys(("learning_rate", "encoding_rate", "position", "value"), float)
Test = tuple[str, int]  # what was asked, and at which length
Numbers = dict[Test, np.ndarray | str]  # of a run: float64 [parts or positions], or its status


def grouped(rows: Iterable[Row]) -> dict[str, dict[int | None, Numbers]]:
    """Scheme → seed → (test, length) → its numbers, in the order of the rows."""
    cells: dict[str, dict[int | None, dict[Test, list[Row]]]] = {}
    for row in rows:
        by_test = cells.setdefault(row.scheme, {}).setdefault(row.seed, {})
        by_test.setdefault((row.test, row.length), []).append(row)
    return {
        scheme: {
            seed: {test: _numbers(listed) for test, listed in by_test.items()}
            for seed, by_test in seeds.items()
        }
        for scheme, seeds in cells.items()
    }


def _numbers(rows: list[Row]) -> np.ndarray | str:
    if lost := [row.status for row in rows if row.status != "ok"]:
        return lost[0]
    return np.array([x for row in rows for x in row.parts or (row.value,)], np.float64)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Writes a table as CSV."""
    lines = ([*row[:-2], ";".join(f"{x:.6f}" for x in row.parts), row.status] for row in rows)
    write_csv(path, Row._fields, lines)


def read(path: Path) -> list[Row]:
    """The rows of a table; other columns than those of a row are left out."""
    rows = []
    for line in read_csv(path):
        cells: dict[str, Any] = {name: line[name] for name in Row._fields}
        for name, kind in NUMBERS.items():
            cells[name] = kind(cells[name]) if cells[name] else None
        cells["parts"] = tuple(map(float, filter(None, cells["parts"].split(";"))))
        rows.append(Row(**cells))
    return rows


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes any table, UTF-8; None becomes an empty field."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of any table, by column."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
