"""The report of a comparison: one HTML file that needs nothing else, its figures and tables.

`build` writes report.html, figures/*.png with figures/*.csv beside them, and loss_by_length.csv,
loss_by_position.csv, speed.csv, rates.csv and verdicts.csv into the directory that `compare`
filled.
"""

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markupsafe
import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from experiments.reporting import (
    figures,
    findings,
    html_page,
    learning_rates,
    loss_curves,
    number_formats,
    plotting,
    published_results,
    statistics,
    trained_scheme_pictures,
)
from experiments.reporting import results as reading
from experiments.reporting.findings import Verdict
from experiments.reporting.results import Question, Results, Scheme
from experiments.running.provenance import save_json
from experiments.running.sweep_configs import CompareConfig
from pe_jax.training.config import PROTOCOLS

Decided = list[tuple[Question, list[Verdict]]]
PAGE = "report.html"
MULTIPLES = (
    " × is the multiple of the rate at which an encoding's own parameters learn. The loss at a rate"
    " is the least over multiples, that at a multiple the least over rates."
)
REPORT = "python -m experiments.report"
MARKS = {
    statistics.LOWER: "▼",
    statistics.HIGHER: "▲",
    statistics.SAME: "≈",
    statistics.INCONCLUSIVE: "?",
    findings.REFERENCE: "●",
    findings.UNDECIDED: "∅",
}


CLAIMS = (statistics.LOWER, statistics.HIGHER)


def _figure(folder: Path, drawing: plotting.Drawing | None) -> dict[str, Any] | None:
    """Saves a drawing; what the template needs of it. The SVG is ours and escapes its text."""
    if drawing is None:
        return None
    svg = markupsafe.Markup(plotting.save(drawing, folder))
    return {"svg": svg, "alt": drawing.alt, "stem": drawing.stem}


def _verdict_rows(rows: list[Verdict]) -> list[dict[str, Any]]:
    shown = []
    for row in rows:
        d = row.difference
        shown.append(
            {
                "name": row.name,
                "kind": row.kind,
                "claimed": row.kind in CLAIMS and not row.exploratory,
                "mark": MARKS[row.kind],
                "words": row.words,
                "mean": number_formats.number(d.mean, 4, signed=True) if d else "—",
                "median": number_formats.number(d.median, 4, signed=True) if d else "—",
                "interval": findings.interval(row.tested),
                "p": number_formats.p_value(d.p) if d else "—",
                "holm": number_formats.p_value(row.tested.holm) if row.tested else "—",
            }
        )
    return shown


def _cost(results: Results, scheme: Scheme) -> dict[str, str]:
    """One row of the table of sizes and speed."""
    measured = (results.speed or {}).get("encodings", {}).get(scheme.name, {})
    rate, source = findings.tokens_per_second(results, scheme)
    temporary, flops = measured.get("train_temp_bytes"), scheme.fact("flops_per_token")
    return {
        "name": scheme.name,
        "spec": scheme.spec,
        "parameters": number_formats.number(scheme.fact("parameters"), 0),
        "encoding_parameters": number_formats.number(scheme.fact("encoding_parameters"), 0),
        "flops": number_formats.number(flops / 1e6 if flops else None, 2),
        "rate": number_formats.number(rate, 0) + (" *" if source == "logged" else ""),
        "problem": measured.get("problem", ""),
        "memory": number_formats.number(temporary / 2**20 if temporary else None, 1),
        "compile": number_formats.number(measured.get("compile_seconds"), 1),
        "train_loss": findings.cell_text(findings.train_loss(scheme))[0],
        "learning_rate": learning_rates.rate_used(results, scheme),
    }


def _rate_section(results: Results, rows: list[learning_rates.Rates]) -> dict[str, Any]:
    """The losses of the checks, by learning rate and by multiple, as a section of the page."""
    pairs = {pair for row in rows for pair in row.losses}
    rates, multiples = (sorted({pair[k] for pair in pairs}) for k in (0, 1))
    columns = [(0, rate) for rate in rates] * (len(rates) > 1 or len(multiples) == 1)
    columns += [(1, multiple) for multiple in multiples] * (len(multiples) > 1)
    shown = [
        (
            row.name,
            *(_least(row, *column) for column in columns),
            learning_rates.pair_words(row.used),
            row.remark,
        )
        for row in rows
    ]
    steps, length = results.manifest["rate_steps"], results.manifest["train_length"]
    return {
        "title": "Learning rates",
        "note": f"Loss after {steps:,} steps on {learning_rates.checked_on(results)} at length"
        f" {length}, one seed, in nats per token; each scheme was then trained with its best, from"
        " the start." + MULTIPLES * (len(multiples) > 1),
        "head": ("encoding", *(f"{'× ' * k}{value:g}" for k, value in columns), "used", "remark"),
        "words": ("remark",),
        "rows": shown,
        "csv": "rates.csv",
    }


