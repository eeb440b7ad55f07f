"""The contents of a comparison's page: sections, rows and figures for its template."""

import dataclasses
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import markupsafe

from experiments.reporting import (
    figures,
    learning_rates,
    loss_curves,
    number_formats,
    plotting,
    results_of_papers,
    speed_ratios,
    statistics,
    trained_scheme_pictures,
)
from experiments.reporting.comparison_tables import Decided
from experiments.reporting.html_page import Figure, Section
from experiments.reporting.number_formats import number
from experiments.reporting.results import Cell, Results, Scheme, flat
from experiments.reporting.summary import Summary, irregularities, question_title, summary
from experiments.reporting.verdicts import REFERENCE, UNDECIDED, Verdict, interval
from experiments.running.sweep_configs import CompareConfig
from pe_jax.training.config import PROTOCOLS

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
    REFERENCE: "●",
    UNDECIDED: "∅",
}
CLAIMS = (statistics.LOWER, statistics.HIGHER)


class Page(NamedTuple):
    """The variables of the template.

    Attributes:
      m: the manifest.
      summary: questions, findings, confidence.
      primary: (protocol, length) of the primary metric.
      effect: the smallest difference of interest.
      questions: verdicts on each.
      by_length: loss against length, a figure for each protocol.
      losses: protocol → (scheme, cells by length).
      by_position: loss against position.
      context: the length of the context in that figure.
      no_position: schemes that are not in that figure, and why.
      speed: ratios at the training length, a figure for each measure.
      longer: ratios by length, a figure for each measure.
      speed_facts: speed.json.
      costs: sizes and speed of each scheme.
      logged: whether some speeds are from training logs.
      sections: learning rates, speed by length, published results.
      training: the training loss.
      by_step: the loss on the evaluation text while training.
      late: scheme → a sentence, for those whose loss still falls.
      cards: each scheme with its picture and runs.
      keys: colour and marker of each scheme.
      irregularities: irregular files and runs.
      commands: commands that make this report again.
      changed: fields that are not at their defaults.
      config: all fields.
      rate_words: how the learning rates were chosen.
    """

    m: dict[str, Any]
    summary: Summary
    primary: tuple[str, int]
    effect: str
    questions: list["QuestionPart"]
    by_length: list[Figure | None]
    losses: dict[str, list[tuple[str, list[tuple[str, str]]]]]
    by_position: Figure | None
    context: int
    no_position: list[str]
    speed: list[Figure | None]
    longer: list[Figure | None]
    speed_facts: dict[str, Any] | None
    costs: list["CostRow"]
    logged: bool
    sections: list[Section]
    training: Figure | None
    by_step: Figure | None
    late: dict[str, str]
    cards: list["Card"]
    keys: list[plotting.LegendKey]
    irregularities: list[str]
    commands: list[str]
    changed: list[tuple[str, Any, Any]]
    config: list[tuple[str, Any]]
    rate_words: str


def page(results: Results, decided: Decided) -> Page:
    """Draws the figures and collects the contents of the page."""
    folder, schemes = results.workdir / "figures", results.schemes
    lengths = results.manifest["lengths"]
    positions = [(s.name, *s.by_position()) for s in schemes]
    costs = [_cost(results, s) for s in schemes]
    return Page(
        m=results.manifest,
        summary=summary(results),
        primary=results.primary,
        effect=f"{results.effect:g}",
        questions=_questions(results, decided, folder),
        by_length=[_figure(folder, figures.loss_by_length(results, p)) for p in PROTOCOLS],
        losses={
            p: [(s.name, [cell_text(s.cell(p, n)) for n in lengths]) for s in schemes]
            for p in PROTOCOLS
        },
        by_position=_figure(folder, figures.loss_by_position(results)),
        context=max(len(x) for _, by_seed, _ in positions for x in [*by_seed.values(), ()]),
        no_position=[f"{name} ({why})" for name, _, why in positions if why],
        speed=[
            _figure(folder, figures.speed(results, measure, ratios))
            for measure, ratios in speed_ratios.speed_ratios(results).items()
        ],
        longer=[
            _figure(folder, figures.speed_by_length(results, measure, ratios))
            for measure, ratios in speed_ratios.speed_by_length(results).items()
        ],
        speed_facts=results.speed,
        costs=costs,
        logged=any(row.rate.endswith("*") for row in costs),
        sections=_sections(results),
        training=_figure(folder, figures.training(results)),
        by_step=_figure(folder, figures.loss_by_step(results)),
        late=loss_curves.still_falling(results),
        cards=_cards(results, folder),
        keys=[plotting.key(scheme) for scheme in schemes],
        irregularities=irregularities(results),
        commands=_commands(results),
        changed=_changed(results.manifest["config"]),
        config=flat(results.manifest["config"]),
        rate_words=learning_rates.rate_words(results),
    )


