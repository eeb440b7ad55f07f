"""The report of a comparison: one HTML file that needs nothing else, its figures and tables.

    python -m experiments.report --workdir=runs/compare

writes report.html, figures/*.png with figures/*.csv beside them, and loss_by_length.csv,
loss_by_position.csv, speed.csv and verdicts.csv into the directory that `compare` filled.
"""

import dataclasses
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import markupsafe
import rich
from absl import app, flags
from rich.table import Table
from rich.text import Text

from experiments import figures, findings, page, plotting, portraits, statistics
from experiments import results as reading
from experiments.findings import Verdict
from experiments.results import Results, Scheme
from pe_jax.training.config import PROTOCOLS, CompareConfig

REPORT = "python -m experiments.report"
MARKS = {
    statistics.LOWER: "▼",
    statistics.HIGHER: "▲",
    statistics.NONE: "=",
    findings.REFERENCE: "●",
    findings.UNDECIDED: "∅",
}


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
                "mark": MARKS[row.kind],
                "words": row.words,
                "mean": findings.number(d.mean, 4, signed=True) if d else "—",
                "interval": findings.interval(d),
                "p": findings.p_value(d.p) if d else "—",
                "holm": findings.p_value(row.holm),
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
        "parameters": findings.number(scheme.fact("parameters"), 0),
        "encoding_parameters": findings.number(scheme.fact("encoding_parameters"), 0),
        "flops": findings.number(flops / 1e6 if flops else None, 2),
        "rate": findings.number(rate, 0) + (" *" if source == "logged" else ""),
        "memory": findings.number(temporary / 2**20 if temporary else None, 1),
        "compile": findings.number(measured.get("compile_seconds"), 1),
        "train_loss": findings.cell_text(findings.train_loss(scheme))[0],
    }


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """A nested configuration as dotted names and values."""
    if not isinstance(value, dict):
        return [(prefix, str(value))]
    return [pair for k, v in value.items() for pair in _flat(v, f"{prefix}.{k}" if prefix else k)]


