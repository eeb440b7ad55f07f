"""The contents of a comparison's page: figures and rows for its template."""

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

import markupsafe

from experiments.reporting import (
    differences,
    figures,
    learning_rates,
    length_figures,
    loss_curves,
    page_sections,
    plotting,
    results_of_papers,
    speed_ratios,
    trained_scheme_pictures,
)
from experiments.reporting.answers import FirstScreen, first_screen
from experiments.reporting.comparison_tables import Decided
from experiments.reporting.html_page import Figure, Section
from experiments.reporting.number_formats import number
from experiments.reporting.results import Cell, Results, Scheme, flat
from experiments.reporting.summary import Summary, irregularities, question_title, summary
from experiments.reporting.verdict_rows import VerdictRow, by_difference, verdict_row
from experiments.running.sweep_configs import CompareConfig
from pe_jax.training.config import PROTOCOLS

REPORT = "python -m experiments.report"


class Page(NamedTuple):
    """The variables of the template.

    Attributes:
      m: the manifest.
      first: the first screen.
      main: paired differences against length, the figure of the first screen.
      summary: questions, findings, confidence.
      effect: the smallest difference of interest.
      questions: verdicts on each.
      by_length: paired differences under the other protocol, and losses under both.
      losses: protocol → (index, cells by length).
      by_position: paired differences against position.
      context: the length of the context in that figure.
      no_position: schemes that are not in that figure, and why.
      speed: ratios at the training length, a figure for each measure.
      longer: ratios by length, a figure for each measure.
      speed_facts: speed.json.
      costs: sizes and speed of each scheme.
      logged: whether some speeds are from training logs.
      sections: learning rates, speed by length.
      published: results of others.
      ours: how this comparison differs from these.
      training: the losses while training, a figure for each kind.
      cards: each scheme with its picture and runs.
      keys: colour and marker of each scheme.
      irregularities: irregular files and runs.
      commands: commands that make this report again.
      changed: fields that are not at their defaults.
      config: all fields.
      rate_words: how the learning rates were chosen.
      theme: CSS of the colours, light and dark.
    """

    m: dict[str, Any]
    first: FirstScreen
    main: Figure
    summary: Summary
    effect: str
    questions: list["QuestionPart"]
    by_length: list[Figure]
    losses: dict[str, list[tuple[int, list[tuple[str, str]]]]]
    by_position: Figure
    context: int
    no_position: list[str]
    speed: list[Figure]
    longer: list[Figure]
    speed_facts: dict[str, Any] | None
    costs: list["CostRow"]
    logged: bool
    sections: list[Section]
    published: list[Section]
    ours: str
    training: list[Figure]
    cards: list["Card"]
    keys: list[plotting.LegendKey]
    irregularities: list[str]
    commands: list[str]
    changed: list[tuple[str, Any, Any]]
    config: list[tuple[str, Any]]
    rate_words: str
    theme: tuple[str, str]