def _figure(folder: Path, drawing: plotting.Drawing | None) -> Figure | None:
    """Saves a drawing, for the template. The SVG is ours and escapes its text."""
    if drawing is None:
        return None
    return Figure(markupsafe.Markup(plotting.save(drawing, folder)), drawing.alt, drawing.stem)


class VerdictRow(NamedTuple):
    """One line of the table of verdicts, in words."""

    name: str
    kind: str
    claimed: bool
    mark: str
    words: str
    mean: str
    median: str
    interval: str
    p: str
    holm: str


def verdict_row(verdict: Verdict) -> VerdictRow:
    """A verdict as a line of a table."""
    difference, tested = verdict.difference, verdict.tested
    return VerdictRow(
        name=verdict.name,
        kind=verdict.kind,
        claimed=verdict.kind in CLAIMS and not verdict.exploratory,
        mark=MARKS[verdict.kind],
        words=verdict.words,
        mean=number(difference.mean, 4, signed=True) if difference else "—",
        median=number(difference.median, 4, signed=True) if difference else "—",
        interval=interval(tested),
        p=number_formats.p_value(difference.p) if difference else "—",
        holm=number_formats.p_value(tested.holm) if tested else "—",
    )


class QuestionPart(NamedTuple):
    """A question on the page: its heading, verdicts and figure."""

    title: str
    length: int
    protocol: str
    verdicts: list[VerdictRow]
    figure: Figure | None


def _questions(results: Results, decided: Decided, folder: Path) -> list[QuestionPart]:
    return [
        QuestionPart(
            question_title(results, question),
            question.length,
            question.protocol,
            [verdict_row(verdict) for verdict in verdicts],
            _figure(folder, figures.differences(results, question, verdicts)),
        )
        for question, verdicts in decided
    ]


def cell_text(cell: Cell) -> tuple[str, str]:
    """(main, small) words of a loss cell."""
    if cell.estimate is None:
        return cell.problem or "not evaluated", ""
    half = (cell.estimate.high - cell.estimate.low) / 2
    return number(cell.estimate.mean), "one seed" if math.isnan(half) else f"± {number(half)}"


class CostRow(NamedTuple):
    """One line of the table of sizes and speed, in words."""

    name: str
    spec: str
    parameters: str
    encoding_parameters: str
    flops: str
    rate: str
    problem: str
    memory: str
    train_loss: str
    learning_rate: str


def _cost(results: Results, scheme: Scheme) -> CostRow:
    measured = (results.speed or {}).get("encodings", {}).get(scheme.name, {})
    rate, source = speed_ratios.tokens_per_second(results, scheme)
    temporary, flops = measured.get("train_temp_bytes"), scheme.fact("flops_per_token")
    return CostRow(
        name=scheme.name,
        spec=scheme.spec,
        parameters=number(scheme.fact("parameters"), 0),
        encoding_parameters=number(scheme.fact("encoding_parameters"), 0),
        flops=number(flops / 1e6 if flops else None, 2),
        rate=number(rate, 0) + (" *" if source == "logged" else ""),
        problem=measured.get("problem", ""),
        memory=number(temporary / 2**20 if temporary else None, 1),
        train_loss=cell_text(scheme.train_loss())[0],
        learning_rate=learning_rates.rate_used(results, scheme),
    )


def _sections(results: Results) -> list[Section]:
    """Learning rates, if any were tried; speed by length; published results, if on text."""
    rates = learning_rates.rates(results)
    sections = [_rate_section(results, rates)] if any(row.losses for row in rates) else []
    sections += _speed_sections(results)
    if not results.manifest["corpus"]["name"].startswith("synthetic:"):
        ours = _what_differs(results)
        sections += [table.section(ours) for table in results_of_papers.TABLES]
    return sections


def _rate_section(results: Results, rows: list[learning_rates.Rates]) -> Section:
    pairs = {pair for row in rows for pair in row.losses}
    rates, multiples = (sorted({pair[k] for pair in pairs}) for k in (0, 1))
    columns = [(0, rate) for rate in rates] * (len(rates) > 1 or len(multiples) == 1)
    columns += [(1, multiple) for multiple in multiples] * (len(multiples) > 1)
    steps, length = results.manifest["rate_steps"], results.manifest["train_length"]
    return Section(
        title="Learning rates",
        note=f"Loss after {steps:,} steps on {learning_rates.checked_on(results)} at length"
        f" {length}, one seed, in nats per token; each scheme was then trained with its best, from"
        " the start." + MULTIPLES * (len(multiples) > 1),
        head=("encoding", *(f"{'× ' * k}{value:g}" for k, value in columns), "used", "remark"),
        rows=[
            (
                row.name,
                *(_least(row, *column) for column in columns),
                learning_rates.pair_words(row.used),
                row.remark,
            )
            for row in rows
        ],
        csv="rates.csv",
        words=("remark",),
    )