def _changed(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(field, value, default) where the configuration, but for its folder, is not the code's."""
    plain = json.loads(json.dumps(dataclasses.asdict(CompareConfig())))
    defaults = dict(_flat(plain))
    found = [(name, value, defaults.get(name, "—")) for name, value in _flat(config)]
    return [row for row in found if row[1] != row[2] and row[0] != "workdir"]


def _commands(results: Results) -> list[str]:
    """What makes this report again, in a fresh clone."""
    commit, m = str(results.manifest["commit"]), results.manifest
    known = re.fullmatch(r"([0-9a-f]{7,40})(-dirty)?", commit)
    checkout = []
    if known:
        checkout = [f"git checkout {known[1]}" + "  # and changes not committed" * bool(known[2])]
    workdir = shlex.quote(str(m["config"].get("workdir", results.workdir)))
    return [*checkout, m["command"], f"{REPORT} --workdir={workdir}"]


def _runs(results: Results, scheme: Scheme) -> list[dict[str, Any]]:
    """One row a seed: its loss at the primary metric, and what became of it."""
    values = scheme.cell(*results.primary).values
    return [
        {
            "seed": seed,
            "loss": findings.number(values.get(seed)),
            "train_loss": findings.number(run.evaluation.get("train_loss")),
            "status": run.status + f": {run.reason}" * bool(run.reason),
        }
        for seed, run in scheme.runs.items()
    ]


def _write_tables(results: Results, rows: list[Verdict]) -> None:
    """The four tables, as CSV with every digit."""
    losses, positions, speed = [], [], []
    for s in results.schemes:
        for protocol in PROTOCOLS:
            for length in results.manifest["lengths"]:
                cell = s.cell(protocol, length)
                for seed, run in s.runs.items():
                    found = run.windows(protocol, length)
                    problem = found if isinstance(found, str) else ""
                    count = None if problem else len(found)
                    loss = cell.values.get(seed)
                    losses.append((s.name, protocol, length, seed, loss, count, problem))
        for seed, values in s.by_position()[0].items():
            positions += [(s.name, seed, i, x) for i, x in enumerate(values.tolist(), 1)]
    for measure, ratios in findings.speed_ratios(results).items():
        base = results.manifest["baseline"]
        speed += [(n, measure, base, r.median, r.low, r.high) for n, r in ratios.items()]
    decided = []
    for v in rows:
        d = v.difference
        numbers = (d.n, d.mean, d.low, d.high, d.p, v.holm) if d else (None,) * 6
        numbers = [None if n is None or math.isnan(n) else n for n in numbers]
        decided.append((v.name, results.manifest["reference"], *results.primary, *numbers, v.words))
    head = ("encoding", "protocol", "length", "seed", "loss", "windows", "problem")
    plotting.write_csv(results.workdir / "loss_by_length.csv", head, losses)
    head = ("encoding", "seed", "position", "loss")
    plotting.write_csv(results.workdir / "loss_by_position.csv", head, positions)
    head = ("encoding", "measure", "baseline", "median_ratio", "least", "greatest")
    plotting.write_csv(results.workdir / "speed.csv", head, speed)
    head = ("encoding", "reference", "protocol", "length", "seeds", "difference", "low", "high")
    head = (*head, "p", "p_holm", "verdict")
    plotting.write_csv(results.workdir / "verdicts.csv", head, decided)


def _context(results: Results, rows: list[Verdict]) -> dict[str, Any]:
    """Everything that the page shows."""
    folder = results.workdir / "figures"
    lengths, ratios = results.manifest["lengths"], findings.speed_ratios(results)
    tables = {
        p: [(s.name, [findings.cell_text(s.cell(p, n)) for n in lengths]) for s in results.schemes]
        for p in PROTOCOLS
    }
    draw = figures.loss_by_length
    costs = [_cost(results, s) for s in results.schemes]
    cards = zip(portraits.draw_all(results, folder), results.schemes, strict=True)
    positions = [(s.name, s.by_position()) for s in results.schemes]
    return {
        "m": results.manifest,
        "primary": results.primary,
        "summary": findings.summary(results, rows),
        "verdicts": _verdict_rows(rows),
        "difference": _figure(folder, figures.differences(results, rows)),
        "by_length": [_figure(folder, draw(results, p)) for p in PROTOCOLS],
        "by_position": _figure(folder, figures.loss_by_position(results)),
        "context": max(len(x) for _, (good, _) in positions for x in [*good.values(), ()]),
        "no_position": [f"{name} ({why})" for name, (_, why) in positions if why],
        "speed": [_figure(folder, figures.speed(results, m, r)) for m, r in ratios.items()],
        "speed_facts": results.speed,
        "training": _figure(folder, figures.training(results)),
        "losses": tables,
        "costs": costs,
        "logged": any(row["rate"].endswith("*") for row in costs),
        "cards": [
            {**card, "svg": markupsafe.Markup(card["svg"]), "runs": _runs(results, scheme)}
            for card, scheme in cards
        ],
        "keys": [plotting.key(scheme) for scheme in results.schemes],
        "irregularities": findings.irregularities(results),
        "config": _flat(results.manifest["config"]),
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
    rows = findings.verdicts(results)
    text = page.render("report.html.j2", ("report.js",), **_context(results, rows))
    _write_tables(results, rows)
    path = results.workdir / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


def summary(workdir: Path) -> Table:
    """The verdicts, for the terminal."""
    results = reading.read(workdir)
    protocol, length = results.primary
    title = f"Loss at length {length}, {protocol}, minus {results.manifest['reference']} (nats)"
    table = Table(title=Text(title), title_justify="left")
    for column in ("encoding", "loss", "difference", "95 % interval", "Holm p"):
        table.add_column(column, justify="left" if column == "encoding" else "right")
    table.add_column("verdict")
    shown = _verdict_rows(findings.verdicts(results))
    for scheme, row in zip(results.schemes, shown, strict=True):
        cell = scheme.cell(protocol, length)
        loss = findings.cell_text(cell)[0] if cell.estimate else "—"
        words = (loss, row["mean"], row["interval"], row["holm"], f"{row['mark']} {row['words']}")
        table.add_row(Text(row["name"]), *map(Text, words))  # Text: names are not markup
    return table


def main(argv: list[str]) -> None:
    """Builds the report of --workdir."""
    del argv
    workdir = Path(flags.FLAGS.workdir)
    try:
        path = build(workdir)
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(f"report: {error}") from None
    rich.print(summary(workdir))
    print(path)


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "the directory that a comparison filled", required=True)
    app.run(main)
