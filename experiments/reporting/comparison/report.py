"""The report of a comparison: one self-contained HTML file, its figures and tables.

`build` writes report.html, loss_by_length.csv, loss_by_position.csv, speed.csv, rates.csv and
verdicts.csv into the directory that `compare` filled, and figures/*.png, each with its data as
figures/*.csv unless it is drawn from one of these tables.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from experiments.reporting import html_page
from experiments.reporting.comparison import learning_rates, page, speed_ratios
from experiments.reporting.results import REPORTED, Question, Results
from experiments.reporting.statistics import number, p_value
from experiments.reporting.verdicts import Verdict, by_difference, verdicts
from experiments.running.files import table
from experiments.running.files.provenance import save_json

PAGE = "report.html"


def build(results: Results) -> Path:
    """Writes the report of a comparison with its figures and tables; returns report.html."""
    results.workdir.mkdir(parents=True, exist_ok=True)
    decided = [(question, verdicts(results, question)) for question in results.questions]
    contents = page.contents(results, decided)
    text = html_page.render("comparison.html.j2", ("comparison.js",), **contents)
    tables = {
        "loss_by_position": _positions(results),
        "speed": _speeds(results),
        "rates": _rates(results),
        "verdicts": _verdicts(results, decided),
    }
    for name, (head, *lines) in tables.items():
        table.write_csv(results.workdir / f"{name}.csv", head, lines)
    table.write(results.workdir / "loss_by_length.csv", results.rows())
    path = results.workdir / PAGE
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # paths need not be UTF-8
    declare(results)
    return path


def declare(results: Results) -> None:
    """Writes down which seeds and schemes a report has: what comes after it is exploratory."""
    if results.subject not in results.reported:
        save_json(results.workdir / REPORTED, [*results.reported, results.subject])


def summary(results: Results) -> Group:
    """The verdicts, for the terminal: a table for each question."""
    parts: list[Table | Text] = []
    for question in results.questions:
        of = f"{question.role}: loss" if len(results.questions) > 1 else "loss"
        minus = f"minus {results.manifest.reference} (nats per token)"
        at = f"at length {question.length}, {question.protocol}, {minus}"
        shown = Table(title=Text(f"{of[0].upper()}{of[1:]} {at}"), title_justify="left")
        for column in ("encoding", "rate", "loss", "difference", "95 % (Holm)", "Holm p"):
            shown.add_column(column, justify="left" if column == "encoding" else "right")
        shown.add_column("verdict")
        for v in by_difference(verdicts(results, question)):
            rate = learning_rates.rate_used(results, results.schemes[v.index])
            mean, holm = number(v.tested.estimate.mean, 3, True), p_value(v.tested.holm)
            numbers = number(v.loss), mean, v.tested.interval(), holm
            cells = v.name, rate, *numbers, f"{v.mark} {v.words}"
            shown.add_row(*map(Text, cells))  # Text: names are not markup
        parts.append(shown)
    if results.changes:
        parts.append(Text(f"Exploratory, not confirmatory: {results.changes} after a report."))
    return Group(*parts)


# The tables, with every digit.


def _positions(results: Results) -> Iterator[tuple]:
    yield ("encoding", "seed", "position", "loss")
    for scheme in results.schemes:
        for seed, values in scheme.by_position()[0].items():
            yield from ((scheme.name, seed, i, x) for i, x in enumerate(values.tolist(), 1))


def _speeds(results: Results) -> Iterator[tuple]:
    head = ("encoding", "length", "batch", "measure", "median", "tokens_per_second")
    yield (*head, "baseline", "median_ratio", "least", "greatest", "problem")
    base, ratios = results.manifest.baseline, speed_ratios.ratios(results)
    for length, timings in speed_ratios.timings(results).items():
        batch = timings["batch"]
        for name, values in timings["encodings"].items():
            if "problem" in values:
                yield (name, length, batch, *[None] * 7, values["problem"])
                continue
            for measure, value in values.items():
                ratio = ratios.get(measure, {}).get(length, {}).get(name) or (None,) * 3
                median = float(np.median(value))
                rate = speed_ratios.rate_of(measure, median, length, batch)
                yield (name, length, batch, measure, median, rate, base, *ratio, "")


def _rates(results: Results) -> Iterator[tuple]:
    yield ("encoding", "learning_rate", "encoding_rate", "loss", "status", "used", "remark")
    for row in learning_rates.rates(results):
        for pair, loss in row.losses.items():
            finite = loss if math.isfinite(loss) else None
            used = pair == row.used
            yield row.name, *pair, finite, row.statuses[pair], used, row.remark if used else ""


def _verdicts(
    results: Results, decided: Sequence[tuple[Question, list[Verdict]]]
) -> Iterator[tuple]:
    head = ("encoding", "question", "reference", "protocol", "length", "seeds", "difference")
    yield (*head, "low", "high", "p", "p_holm", "median", "each_seed", "verdict")
    for (role, protocol, length), rows in decided:
        for v in rows:
            t, d = v.tested, v.tested.estimate
            numbers = d.mean, t.low, t.high, d.p, t.holm, d.median
            numbers = d.n or None, *(None if math.isnan(x) else x for x in numbers)
            seeds = ";".join(f"{x:.6f}" for x in d.values)
            at = role, results.manifest.reference, protocol, length
            yield (v.name, *at, *numbers, seeds, v.words)
