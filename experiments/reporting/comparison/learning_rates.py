"""The learning rates of a comparison: which were tried, which were used."""

import dataclasses
import math

from experiments.reporting.results import Results, Scheme, rate_loss
from experiments.running.schedule.rate_search import Pair, neighbours, pair_words


@dataclasses.dataclass(frozen=True)
class Rates:
    """The learning rates of one scheme: losses of the short runs, the pair used, a remark on it.

    A pair is a learning rate, and the multiple of it for the encoding's parameters.
    """

    name: str
    losses: dict[Pair, float]
    statuses: dict[Pair, str]
    used: Pair | None
    remark: str


def rates(results: Results) -> list[Rates]:
    """The rates that were tried and used, scheme by scheme."""
    length, rows = results.manifest.train_length, []
    for scheme in results.schemes:
        losses = {pair: rate_loss(run, length) for pair, run in scheme.checks.items()}
        statuses = {pair: run.status for pair, run in scheme.checks.items()}
        used = _used(results, scheme)
        rows.append(Rates(scheme.name, losses, statuses, used, _remark(losses, used)))
    return rows


def _used(results: Results, scheme: Scheme) -> Pair | None:
    """The (rate, multiple) of its runs; None if there was a grid but there are no runs."""
    stated = not scheme.checks
    rate = scheme.fact("learning_rate")
    if rate is None and stated:
        rate = results.manifest.learning_rate
    multiple = scheme.fact("encoding_rate")
    if multiple is None:
        multiple = results.manifest.encoding_rate if stated else 1.0
    return None if rate is None else (float(rate), float(multiple))


def _remark(losses: dict[Pair, float], used: Pair | None) -> str:
    """A warning about the pair that was used, or ""."""
    if not losses or used is None:
        return ""
    if not any(map(math.isfinite, losses.values())):
        return "none of them gave a loss: the least was used"
    if used not in losses:
        return "not one of the grid"
    missing = [pair for pair in neighbours(losses, used) if pair not in losses]
    if not missing:
        return ""
    return f"an edge of what was tried: {' or '.join(map(pair_words, missing))} may be better"


def rate_used(results: Results, scheme: Scheme) -> str:
    """The learning rate of its runs, and its multiple for the encoding's parameters."""
    used = _used(results, scheme)
    if used and scheme.fact("encoding_parameters") == 0:  # the multiple has no effect
        used = used[0], 1.0
    return pair_words(used)


def rate_words(results: Results) -> str:
    """How the learning rates were chosen."""
    m = results.manifest
    tried = {pair for scheme in results.schemes for pair in scheme.checks}
    if not tried:
        multiple = m.encoding_rate
        faster = f", {multiple:g} times that for parameters of encodings" if multiple != 1 else ""
        return f"one learning rate for all ({m.learning_rate:g}{faster})"
    grid, multiples = (
        ", ".join(f"{value:g}" for value in sorted({pair[k] for pair in tried})) for k in (0, 1)
    )
    checked = f"in {m.rate_steps:,} steps on {checked_on(results)} at length {m.train_length}"
    if "," not in grid:
        of = f"the best of {multiples} times that {checked}"
        return f"one learning rate for all ({grid}), for parameters of encodings {of}"
    several = f", × {multiples} for parameters of encodings," if multiples != "1" else ""
    if m.rate_rounds:
        several += " the outer ones only where the best was at an edge,"
    return f"the learning rate of each the best of {grid}{several} {checked}"


def checked_on(results: Results) -> str:
    """The data on which the learning rates were chosen: a task has questions, not splits."""
    task = results.manifest.corpus["name"].startswith("synthetic:")
    return "other questions" if task else "validation text"
