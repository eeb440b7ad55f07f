"""The tables of `experiments.benchmark`."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich import box
from rich.table import Table

from experiments.measuring import timing
from experiments.measuring.timing import DENSE, NAIVE, SDPA, Row, Timings, plain


def _cells(timings: Timings, row: Row) -> dict[str, str]:
    """The columns of a row that was timed, by their titles."""
    ratios = {n: "–" if x is None else f"{x:.2f}" for n, x in timings.ratios(row).items()}
    low, middle, high = map(float, 1e3 * np.percentile(row.seconds, (25, 50, 75)))
    spread = timing.quartiles(timings.ours(row), row)

    def per_second(count: float | None, unit: float = 1) -> str:
        return plain(count and 1e3 * count / unit / middle)

    return {
        "scheme": row.scheme,
        "engine": row.engine,
        "ms min": plain(1e3 * min(row.seconds)),
        "median": plain(middle),
        "IQR": plain(high - low, 2),
        "÷ none": ratios["to_none"],
        "of minima": ratios["to_none_of_minima"],
        f"÷ {SDPA}, none": ratios["to_sdpa"],
        f"{NAIVE} ÷ ours": ratios["naive_to_this"],
        f"{SDPA} ÷ ours": ratios["sdpa_to_this"],
        f"{DENSE} ÷ ours": ratios["dense_to_this"],
        "tokens/s": per_second(row.tokens),
        "GFLOP/s": per_second(row.operations, 1e9),
        "of peak": ratios["share_of_large"],
        "of MLP's": ratios["share_of_own"],
        "ours ÷ this": "–" if spread is None else "{1:.2f} ({0:.2f}–{2:.2f})".format(*spread),
        "temp MiB": plain(row.temp_bytes and row.temp_bytes / 2**20),
        "compile s": plain(row.compile_seconds or None, 2),
    }


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """The remarks on rows, one line per remark: what did not run, and others."""
    for note in dict.fromkeys(row.note for row in rows if row.note):
        noted = [row for row in rows if row.note == note]
        names = ", ".join(f"{row.scheme} ({row.engine})" for row in noted)
        yield f"{names}: {'' if noted[0].seconds else 'not run: '}{note}"


def terminal(timings: Timings, length: int, mode: str) -> list[Table | str]:
    """The table of one length and mode, and its notes."""
    rows = [row for row in timings.rows if (row.length, row.mode) == (length, mode)]
    table = Table(title=f"{length} tokens, {mode}", title_justify="left", box=box.SIMPLE_HEAD)
    timed, columns = [_cells(timings, row) for row in rows if row.seconds], []
    for name in timed[0] if timed else ():
        cells = [row[name] for row in timed]
        if all(text == "–" for text in cells):
            continue
        is_name = name in ("scheme", "engine")
        table.add_column(name, justify="left" if is_name else "right", no_wrap=True)
        columns.append(cells)
    for line in zip(*columns, strict=True):
        table.add_row(*line)
    return [table, *notes(rows)]