def _least(row: learning_rates.Rates, which: int, value: float) -> str:
    """The least loss with a learning rate (0) or a multiple of it (1); or why there is none."""
    if which and len({multiple for _, multiple in row.losses}) < 2:
        return "—"  # no parameters that could learn at another rate
    pairs = [pair for pair in row.losses if pair[which] == value]
    if not pairs:
        return "—"
    best = min(pairs, key=lambda pair: row.losses[pair])
    return (
        number_formats.number(row.losses[best])
        if row.losses[best] < math.inf
        else row.statuses[best]
    )


def _changed(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(field, value, default) where the configuration, but for its folder, is not the code's."""
    plain = json.loads(json.dumps(dataclasses.asdict(CompareConfig())))
    defaults = dict(reading.flat(plain))
    found = [(name, value, defaults.get(name, "—")) for name, value in reading.flat(config)]
    return [row for row in found if row[1] != row[2] and row[0] != "workdir"]


def _commands(results: Results) -> list[str]:
    """What makes this report again, in a fresh clone."""
    m, lines, at = results.manifest, [], ""
    for made in (*m.get("before", ()), m):
        known = re.fullmatch(r"([0-9a-f]{7,40})(-dirty)?", str(made["commit"]))
        if known and made["commit"] != at:
            changed = "  # and changes not committed" * bool(known[2])
            lines.append(f"git checkout {known[1]}{changed}")
        at = made["commit"]
        lines.append(made["command"])
    workdir = shlex.quote(str(m["config"].get("workdir", results.workdir)))
    return [*lines, f"{REPORT} --workdir={workdir}"]


def _runs(results: Results, scheme: Scheme) -> list[dict[str, Any]]:
    """One row a seed: its loss at the primary metric, and what became of it."""
    values = scheme.cell(*results.primary).values
    return [
        {
            "seed": seed,
            "loss": number_formats.number(values.get(seed)),
            "train_loss": number_formats.number(run.evaluation.get("train_loss")),
            "status": run.status + f": {run.reason}" * bool(run.reason),
        }
        for seed, run in scheme.runs.items()
    ]


def _losses(results: Results) -> Iterator[tuple]:
    yield ("encoding", "protocol", "length", "seed", "loss", "windows", "problem")
    for s in results.schemes:
        for protocol in PROTOCOLS:
            for length in results.manifest["lengths"]:
                cell = s.cell(protocol, length)
                for seed, run in s.runs.items():
                    found = run.windows(protocol, length)
                    problem = found if isinstance(found, str) else ""
                    count = None if problem else len(found)
                    loss = cell.values.get(seed)
                    yield s.name, protocol, length, seed, loss, count, problem


def _positions(results: Results) -> Iterator[tuple]:
    yield ("encoding", "seed", "position", "loss")
    for s in results.schemes:
        for seed, values in s.by_position()[0].items():
            yield from ((s.name, seed, i, x) for i, x in enumerate(values.tolist(), 1))


def _speeds(results: Results) -> Iterator[tuple]:
    yield ("encoding", "measure", "baseline", "median_ratio", "least", "greatest", "problem")
    base = results.manifest["baseline"]
    for measure, ratios in findings.speed_ratios(results).items():
        yield from ((n, measure, base, r.median, r.low, r.high, "") for n, r in ratios.items())
    for name, values in (results.speed or {}).get("encodings", {}).items():
        if "problem" in values:
            yield name, None, base, None, None, None, values["problem"]


def _speeds_by_length(results: Results) -> Iterator[tuple]:
    head = ("encoding", "length", "batch", "measure", "median", "tokens_per_second")
    yield (*head, "baseline", "median_ratio", "least", "greatest", "problem")
    base, ratios = results.manifest["baseline"], findings.speed_by_length(results)
    for length, there in (results.speed or {}).get("lengths", {}).items():
        for name, values in there["encodings"].items():
            at = name, int(length), there["batch"]
            if "problem" in values:
                yield (*at, *[None] * 4, *[None] * 3, values["problem"])
                continue
            for measure, value in values.items():
                r = ratios.get(measure, {}).get(int(length), {}).get(name)
                median = float(np.median(value))
                rate = findings.rate_of(measure, median, *at[1:])
                found = (r.median, r.low, r.high) if r else (None,) * 3
                yield (*at, measure, median, rate, base, *found, "")


def _speed_sections(results: Results) -> list[dict[str, Any]]:
    """Time per token or memory, and ratios, by length: a section of the page for each measure."""
    there = (results.speed or {}).get("lengths", {})
    base, sections, ratios = results.manifest["baseline"], [], findings.speed_by_length(results)
    timed = [values for found in there.values() for values in found["encodings"].values()]
    for measure in findings.BY_LENGTH:
        if not any(measure in values for values in timed):
            continue
        by_length, rows = ratios.get(measure, {}), []
        for scheme in results.schemes:
            cells = []
            for length, found in there.items():
                values = found["encodings"].get(scheme.name, {"problem": "not measured"})
                ratio = by_length.get(int(length), {}).get(scheme.name)
                cells.append(findings.speed_cell(measure, values, ratio, int(length), found))
            rows.append((scheme.name, *cells))
        unit = "MiB" if measure.endswith("bytes") else "microseconds per token"
        batches = ", ".join(f"{n} × {found['batch']}" for n, found in there.items())
        sections.append(
            {
                "title": f"{findings.BY_LENGTH[measure].partition(',')[0].capitalize()}, by length:"
                f" {unit} (ratio to {base}); less is better",
                "note": f"Ours, on {results.speed['device']}: medians, and the ratio of time or"
                f" memory to {base}, interleaved in one process. Length × batch: {batches}.",
                "head": ("encoding", *there),
                "rows": rows,
                "csv": "speed_by_length.csv",
            }
        )
    return sections


def _rates(results: Results) -> Iterator[tuple]:
    yield ("encoding", "learning_rate", "encoding_rate", "loss", "status", "used", "remark")
    for row in learning_rates.rates(results):
        for pair, loss in row.losses.items():
            known = loss if math.isfinite(loss) else None
            used = pair == row.used
            yield row.name, *pair, known, row.statuses[pair], used, row.remark if used else ""


def _decided(results: Results, decided: Decided) -> Iterator[tuple]:
    head = ("encoding", "question", "reference", "protocol", "length", "seeds", "difference")
    head += ("low", "high", "p", "p_holm", "median", "each_seed", "verdict")
    yield head
    for question, rows in decided:
        at = results.manifest["reference"], question.protocol, question.length
        for v in rows:
            d, t = v.difference, v.tested
            numbers = (d.n, d.mean, t.low, t.high, d.p, t.holm, d.median) if d else (None,) * 7
            numbers = [None if n is None or math.isnan(n) else n for n in numbers]
            each = ";".join(f"{x:.6f}" for x in d.values) if d else ""
            yield (v.name, question.role, *at, *numbers, each, v.words)


def _write_tables(results: Results, decided: Decided) -> None:
    """The tables, as CSV with every digit."""
    tables = {
        "loss_by_length": _losses(results),
        "loss_by_position": _positions(results),
        "speed": _speeds(results),
        "speed_by_length": _speeds_by_length(results),
        "rates": _rates(results),
        "verdicts": _decided(results, decided),
    }
    for name, (head, *lines) in tables.items():
        plotting.write_csv(results.workdir / f"{name}.csv", head, lines)


def _questions(results: Results, decided: Decided, folder: Path) -> list[dict[str, Any]]:
    """What the page shows of each question: its heading, verdicts and figure."""
    return [
        {
            "title": findings.asked(results, question),
            "length": question.length,
            "protocol": question.protocol,
            "verdicts": _verdict_rows(rows),
            "figure": _figure(folder, figures.differences(results, question, rows)),
        }
        for question, rows in decided
    ]


def _context(results: Results, decided: Decided) -> dict[str, Any]:
    """Everything that the page shows."""
    folder = results.workdir / "figures"
    lengths, ratios = results.manifest["lengths"], findings.speed_ratios(results)
    longer = findings.speed_by_length(results)
    tables = {
        p: [(s.name, [findings.cell_text(s.cell(p, n)) for n in lengths]) for s in results.schemes]
        for p in PROTOCOLS
    }
    draw = figures.loss_by_length
    costs = [_cost(results, s) for s in results.schemes]
    cards = zip(trained_scheme_pictures.draw_all(results, folder), results.schemes, strict=True)
    positions = [(s.name, s.by_position()) for s in results.schemes]
    rates = learning_rates.rates(results)
    sections = [_rate_section(results, rates)] if any(row.losses for row in rates) else []
    sections += _speed_sections(results)
    if not results.manifest["corpus"]["name"].startswith("synthetic:"):
        ours = findings.what_differs(results)
        sections += [table.section(ours) for table in published_results.TABLES]
    return {
        "sections": sections,
        "rate_words": learning_rates.rate_words(results),
        "m": results.manifest,
        "primary": results.primary,
        "effect": f"{results.effect:g}",
        "summary": findings.summary(results),
        "questions": _questions(results, decided, folder),
        "by_length": [_figure(folder, draw(results, p)) for p in PROTOCOLS],
        "by_position": _figure(folder, figures.loss_by_position(results)),
        "context": max(len(x) for _, (good, _) in positions for x in [*good.values(), ()]),
        "no_position": [f"{name} ({why})" for name, (_, why) in positions if why],
        "speed": [_figure(folder, figures.speed(results, *pair)) for pair in ratios.items()],
        "longer": [
            _figure(folder, figures.speed_by_length(results, *pair)) for pair in longer.items()
        ],
        "speed_facts": results.speed,
        "training": _figure(folder, figures.training(results)),
        "by_step": _figure(folder, figures.loss_by_step(results)),
        "late": loss_curves.still_falling(results),
        "losses": tables,
        "costs": costs,
        "logged": any(row["rate"].endswith("*") for row in costs),
        "cards": [
            {**card, "svg": markupsafe.Markup(card["svg"]), "runs": _runs(results, scheme)}
            for card, scheme in cards
        ],
        "keys": [plotting.key(scheme) for scheme in results.schemes],
        "irregularities": findings.irregularities(results),
        "config": reading.flat(results.manifest["config"]),
        "changed": _changed(results.manifest["config"]),
        "commands": _commands(results),
    }


def build(workdir: Path) -> Path:
    """Writes the report of a comparison and all that belongs to it; returns report.html.

    Raises:
      FileNotFoundError: there is no manifest in `workdir`.
      ValueError: what is in there cannot be read (a missing or failed run can).
    """
    results = reading.read(workdir)
    decided = [(question, findings.verdicts(results, question)) for question in results.questions]
    text = html_page.render("report.html.j2", ("report.js",), **_context(results, decided))
    _write_tables(results, decided)
    path = results.workdir / PAGE
    path.write_text(text, encoding="utf-8")
    if results.subject not in results.reported:
        save_json(results.workdir / reading.REPORTED, [*results.reported, results.subject])
    return path


def summary(workdir: Path) -> Group:
    """The verdicts, for the terminal: a table for each question."""
    results = reading.read(workdir)
    tables: list[Any] = [_terminal(results, question) for question in results.questions]
    if results.changes:
        tables.append(Text(f"Exploratory, not confirmatory: {results.changes} after a report."))
    return Group(*tables)


def _terminal(results: Results, question: Question) -> Table:
    """The verdicts on one question, for the terminal."""
    protocol, length = question.protocol, question.length
    of = f"{question.role}: loss" if len(results.questions) > 1 else "loss"
    minus = f"minus {results.manifest['reference']} (nats per token)"
    title = f"{of[0].upper()}{of[1:]} at length {length}, {protocol}, {minus}"
    table = Table(title=Text(title), title_justify="left")
    for column in ("encoding", "rate", "loss", "difference", "95 % (Holm)", "Holm p"):
        table.add_column(column, justify="left" if column == "encoding" else "right")
    table.add_column("verdict")
    shown = _verdict_rows(findings.verdicts(results, question))
    for scheme, row in zip(results.schemes, shown, strict=True):
        cell = scheme.cell(protocol, length)
        loss = findings.cell_text(cell)[0] if cell.estimate else "—"
        numbers = learning_rates.rate_used(results, scheme), loss, row["mean"], row["interval"]
        words = (row["name"], *numbers, row["holm"], f"{row['mark']} {row['words']}")
        table.add_row(*map(Text, words))  # Text: names are not markup
    return table
