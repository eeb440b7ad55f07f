"""The summary of a comparison in sentences made from the verdicts; and irregularities."""

import collections
from collections.abc import Sequence
from typing import NamedTuple

from experiments.reporting import statistics
from experiments.reporting.learning_rates import rate_words, rates
from experiments.reporting.loss_curves import still_falling
from experiments.reporting.number_formats import number
from experiments.reporting.results import Question, Results, Run
from experiments.reporting.verdicts import REFERENCE, UNDECIDED, Verdict, verdicts


class Summary(NamedTuple):
    """Sentences: what was asked, what was found, how sure."""

    questions: list[str]
    findings: list[str]
    confidence: list[str]


def summary(results: Results) -> Summary:
    """The summary of a comparison."""
    primary, *secondary = results.questions
    rows = verdicts(results, primary)
    findings = answers(results, rows)
    for question in secondary:
        words = " ".join(answers(results, verdicts(results, question)))
        findings.append(f"{question_title(results, question)}. {words}")
    return Summary(
        questions=_questions(results),
        findings=findings,
        confidence=[*_seeds_and_tests(results, rows), *_lost_runs(results), *_caveats(results)],
    )


def _questions(results: Results) -> list[str]:
    """The primary question, with the runs that answer it, and the secondary ones."""
    m, (primary, *secondary) = results.manifest, results.questions
    at = f"length {primary.length} ({primary.protocol} evaluation)"
    return [
        f"Trained on sequences of {m['train_length']} tokens, which positional encoding has a lower"
        f" loss than {m['reference']} at {at}? {len(results.schemes)} schemes,"
        f" {m['steps']:,} steps of {m['batch']} sequences, {rate_words(results)}.",
        *(
            f"Secondary: the same at length {q.length} ({q.protocol} evaluation)."
            for q in secondary
        ),
    ]


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


def answers(results: Results, rows: Sequence[Verdict]) -> list[str]:
    """What was found, in sentences made from the verdicts on one question."""
    name, effect = results.manifest["reference"], f"{results.effect:g}"
    by_kind = {k: [r for r in rows if r.kind == k] for k in dict.fromkeys(r.kind for r in rows)}
    sentences = []
    for kind in (statistics.LOWER, statistics.HIGHER):
        if by_kind.get(kind):
            what = f"exploratory: {kind}" if by_kind[kind][0].exploratory else kind
            listed = _names_with_differences(by_kind[kind])
            sentences.append(f"{_capital(what)} loss than {name}, in nats per token: {listed}.")
    if not sentences:
        sentences.append(f"No scheme was shown to have a lower or a higher loss than {name}.")
    if same := by_kind.get(statistics.SAME):
        what = "Exploratory: no" if same[0].exploratory else "No"
        listed = ", ".join(r.name for r in same)
        sentences.append(
            f"{what} practical difference (within ±{effect} nats per token): {listed}."
        )
    if inconclusive := by_kind.get(statistics.INCONCLUSIVE):
        sentences.append(f"Inconclusive: {', '.join(r.name for r in inconclusive)}.")
    if undecided := by_kind.get(UNDECIDED):
        sentences.append(f"No number: {'; '.join(f'{r.name} ({r.words})' for r in undecided)}.")
    return sentences


def question_title(results: Results, question: Question) -> str:
    """The title of a question: its role if there are several, length and protocol."""
    at = f"length {question.length}, {question.protocol} evaluation"
    if question.length == results.manifest["train_length"]:
        at = f"the trained length, {question.length}, {question.protocol} evaluation"
    return f"{_capital(question.role)}: {at}" if len(results.questions) > 1 else _capital(at)


def _seeds_and_tests(results: Results, rows: Sequence[Verdict]) -> list[str]:
    seeds = len(results.manifest["seeds"])
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
    counted = sum(row.kind != REFERENCE for row in rows)
    sentences.append(
        "Differences are paired by seed over identical windows; two-sided t tests at 5 %,"
        f" Holm-corrected over {family} scheme{'s' * (family != 1)}: all that were declared, also"
        " those without a number."
    )
    if family < counted and family:
        repeated = counted - family
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
    return [*lines, " ".join(sentences)]


def _lost_runs(results: Results) -> list[str]:
    """The number of runs without numbers, those that try learning rates separately."""
    runs = [run for s in results.schemes for run in s.runs.values()]
    checks = [run for s in results.schemes for run in s.checks.values()]
    lines = []
    for what, group in (("runs", runs), ("checks of a learning rate", checks)):
        lost = collections.Counter(run.status for run in group if run.status != "ok")
        if lost:
            listed = ", ".join(f"{count} {status}" for status, count in lost.items())
            lines.append(f"Of {len(group)} {what}: {listed}.")
    return lines


def _names_with_differences(rows: Sequence[Verdict]) -> str:
    known = [(r.difference.mean, r.name) for r in rows if r.difference]
    known.sort(key=lambda pair: -abs(pair[0]))
    return ", ".join(f"{name} ({number(mean, 3, True)})" for mean, name in known)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def irregularities(results: Results) -> list[str]:
    """Irregular files and runs that a reader must know about."""
    notes = list(results.manifest.get("notes", ()))
    if warning := results.manifest["corpus"].get("warning"):
        notes.append(f"{_capital(warning)}.")
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
    for scheme in results.schemes:
        for run in scheme.runs.values():
            notes += [f"{scheme.name}, seed {run.seed}: {note}." for note in _run_notes(run)]
    notes += _mixed_environments(results)
    if results.speed is None:
        notes.append("Speed and memory were not measured: there is no speed.json.")
    return notes


def _run_notes(run: Run) -> list[str]:
    notes = []
    if run.status != "ok":
        notes.append(run.status + f" ({run.reason})" * bool(run.reason))
    if run.torn:
        notes.append(f"{run.torn} torn line{'s' * (run.torn > 1)} of metrics.jsonl skipped")
    if run.repeated:
        notes.append(f"{run.repeated} steps logged again after a resume; last kept")
    return notes


def _mixed_environments(results: Results) -> list[str]:
    """Commits, devices or versions of JAX that not all runs share: runs may resume elsewhere."""
    runs = [run.evaluation for s in results.schemes for run in s.runs.values() if run.evaluation]
    notes = []
    for field in ("commit", "device", "jax"):
        counts = collections.Counter(run.get(field, "unknown") for run in runs)
        if len(counts) > 1:
            listed = ", ".join(f"{value} ({n})" for value, n in counts.most_common())
            notes.append(f"Not the same {field} in all runs: {listed}.")
    return notes