def _least(row: learning_rates.Rates, which: int, value: float) -> str:
    """The least loss at a learning rate (`which` 0) or at a multiple (1), or its problem."""
    if which and len({multiple for _, multiple in row.losses}) < 2:
        return "—"  # no parameters that could learn at another rate
    pairs = [pair for pair in row.losses if pair[which] == value]
    if not pairs:
        return "—"
    best = min(pairs, key=lambda pair: row.losses[pair])
    loss = row.losses[best]
    return number(loss) if loss < math.inf else row.statuses[best]


def _speed_sections(results: Results) -> list[Section]:
    """Time per token or memory, and ratios, by length: one section per measure."""
    lengths = (results.speed or {}).get("lengths", {})
    timed = {m for timings in lengths.values() for v in timings["encodings"].values() for m in v}
    return [_speed_section(results, m, lengths) for m in speed_ratios.BY_LENGTH if m in timed]


def _speed_section(results: Results, measure: str, lengths: dict[str, Any]) -> Section:
    """One measure; `lengths` as speed.json has them: length → its batch and timings."""
    base, ratios = results.manifest["baseline"], speed_ratios.speed_by_length(results)
    by_length = ratios.get(measure, {})
    device = results.speed["device"] if results.speed else ""

    def cell(scheme: Scheme, length: str) -> str:
        timings = lengths[length]
        values = timings["encodings"].get(scheme.name, {"problem": "not measured"})
        ratio = by_length.get(int(length), {}).get(scheme.name)
        return speed_ratios.speed_cell(measure, values, ratio, int(length), timings["batch"])

    unit = "MiB" if measure.endswith("bytes") else "microseconds per token"
    batches = ", ".join(f"{n} × {timings['batch']}" for n, timings in lengths.items())
    return Section(
        title=f"{speed_ratios.BY_LENGTH[measure].partition(',')[0].capitalize()}, by length:"
        f" {unit} (ratio to {base}); less is better",
        note=f"Ours, on {device}: medians, and the ratio of time or"
        f" memory to {base}, interleaved in one process. Length × batch: {batches}.",
        head=("encoding", *lengths),
        rows=[(s.name, *(cell(s, length) for length in lengths)) for s in results.schemes],
        csv="speed_by_length.csv",
    )


def _what_differs(results: Results) -> str:
    m = results.manifest
    sizes = sorted({n for s in results.schemes if (n := s.fact("parameters")) is not None})
    size = f"{sizes[-1] / 1e6:,.1f}M parameters at most, " if sizes else ""
    tokens = m["steps"] * m["batch"] * m["train_length"] / 1e6
    kind = m["config"].get("tokenizer", "bytes")
    return (
        f"Here: {m['corpus']['name']}, tokens are {kind}, {size}{tokens:,.1f}M tokens of training"
        " per run. Levels do not compare, only which schemes hold as the text grows longer."
    )


class RunRow(NamedTuple):
    """One seed of a scheme: its loss at the primary metric, and its status."""

    seed: int
    loss: str
    train_loss: str
    status: str


class Card(NamedTuple):
    """The section of one scheme: its picture and its runs."""

    name: str
    spec: str
    caption: str
    svg: markupsafe.Markup
    alt: str
    stem: str
    runs: list[RunRow]


def _cards(results: Results, folder: Path) -> list[Card]:
    cards = []
    for scheme in results.schemes:
        picture = trained_scheme_pictures.draw_or_explain(results, scheme, folder)
        losses = scheme.cell(*results.primary).values
        runs = [
            RunRow(
                seed,
                number(losses.get(seed)),
                number(run.evaluation.get("train_loss")),
                run.status + f": {run.reason}" * bool(run.reason),
            )
            for seed, run in scheme.runs.items()
        ]
        svg = markupsafe.Markup(picture.svg)
        about = picture.caption, svg, picture.alt, picture.stem
        cards.append(Card(scheme.name, scheme.spec, *about, runs))
    return cards


def _commands(results: Results) -> list[str]:
    """The commands that make this report again, in a fresh clone."""
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


def _changed(config: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(field, value, default) of fields that differ from the defaults, except the folder."""
    plain = json.loads(json.dumps(dataclasses.asdict(CompareConfig())))
    defaults = dict(flat(plain))
    rows = [(name, value, defaults.get(name, "—")) for name, value in flat(config)]
    return [row for row in rows if row[1] != row[2] and row[0] != "workdir"]
