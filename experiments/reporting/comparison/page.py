"""The contents of a comparison's page: the figures, rows and sentences of its template."""

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import markupsafe
import numpy as np

from experiments.reporting import plotting, verdicts
from experiments.reporting.comparison import (
    caveats,
    figures,
    learning_rates,
    loss_curves,
    results_of_papers,
    scheme_pictures,
    sentences,
    speed_ratios,
)
from experiments.reporting.comparison.learning_rates import Rates
from experiments.reporting.html_page import Figure, Section
from experiments.reporting.results import Question, Results, Scheme
from experiments.reporting.statistics import number
from experiments.reporting.verdicts import Verdict
from experiments.running.configs.compare import CompareConfig
from experiments.running.schedule.rate_search import pair_words
from pe_jax.training.checkpoint import flat
from pe_jax.training.config import PROTOCOLS

REPORT = "python -m experiments.report"
MULTIPLES = (
    " × is the multiple of the rate at which an encoding's own parameters learn. The loss at a rate"
    " is the least over multiples, that at a multiple the least over rates."
)


def contents(results: Results, decided: Sequence[tuple[Question, list[Verdict]]]) -> dict[str, Any]:
    """Draws the figures; returns the variables of the template, rows in the order of schemes."""
    m, schemes, protocol = results.manifest, results.schemes, results.primary[0]
    secondary = [p for p in PROTOCOLS if p != protocol]
    costs = [_cost(results, s) for s in schemes]
    ratios, trained = speed_ratios.ratios(results), m.train_length
    longer = {measure: by for measure, by in ratios.items() if {*by} != {trained}}
    rates = learning_rates.rates(results)

    def figure(draw: Callable[..., plotting.Drawing], *inputs: Any) -> Figure:
        """Saves a drawing, and draws it again for a phone. SVG is ours and escapes its text."""
        drawing = draw(results, *inputs)
        plotting.write(drawing, results.workdir / "figures")
        slim = plotting.vector(draw(results, *inputs, narrow=True), "-narrow")
        wide, slim = (
            markupsafe.Markup(plotting.themed(x)) for x in (plotting.vector(drawing), slim)
        )
        return Figure(wide, slim, drawing.alt, drawing.stem, drawing.table)

    def question(question: Question, decided: list[Verdict]) -> dict[str, Any]:
        return {
            "title": sentences.question_title(results, question),
            "verdicts": verdicts.by_difference(decided),
            "figure": figure(figures.differences, question, decided),
        }

    def losses(protocol: str) -> list[tuple[int, list[tuple[str, str]]]]:
        """(index, cells by length) of schemes, the least loss at the longest length first."""
        lengths = m.lengths
        means = [s.mean(protocol, lengths[-1]) for s in schemes]
        order = sorted(schemes, key=lambda s: math.inf if (x := means[s.index]) is None else x)
        return [(s.index, [_loss(s, protocol, n) for n in lengths]) for s in order]

    training = (figures.loss_by_step, figures.loss_by_seconds, figures.training)
    return {
        "m": m,
        "first": sentences.first_screen(results),
        "main": figure(figures.differences_by_length, protocol),
        "summary": caveats.summary(results),
        "effect": f"{results.effect:g}",
        "questions": [question(*pair) for pair in decided],
        "by_length": [
            *(figure(figures.differences_by_length, p) for p in secondary),
            *(figure(figures.loss_by_length, p) for p in PROTOCOLS),
        ],
        "losses": {p: losses(p) for p in PROTOCOLS},
        "by_position": figure(figures.differences_by_position),
        "context": max((len(x) for s in schemes for x in s.by_position()[0].values()), default=0),
        "no_position": [f"{n} ({why})" for n, why in verdicts.by_position(results)[1].items()],
        "speed": [figure(figures.speed, x, y[trained]) for x, y in ratios.items() if trained in y],
        "longer": [figure(figures.speed_by_length, *pair) for pair in longer.items()],
        "speed_facts": results.speed,
        "costs": costs,
        "logged": any(row["rate"].endswith("*") for row in costs),
        "sections": [
            *([_rates(results, rates)] if any(row.losses for row in rates) else []),
            *_speeds(results, ratios),
        ],
        "published": [] if m.corpus["name"].startswith("synthetic:") else results_of_papers.TABLES,
        "ours": _what_differs(results),
        "training": [figure(draw) for draw in training if draw(results) is not None],
        "cards": _cards(results),
        "keys": [plotting.key(scheme) for scheme in schemes],
        "irregularities": caveats.irregularities(results),
        "commands": _commands(results),
        "changed": _changed(m.config),
        "config": flat(m.config),
        "rate_words": learning_rates.rate_words(results),
        "theme": (plotting.theme(dark=False), plotting.theme(dark=True)),
    }