def page(results: Results, decided: Decided) -> Page:
    """Draws the figures and collects the contents of the page."""
    schemes, protocol = results.schemes, results.primary[0]
    lengths = results.manifest["lengths"]
    others = [p for p in PROTOCOLS if p != protocol]
    contexts = [len(x) for s in schemes for x in s.by_position()[0].values()]
    costs = [_cost(results, s) for s in schemes]

    def figure(draw: Callable, *inputs: Any) -> Figure:
        return _figure(results, draw, *inputs)

    training = [figures.loss_by_step, figures.loss_by_seconds, figures.training]
    drawn = [figure(draw) for draw in training if draw(results) is not None]
    by_protocol = [length_figures.differences_by_length] * len(others)
    return Page(
        m=results.manifest,
        first=first_screen(results),
        main=figure(length_figures.differences_by_length, protocol),
        summary=summary(results),
        effect=f"{results.effect:g}",
        questions=[_question(results, *pair) for pair in decided],
        by_length=[
            *(figure(draw, p) for draw, p in zip(by_protocol, others, strict=True)),
            *(figure(length_figures.loss_by_length, p) for p in PROTOCOLS),
        ],
        losses={p: _losses(results, p, lengths) for p in PROTOCOLS},
        by_position=figure(length_figures.differences_by_position),
        context=max(contexts, default=0),
        no_position=[f"{n} ({why})" for n, why in differences.by_position(results)[1].items()],
        speed=[
            figure(figures.speed, measure, ratios)
            for measure, ratios in speed_ratios.speed_ratios(results).items()
        ],
        longer=[
            figure(figures.speed_by_length, measure, ratios)
            for measure, ratios in speed_ratios.speed_by_length(results).items()
        ],
        speed_facts=results.speed,
        costs=costs,
        logged=any(row.rate.endswith("*") for row in costs),
        sections=page_sections.tables(results),
        published=_published(results),
        ours=page_sections.what_differs(results),
        training=drawn,
        cards=_cards(results),
        keys=[plotting.key(scheme) for scheme in schemes],
        irregularities=irregularities(results),
        commands=_commands(results),
        changed=_changed(results.manifest["config"]),
        config=flat(results.manifest["config"]),
        rate_words=learning_rates.rate_words(results),
        theme=(plotting.theme(dark=False), plotting.theme(dark=True)),
    )


def _figure(results: Results, draw: Callable[..., plotting.Drawing], *inputs: Any) -> Figure:
    """Saves a drawing, and draws it again for a phone. SVG is ours and escapes its text."""
    drawing = draw(results, *inputs)
    plotting.write(drawing, results.workdir / "figures")
    slim = plotting.vector(draw(results, *inputs, narrow=True), "-narrow")
    svg, slim = (markupsafe.Markup(plotting.themed(x)) for x in (plotting.vector(drawing), slim))
    return Figure(svg, slim, drawing.alt, drawing.stem)


def _published(results: Results) -> list[Section]:
    if results.manifest["corpus"]["name"].startswith("synthetic:"):
        return []
    return [table.section() for table in results_of_papers.TABLES]


class QuestionPart(NamedTuple):
    """A question on the page: its heading, verdicts and figure."""

    title: str
    length: int
    protocol: str
    verdicts: list[VerdictRow]
    figure: Figure


def _question(results: Results, question, verdicts) -> QuestionPart:
    rows = [(v, verdict_row(results, question, v)) for v in verdicts]
    title, about = question_title(results, question), (question.length, question.protocol)
    figure = _figure(results, figures.differences, question, verdicts)
    return QuestionPart(title, *about, by_difference(rows), figure)


def _losses(
    results: Results, protocol: str, lengths: list[int]
) -> list[tuple[int, list[tuple[str, str]]]]:
    """(index, cells by length) of each scheme, the least loss at the longest length first."""

    def place(scheme: Scheme) -> float:
        estimate = scheme.cell(protocol, lengths[-1]).estimate
        return estimate.mean if estimate else math.inf

    ordered = sorted(results.schemes, key=place)
    return [(s.index, [cell_text(s.cell(protocol, n)) for n in lengths]) for s in ordered]


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


class RunRow(NamedTuple):
    """One seed of a scheme: its loss at the primary metric, and its status."""

    seed: int
    loss: str
    train_loss: str
    status: str


class Card(NamedTuple):
    """One scheme: its picture and its runs; `late` says whether its loss still falls."""

    name: str
    spec: str
    caption: str
    late: str
    svg: markupsafe.Markup
    alt: str
    stem: str
    runs: list[RunRow]


def _cards(results: Results) -> list[Card]:
    cards, late = [], loss_curves.still_falling(results)
    for scheme in results.schemes:
        folder = results.workdir / "figures"
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
        words = picture.caption, late.get(scheme.name, "")
        svg = markupsafe.Markup(picture.svg)
        cards.append(Card(scheme.name, scheme.spec, *words, svg, picture.alt, picture.stem, runs))
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
