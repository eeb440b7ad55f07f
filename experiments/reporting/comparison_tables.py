"""The tables of a comparison as CSV, with every digit."""

import math
from collections.abc import Iterator

import numpy as np

from experiments.reporting import learning_rates, plotting, speed_ratios
from experiments.reporting.results import Question, Results
from experiments.reporting.verdicts import Verdict
from pe_jax.training.config import PROTOCOLS

Decided = list[tuple[Question, list[Verdict]]]


def write_tables(results: Results, decided: Decided) -> None:
    """Writes loss_by_length.csv and the others into the workdir."""
    tables = {
        "loss_by_length": _losses(results),
        "loss_by_position": _positions(results),
        "speed": _speeds(results),
        "speed_by_length": _speeds_by_length(results),
        "rates": _rates(results),
        "verdicts": _verdicts(results, decided),
    }
    for name, (head, *lines) in tables.items():
        plotting.write_csv(results.workdir / f"{name}.csv", head, lines)


def _losses(results: Results) -> Iterator[tuple]:
    yield ("encoding", "protocol", "length", "seed", "loss", "windows", "problem")
    for scheme in results.schemes:
        for protocol in PROTOCOLS:
            for length in results.manifest["lengths"]:
                losses = scheme.cell(protocol, length).values
                for seed, run in scheme.runs.items():
                    windows = run.windows(protocol, length)
                    problem = windows if isinstance(windows, str) else ""
                    count = None if problem else len(windows)
                    yield scheme.name, protocol, length, seed, losses.get(seed), count, problem


def _positions(results: Results) -> Iterator[tuple]:
    yield ("encoding", "seed", "position", "loss")
    for scheme in results.schemes:
        for seed, values in scheme.by_position()[0].items():
            yield from ((scheme.name, seed, i, x) for i, x in enumerate(values.tolist(), 1))


def _speeds(results: Results) -> Iterator[tuple]:
    yield ("encoding", "measure", "baseline", "median_ratio", "least", "greatest", "problem")
    base = results.manifest["baseline"]
    for measure, ratios in speed_ratios.speed_ratios(results).items():
        for name, ratio in ratios.items():
            yield name, measure, base, ratio.median, ratio.low, ratio.high, ""
    for name, values in (results.speed or {}).get("encodings", {}).items():
        if "problem" in values:
            yield name, None, base, None, None, None, values["problem"]


def _speeds_by_length(results: Results) -> Iterator[tuple]:
    head = ("encoding", "length", "batch", "measure", "median", "tokens_per_second")
    yield (*head, "baseline", "median_ratio", "least", "greatest", "problem")
    base, ratios = results.manifest["baseline"], speed_ratios.speed_by_length(results)
    for text, timings in (results.speed or {}).get("lengths", {}).items():
        length, batch = int(text), timings["batch"]
        for name, values in timings["encodings"].items():
            if "problem" in values:
                yield (name, length, batch, *[None] * 4, *[None] * 3, values["problem"])
                continue
            for measure, value in values.items():
                ratio = ratios.get(measure, {}).get(length, {}).get(name)
                median = float(np.median(value))
                rate = speed_ratios.rate_of(measure, median, length, batch)
                bounds = (ratio.median, ratio.low, ratio.high) if ratio else (None,) * 3
                yield (name, length, batch, measure, median, rate, base, *bounds, "")


def _rates(results: Results) -> Iterator[tuple]:
    yield ("encoding", "learning_rate", "encoding_rate", "loss", "status", "used", "remark")
    for row in learning_rates.rates(results):
        for pair, loss in row.losses.items():
            known = loss if math.isfinite(loss) else None
            used = pair == row.used
            yield row.name, *pair, known, row.statuses[pair], used, row.remark if used else ""


def _verdicts(results: Results, decided: Decided) -> Iterator[tuple]:
    head = ("encoding", "question", "reference", "protocol", "length", "seeds", "difference")
    yield (*head, "low", "high", "p", "p_holm", "median", "each_seed", "verdict")
    for question, verdicts in decided:
        at = results.manifest["reference"], question.protocol, question.length
        for verdict in verdicts:
            numbers, each = (None,) * 7, ""
            if tested := verdict.tested:
                d = tested.estimate
                values = d.n, d.mean, tested.low, tested.high, d.p, tested.holm, d.median
                numbers = tuple(None if math.isnan(x) else x for x in values)
                each = ";".join(f"{x:.6f}" for x in d.values)
            yield (verdict.name, question.role, *at, *numbers, each, verdict.words)