def _loss(scheme: Scheme, protocol: str, length: int) -> tuple[str, str]:
    """(main, small) words of a loss cell."""
    _, problem, estimate = scheme.cell(protocol, length)
    if estimate is None:
        return problem or "not evaluated", ""
    half = (estimate.high - estimate.low) / 2
    return number(estimate.mean), "one seed" if math.isnan(half) else f"± {number(half)}"


def _cost(results: Results, scheme: Scheme) -> dict[str, str]:
    """A row of the table of sizes and speed."""
    measured = (results.speed or {}).get("encodings", {}).get(scheme.name, {})
    rate, source = speed_ratios.tokens_per_second(results, scheme)
    temporary, flops = measured.get("train_temp_bytes"), scheme.fact("flops_per_token")
    runs = scheme.runs.values()
    train = [r.evaluation.get("train_loss") if r.status == "ok" else None for r in runs]
    losses = [loss for loss in train if loss is not None]
    return {
        "parameters": number(scheme.fact("parameters"), 0),
        "encoding_parameters": number(scheme.fact("encoding_parameters"), 0),
        "flops": number(flops / 1e6 if flops else None, 2),
        "rate": number(rate, 0) + (" *" if source == "logged" else ""),
        "problem": measured.get("problem", ""),
        "memory": number(temporary / 2**20 if temporary else None, 1),
        "train_loss": number(float(np.mean(losses)) if len(losses) == len(train) > 0 else None),
        "learning_rate": learning_rates.rate_used(results, scheme),
        "spec": scheme.spec,
    }


def _cards(results: Results) -> list[dict[str, Any]]:
    """Each scheme: its picture and its runs; `late` says whether its loss still falls."""
    cards, late = [], loss_curves.still_falling(results)
    for scheme in results.schemes:
        losses = scheme.cell(*results.primary).values
        runs = [
            {
                "seed": seed,
                "loss": number(losses.get(seed)),
                "train_loss": number(run.evaluation.get("train_loss")),
                "status": run.status + f": {run.reason}" * bool(run.reason),
            }
            for seed, run in scheme.runs.items()
        ]
        picture = scheme_pictures.draw_or_explain(results, scheme, results.workdir / "figures")
        about = {"name": scheme.name, "spec": scheme.spec, "late": late.get(scheme.name, "")}
        cards.append({**picture, **about, "runs": runs})
    return cards


def _rates(results: Results, rows: list[Rates]) -> Section:
    """The losses of the learning rates that were tried."""
    pairs = {pair for row in rows for pair in row.losses}
    rates, multiples = (sorted({pair[k] for pair in pairs}) for k in (0, 1))
    columns = [(0, rate) for rate in rates] * (len(rates) > 1 or len(multiples) == 1)
    columns += [(1, multiple) for multiple in multiples] * (len(multiples) > 1)
    steps, length = results.manifest.rate_steps, results.manifest.train_length

    def least(row: Rates, which: int, value: float) -> str:
        """The least loss at a learning rate (`which` 0) or at a multiple (1), or its problem."""
        if which and len({multiple for _, multiple in row.losses}) < 2:
            return "—"  # no parameters that could learn at another rate
        matching = [pair for pair in row.losses if pair[which] == value]
        best = min(matching, key=row.losses.__getitem__, default=None)
        if best is None:
            return "—"
        return number(row.losses[best]) if row.losses[best] < math.inf else row.statuses[best]

    return Section(
        title="Learning rates",
        note=f"Loss after {steps:,} steps on {learning_rates.checked_on(results)} at length"
        f" {length}, one seed, in nats per token; each scheme was then trained with its best, from"
        " the start." + MULTIPLES * (len(multiples) > 1),
        head=("encoding", *(f"{'× ' * k}{value:g}" for k, value in columns), "used", "remark"),
        rows=[
            (
                row.name,
                *(least(row, *column) for column in columns),
                pair_words(row.used),
                row.remark,
            )
            for row in rows
        ],
        csv="rates.csv",
        words=("remark",),
    )


