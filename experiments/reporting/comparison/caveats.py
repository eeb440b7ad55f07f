"""What a comparison asked, how sure its answers are, and what was irregular, in sentences."""

import collections
from collections.abc import Sequence
from typing import NamedTuple

from experiments.reporting import statistics
from experiments.reporting.comparison.learning_rates import rate_words, rates
from experiments.reporting.comparison.loss_curves import still_falling
from experiments.reporting.comparison.sentences import capital, count_compared
from experiments.reporting.results import Results, Run
from experiments.reporting.verdicts import Verdict, verdicts


class Summary(NamedTuple):
    """Sentences: the questions, and how sure the findings are."""

    questions: list[str]
    confidence: list[str]


def summary(results: Results) -> Summary:
    """The summary of a comparison."""
    m, (primary, *secondary) = results.manifest, results.questions
    rows = verdicts(results, primary)
    questions = [
        f"Trained on sequences of {m.train_length} tokens, which positional encoding has a lower"
        f" loss than {m.reference} at length {primary.length} ({primary.protocol} evaluation)?"
        f" {len(results.schemes)} schemes, {m.steps:,} steps of {m.batch} sequences,"
        f" {rate_words(results)}."
    ]
    for q in secondary:
        questions.append(f"Secondary: the same at length {q.length} ({q.protocol} evaluation).")
    sure = [*_seeds_and_tests(results, rows), *_lost_runs(results), *_caveats(results)]
    return Summary(questions, sure)


def _caveats(results: Results) -> list[str]:
    """What could explain a difference besides the encodings."""
    lines = []
    if edges := [row.name for row in rates(results) if row.remark]:
        lines.append(f"Best learning rate at the edge of the grid, or none: {', '.join(edges)}.")
    if late := still_falling(results):
        lines.append(
            f"Undertrained, perhaps, rather than worse: {', '.join(late)}. At the end each falls as"
            " fast as the scheme with the least loss did at that loss; its card has the numbers."
        )
    sizes = {n for s in results.schemes if (n := s.fact("parameters")) is not None}
    if len(sizes) > 1:
        lines.append(f"Parameters are not matched: {min(sizes):,} to {max(sizes):,}.")
    return lines


def _seeds_and_tests(results: Results, rows: Sequence[Verdict]) -> list[str]:
    seeds = len(results.manifest.seeds)
    lines = []
    if results.changes:
        lines.append(
            f"Exploratory, not confirmatory: {results.changes} after a report. Intervals and p"
            " values take seeds and schemes as decided beforehand."
        )
    sentences = [f"{seeds} seed{'s' * (seeds != 1)} each."]
    if seeds < statistics.CLAIM_SEEDS:
        least = statistics.CLAIM_SEEDS
        sentences.append(f"A claim needs at least {least}: nothing is claimed here.")
        return [*lines, " ".join(sentences)]
    family = max((row.family for row in rows), default=0)
    sentences.append(
        "Differences are paired by seed over identical windows; two-sided t tests at 5 % with the"
        f" variance over seeds and over {results.windows} windows, or a task's questions (crossed),"
        f" Holm-corrected over {family} scheme{'s' * (family != 1)}: all that were declared, also"
        " those without a number."
    )
    if 0 < family < count_compared(rows):
        repeated = count_compared(rows) - family
        sentences.append(f"Not counted again, as their losses are another's: {repeated}.")
    if len(results.questions) > 1:
        sentences.append("Each question is corrected separately.")
    sentences += [
        "Intervals are 95 % simultaneous (Holm).",
        "A difference below the smallest effect of interest, declared as"
        f" {results.effect:g} nats per token, is not claimed.",
    ]
    if seeds < statistics.HEADLINE_SEEDS:
        least = statistics.HEADLINE_SEEDS
        sentences.append(f"Enough to state a difference, not for a headline ({least}).")
    sentences.append("What holds for this model, corpus and budget need not hold for others.")
    if looks := len(results.manifest.looks):
        times = f"{looks} time{'s' * (looks != 1)}"
        sentences.append(f"The files kept for a last look were evaluated {times}: one confirms.")
    return [*lines, " ".join(sentences)]


def _lost_runs(results: Results) -> list[str]:
    """The number of runs without numbers, those that try learning rates separately."""
    runs = [run for s in results.schemes for run in s.runs.values()]
    checks = [run for s in results.schemes for run in s.checks.values()]
    lines = []
    for what, group in (("runs", runs), ("checks of a learning rate", checks)):
        lost = collections.Counter(run.status for run in group if run.status != "ok")
        if lost:
            counted = ", ".join(f"{count} {status}" for status, count in lost.items())
            lines.append(f"Of {len(group)} {what}: {counted}.")
    return lines


def irregularities(results: Results) -> list[str]:
    """Irregular files and runs that a reader must know about.

    Among them are commits, devices or versions of JAX that not all runs share: runs may resume
    elsewhere.
    """
    notes = list(results.manifest.notes)
    if warning := results.manifest.corpus.get("warning"):
        notes.append(f"{capital(warning)}.")
    for subject in results.reported:
        if subject != results.subject:
            seeds, schemes = ", ".join(map(str, subject["seeds"])), ", ".join(subject["encodings"])
            notes.append(
                f"There was a report before, of seeds {seeds} and of {schemes}: intervals and p"
                " values take seeds and schemes as decided beforehand."
            )
    for name, values in (results.speed or {}).get("encodings", {}).items():
        if "problem" in values:
            notes.append(f"{name}: not timed, {values['problem']}.")
    runs = [(s.name, run) for s in results.schemes for run in s.runs.values()]
    notes += [f"{name}, seed {run.seed}: {note}." for name, run in runs for note in _notes(run)]
    for field in ("commit", "device", "jax"):
        values_of_runs = [run.evaluation.get(field, "unknown") for _, run in runs if run.evaluation]
        counts = collections.Counter(values_of_runs)
        if len(counts) > 1:
            counted = ", ".join(f"{value} ({n})" for value, n in counts.most_common())
            notes.append(f"Not the same {field} in all runs: {counted}.")
    if results.speed is None:
        notes.append("Speed and memory were not measured: there is no speed.json.")
    return notes


def _notes(run: Run) -> list[str]:
    notes = []
    if run.status != "ok":
        notes.append(run.status + f" ({run.reason})" * bool(run.reason))
    if run.torn:
        notes.append(f"{run.torn} torn line{'s' * (run.torn > 1)} of metrics.jsonl skipped")
    if run.repeated:
        notes.append(f"{run.repeated} steps logged again after a resume; last kept")
    return notes
