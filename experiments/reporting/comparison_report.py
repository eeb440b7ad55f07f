"""The report of a comparison: one self-contained HTML file, its figures and tables.

`build` writes report.html, figures/*.png with their data as figures/*.csv, and loss_by_length.csv,
loss_by_position.csv, speed.csv, rates.csv and verdicts.csv into the directory that `compare`
filled.
"""

from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from experiments.reporting import (
    comparison_page,
    comparison_tables,
    html_page,
    learning_rates,
)
from experiments.reporting.results import REPORTED, Question, Results, read
from experiments.reporting.verdict_rows import by_difference, verdict_row
from experiments.reporting.verdicts import verdicts
from experiments.running.provenance import save_json

PAGE = "report.html"


def build(workdir: Path) -> Path:
    """Writes the report of a comparison with its figures and tables; returns report.html.

    Raises:
      FileNotFoundError: there is no manifest in `workdir`.
      ConfigError: a file cannot be read (missing and failed runs are allowed).
    """
    results = read(workdir)
    decided = [(question, verdicts(results, question)) for question in results.questions]
    page = comparison_page.page(results, decided)
    text = html_page.render("comparison.html.j2", ("comparison.js",), **page._asdict())
    comparison_tables.write_tables(results, decided)
    path = results.workdir / PAGE
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # paths need not be UTF-8
    if results.subject not in results.reported:
        save_json(results.workdir / REPORTED, [*results.reported, results.subject])
    return path


def summary(workdir: Path) -> Group:
    """The verdicts, for the terminal: a table for each question."""
    results = read(workdir)
    parts: list[Table | Text] = [_terminal(results, question) for question in results.questions]
    if results.changes:
        parts.append(Text(f"Exploratory, not confirmatory: {results.changes} after a report."))
    return Group(*parts)


def _terminal(results: Results, question: Question) -> Table:
    protocol, length = question.protocol, question.length
    of = f"{question.role}: loss" if len(results.questions) > 1 else "loss"
    minus = f"minus {results.manifest['reference']} (nats per token)"
    title = f"{of[0].upper()}{of[1:]} at length {length}, {protocol}, {minus}"
    table = Table(title=Text(title), title_justify="left")
    for column in ("encoding", "rate", "loss", "difference", "95 % (Holm)", "Holm p"):
        table.add_column(column, justify="left" if column == "encoding" else "right")
    table.add_column("verdict")
    decided = [(v, verdict_row(results, question, v)) for v in verdicts(results, question)]
    for row in by_difference(decided):
        rate = learning_rates.rate_used(results, results.schemes[row.place])
        words = f"{row.mark} {row.words}"
        cells = row.name, rate, row.loss, row.mean, row.interval, row.holm, words
        table.add_row(*map(Text, cells))  # Text: names are not markup
    return table