def _speeds(results: Results, ratios: dict[str, dict[int, dict]]) -> list[Section]:
    """Time per token or memory, and ratios, by length: one section per measure."""
    base, timings, sections = results.manifest.baseline, speed_ratios.timings(results), []
    device = (results.speed or {}).get("device")
    batches = ", ".join(f"{n} × {timed['batch']}" for n, timed in timings.items())
    known = {m for timed in timings.values() for v in timed["encodings"].values() for m in v}
    for measure, words in speed_ratios.MEASURES.items() if len(timings) > 1 else ():
        if measure not in known:
            continue

        def cell(scheme: Scheme, length: int, measure: str = measure) -> str:
            timed = timings[length]
            values = timed["encodings"].get(scheme.name, {"problem": "not measured"})
            ratio = ratios.get(measure, {}).get(length, {}).get(scheme.name)
            return speed_ratios.speed_cell(measure, values, ratio, length, timed["batch"])

        unit = "MiB" if measure.endswith("bytes") else "microseconds per token"
        sections.append(
            Section(
                title=f"{words.partition(',')[0].capitalize()}, by length:"
                f" {unit} (ratio to {base}); less is better",
                note=f"Ours, on {device}: medians, and the ratio of time or memory to {base},"
                f" interleaved in one process. Length × batch: {batches}.",
                head=("encoding", *map(str, timings)),
                rows=[(s.name, *(cell(s, length) for length in timings)) for s in results.schemes],
                csv="speed.csv",
            )
        )
    return sections


def _what_differs(results: Results) -> str:
    """How this comparison differs from published ones, whose numbers are listed with it."""
    m = results.manifest
    sizes = [n for s in results.schemes if (n := s.fact("parameters")) is not None]
    size = f"{max(sizes) / 1e6:,.1f}M parameters at most, " if sizes else ""
    tokens = m.steps * m.batch * m.train_length / 1e6
    kind = m.config.get("tokenizer", "bytes")
    return (
        f"Here: {m.corpus['name']}, tokens are {kind}, {size}{tokens:,.1f}M tokens of training"
        " per run. Levels do not compare, only which schemes hold as the text grows longer."
    )


def _commands(results: Results) -> list[str]:
    """The commands that make this report again, in a fresh clone."""
    m, lines, checked_out = results.manifest, [], ""
    for entry in (*m.before, {"commit": m.commit, "command": m.command}):
        commit = re.fullmatch(r"([0-9a-f]{7,40})(-dirty(?:-[0-9a-f]{8})?)?", str(entry["commit"]))
        if commit and entry["commit"] != checked_out:
            changed = "  # and changes not committed" * bool(commit[2])
            lines.append(f"git checkout {commit[1]}{changed}")
        checked_out = entry["commit"]
        lines.append(entry["command"])
    if m.command.startswith(REPORT):  # of a join
        return lines
    workdir = shlex.quote(str(m.config.get("workdir", results.workdir)))
    return [*lines, f"{REPORT} --workdir={workdir}"]


def _changed(config: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(field, value, default) of fields that differ from the defaults, except the folder."""
    defaults = dict(flat(json.loads(json.dumps(dataclasses.asdict(CompareConfig())))))
    rows = [(name, value, defaults.get(name, "—")) for name, value in flat(config)]
    return [row for row in rows if row[1] != row[2] and row[0] != "workdir"]
