"""What the results say: verdicts, tables, and the summary, whose words come from the verdicts."""

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from experiments.reporting import statistics
from experiments.reporting.learning_rates import rate_words, rates
from experiments.reporting.loss_curves import still_falling
from experiments.reporting.number_formats import number
from experiments.reporting.results import Cell, Question, Results, Scheme
from experiments.reporting.statistics import Estimate, Ratio, Tested

REFERENCE, UNDECIDED = "reference", "undecided"
MEASURES = {
    "train_ms": "training step, time",
    "eval_ms": "evaluation, time",
    "train_temp_bytes": "training step, temporary memory",
}
BY_LENGTH = {
    "train_ms": "training step, time",
    "eval_ms": "evaluation, time",
    "prefill_ms": "reading a prompt, time",
    "decode_ms": "decoding a token, time",
    "train_temp_bytes": "training step, temporary memory",
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One scheme against the reference.

    `tested` is None where the difference could not be taken; `family` is how many differences
    Holm's procedure counted; `exploratory` says that seeds or schemes changed after a report.
    """

    name: str
    kind: str
    words: str
    tested: Tested | None = None
    family: int = 0
    exploratory: bool = False

    @property
    def difference(self) -> Estimate | None:
        """The paired difference, by itself."""
        return self.tested and self.tested.estimate


def _difference(scheme: Scheme, reference: Scheme, protocol: str, length: int) -> Estimate | str:
    """The paired difference of the losses, or why there is none."""
    ours, problem = scheme.windows(protocol, length)
    theirs, lacking = reference.windows(protocol, length)
    if problem:
        return problem
    if lacking:
        return f"not decided: the reference {reference.name} has {lacking}"
    try:
        return statistics.estimate(statistics.paired(ours, theirs))
    except ValueError as error:
        return f"not comparable: {error}"


def verdicts(results: Results, question: Question | None = None) -> list[Verdict]:
    """Every scheme against the reference at a question, the primary one if none is given."""
    asked = question or results.questions[0]
    at = asked.protocol, asked.length
    name, again = results.manifest["reference"], bool(results.changes)
    return decide(results.schemes, name, *at, effect=results.effect, exploratory=again)


def decide(
    schemes: Sequence[Scheme],
    name: str,
    protocol: str,
    length: int,
    effect: float = 0.0,
    exploratory: bool = False,
) -> list[Verdict]:
    """Every scheme against the reference of that name.

    Holm's family is all schemes but the reference, whatever became of their runs; those whose
    losses are bitwise the reference's, or those of a scheme before, do not enlarge it.
    """
    reference = next((s for s in schemes if s.name == name), None)
    if reference is None:
        why = f"not decided: the reference {name} was not run"
        return [Verdict(s.name, UNDECIDED, why) for s in schemes]
    others = [s for s in schemes if s is not reference]
    found = {s.name: _difference(s, reference, protocol, length) for s in others}
    differences = {n: d if isinstance(d, Estimate) else None for n, d in found.items()}
    losses = {s.name: _bits(s, protocol, length) for s in others if differences[s.name]}
    same = statistics.copies(losses, _bits(reference, protocol, length))
    tested, family = statistics.family(differences, same)
    rows = []
    for scheme in schemes:
        if scheme is reference:
            problem = scheme.cell(protocol, length).problem
            words = f"the reference ({problem})" if problem else "the reference"
            rows.append(Verdict(scheme.name, REFERENCE, words))
        elif scheme.name in tested:
            one = tested[scheme.name]
            kind, words = _verdict(one, name, effect, exploratory)
            rows.append(Verdict(scheme.name, kind, words, one, family, exploratory))
        else:
            words = str(found[scheme.name])
            rows.append(Verdict(scheme.name, UNDECIDED, words, None, family))
    return rows


def _bits(scheme: Scheme, protocol: str, length: int) -> tuple[tuple[int, bytes], ...]:
    """All losses of a scheme, seed by seed."""
    windows, _ = scheme.windows(protocol, length)
    return tuple((seed, windows[seed].tobytes()) for seed in sorted(windows))


def _verdict(tested: Tested, reference: str, effect: float, exploratory: bool) -> tuple[str, str]:
    """The kind of a verdict, and in words."""
    kind, reason = statistics.judge(tested, effect)
    words = {
        statistics.LOWER: f"lower loss than {reference}",
        statistics.HIGHER: f"higher loss than {reference}",
        statistics.SAME: "no practical difference",
        statistics.INCONCLUSIVE: "inconclusive",
    }[kind]
    remarks = ["exploratory"] * exploratory + [reason] * bool(reason)
    return kind, words + f" ({'; '.join(remarks)})" * bool(remarks)


def what_differs(results: Results) -> str:
    """What this comparison is, where a published one stands beside it."""
    m = results.manifest
    sizes = sorted({n for s in results.schemes if (n := s.fact("parameters")) is not None})
    size = f"{sizes[-1] / 1e6:,.1f}M parameters at most, " if sizes else ""
    tokens = m["steps"] * m["batch"] * m["train_length"] / 1e6
    kind = m["config"].get("tokenizer", "bytes")
    return (
        f"Here: {m['corpus']['name']}, tokens are {kind}, {size}{tokens:,.1f}M tokens of training"
        " a run. Levels do not compare, only which schemes hold as the text grows longer."
    )


def interval(tested: Tested | None) -> str:
    """[low, high], simultaneous, or an em dash; a round bracket where Holm excludes a zero."""
    if tested is None or math.isnan(tested.low):
        return "—"
    left, right = (
        "(" if _ends(tested, tested.low) else "[",
        ")" if _ends(tested, tested.high) else "]",
    )
    return f"{left}{number(tested.low, 4, True)}, {number(tested.high, 4, True)}{right}"


def _ends(tested: Tested, bound: float) -> bool:
    """Whether an end of the interval is the zero that Holm's procedure excludes."""
    return tested.off_zero and bound == 0


def cell_text(cell: Cell) -> tuple[str, str]:
    """(main, small) words of a loss cell."""
    if cell.estimate is None:
        return cell.problem or "not evaluated", ""
    half = (cell.estimate.high - cell.estimate.low) / 2
    return number(cell.estimate.mean), "one seed" if math.isnan(half) else f"± {number(half)}"


def speed_by_length(results: Results) -> dict[str, dict[int, dict[str, Ratio]]]:
    """Measure → length → scheme → ratio to the baseline."""
    found: dict[str, dict[int, dict[str, Ratio]]] = {}
    for length, there in (results.speed or {}).get("lengths", {}).items():
        for measure, ratios in _ratios(results, there["encodings"], BY_LENGTH).items():
            found.setdefault(measure, {})[int(length)] = ratios
    return found


def speed_ratios(results: Results) -> dict[str, dict[str, Ratio]]:
    """Measure → scheme → ratio to the baseline, for what was measured on both."""
    return _ratios(results, (results.speed or {}).get("encodings", {}), MEASURES)


def _ratios(results: Results, measured: dict, measures: dict) -> dict[str, dict[str, Ratio]]:
    baseline = measured.get(results.manifest["baseline"], {})
    ratios: dict[str, dict[str, Ratio]] = {}
    for measure in measures:
        for scheme in results.schemes:
            ours, theirs = (m.get(measure) for m in (measured.get(scheme.name, {}), baseline))
            if ours and theirs:
                listed = [x if isinstance(x, list) else [x] for x in (ours, theirs)]
                try:
                    found = statistics.ratio(*listed)
                except ValueError:  # another number of repeats: not paired, so no ratio
                    continue
                ratios.setdefault(measure, {})[scheme.name] = found
    return ratios


def rate_of(measure: str, median: float, length: int, batch: int) -> float | None:
    """Tokens a second of a program that takes so many milliseconds; None of memory."""
    if not measure.endswith("_ms"):
        return None
    return (batch if measure == "decode_ms" else batch * length) / (median / 1e3)


def speed_cell(measure: str, values: dict, ratio: Ratio | None, length: int, there: dict) -> str:
    """Microseconds per token, or MiB, and the ratio to the baseline; or why there is none."""
    if measure not in values:
        return values.get("problem", "not measured")
    median = float(np.median(values[measure]))
    rate = rate_of(measure, median, length, there["batch"])
    shown = number(median / 2**20, 1) if rate is None else number(1e6 / rate, 2)
    return shown + (f" ({ratio.median:.2f}×)" if ratio else "")


def tokens_per_second(results: Results, scheme: Scheme) -> tuple[float | None, str]:
    """(tokens per second in training, where it comes from): the timings, else the logs."""
    speed = results.speed or {}
    times = speed.get("encodings", {}).get(scheme.name, {}).get("train_ms")
    if times:
        return speed["length"] * speed["batch"] / (float(np.median(times)) / 1e3), "timed"
    rows = [row for run in scheme.runs.values() for row in run.metrics]
    logged = [r["tokens_per_second"] for r in rows if r.get("tokens_per_second")]
    return (float(np.median(logged)), "logged") if logged else (None, "")


def train_loss(scheme: Scheme) -> Cell:
    """The last training loss, over seeds."""
    runs = scheme.runs.values()
    bad = {r.seed: r.status for r in runs if r.status != "ok"}
    values = {r.seed: r.evaluation.get("train_loss") for r in runs if r.seed not in bad}
    good = {seed: v for seed, v in values.items() if v is not None}
    if bad or len(good) < len(values) or not good:
        return Cell(good, "—", None)
    return Cell(good, "", statistics.estimate([*good.values()]))


def _listed(rows: Sequence[Verdict]) -> str:
    """Names with their differences, the largest first."""
    known = [(r.difference.mean, r.name) for r in rows if r.difference]
    known.sort(key=lambda pair: -abs(pair[0]))
    return ", ".join(f"{name} ({number(mean, 3, True)})" for mean, name in known)


def _sure(results: Results, rows: Sequence[Verdict]) -> list[str]:
    """Sentences on seeds, tests and intervals."""
    seeds = len(results.manifest["seeds"])
    text, lines = f"{seeds} seed{'s' * (seeds != 1)} each. ", []
    if results.changes:
        lines.append(
            f"Exploratory, not confirmatory: {results.changes} after a report. Intervals and p"
            " values take seeds and schemes as decided beforehand."
        )
    if seeds < statistics.CLAIM_SEEDS:
        text += f"A claim needs at least {statistics.CLAIM_SEEDS}: nothing is claimed here."
        return [*lines, text]
    family = max((row.family for row in rows), default=0)
    counted = sum(row.kind != REFERENCE for row in rows)
    text += (
        "Differences are paired by seed over identical windows; two-sided t tests at 5 %,"
        f" Holm-corrected over {family} scheme{'s' * (family != 1)}: all that were declared, also"
        " those without a number."
    )
    if family < counted and family:
        text += f" Not counted again, as their losses are another's: {counted - family}."
    apart = " Each question is corrected apart." if len(results.questions) > 1 else ""
    text += f"{apart} Intervals are 95 % simultaneous (Holm). "
    text += (
        "A difference below the smallest effect of interest, declared as"
        f" {results.effect:g} nats per token, is not claimed. "
    )
    if seeds < statistics.HEADLINE_SEEDS:
        text += f"Enough to state a difference, not for a headline ({statistics.HEADLINE_SEEDS}). "
    text += "What holds for this model, corpus and budget need not hold for others."
    return [*lines, text]


def _lost(results: Results) -> list[str]:
    """How many runs gave no numbers, the checks of learning rates apart."""
    runs = [run for s in results.schemes for run in s.runs.values()]
    checks = [run for s in results.schemes for run in s.checks.values()]
    lines = []
    for what, found in (("runs", runs), ("checks of a learning rate", checks)):
        lost = collections.Counter(run.status for run in found if run.status != "ok")
        if lost:
            listed = ", ".join(f"{count} {status}" for status, count in lost.items())
            lines.append(f"Of {len(found)} {what}: {listed}.")
    return lines


def answers(results: Results, rows: Sequence[Verdict]) -> list[str]:
    """What was found, in sentences made from the verdicts on one question."""
    name, effect = results.manifest["reference"], f"{results.effect:g}"
    by_kind = {k: [r for r in rows if r.kind == k] for k in dict.fromkeys(r.kind for r in rows)}
    found = []
    for kind in (statistics.LOWER, statistics.HIGHER):
        if by_kind.get(kind):
            what = f"exploratory: {kind}" if by_kind[kind][0].exploratory else kind
            listed = _listed(by_kind[kind])
            found.append(f"{_capital(what)} loss than {name}, in nats per token: {listed}.")
    if not found:
        found.append(f"No scheme was shown to have a lower or a higher loss than {name}.")
    if same := by_kind.get(statistics.SAME):
        what = "Exploratory: no" if same[0].exploratory else "No"
        listed = ", ".join(r.name for r in same)
        found.append(f"{what} practical difference (within ±{effect} nats per token): {listed}.")
    if open_still := by_kind.get(statistics.INCONCLUSIVE):
        found.append(f"Inconclusive: {', '.join(r.name for r in open_still)}.")
    if rest := by_kind.get(UNDECIDED):
        found.append(f"No number: {'; '.join(f'{r.name} ({r.words})' for r in rest)}.")
    return found


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def asked(results: Results, question: Question) -> str:
    """What a question is called: its role where there are several, length and protocol."""
    at = f"length {question.length}, {question.protocol} evaluation"
    if question.length == results.manifest["train_length"]:
        at = f"the trained length, {question.length}, {question.protocol} evaluation"
    return f"{_capital(question.role)}: {at}" if len(results.questions) > 1 else _capital(at)


def summary(results: Results) -> dict[str, list[str]]:
    """What was asked, what was found, how sure: sentences made from the verdicts."""
    m, (first, *others) = results.manifest, results.questions
    asked_first = (
        f"Trained on sequences of {m['train_length']} tokens, which positional encoding has a lower"
        f" loss than {m['reference']} at length {first.length} ({first.protocol} evaluation)? "
        f"{len(results.schemes)} schemes, {m['steps']:,} steps of {m['batch']} sequences, "
        f"{rate_words(results)}."
    )
    also = [f"Secondary: the same at length {q.length} ({q.protocol} evaluation)." for q in others]
    rows = verdicts(results, first)
    found = answers(results, rows)
    for question in others:
        words = " ".join(answers(results, verdicts(results, question)))
        found.append(f"{asked(results, question)}. {words}")
    unmatched = {n for s in results.schemes if (n := s.fact("parameters")) is not None}
    sure = [*_sure(results, rows), *_lost(results)]
    if edges := [row.name for row in rates(results) if row.remark]:
        sure.append(f"Best learning rate at the edge of the grid, or none: {', '.join(edges)}.")
    if late := still_falling(results):
        sure.append(
            f"Undertrained, perhaps, rather than worse: {', '.join(late)}. At the end each falls as"
            " fast as the scheme with the least loss did at that loss; its card has the numbers."
        )
    if len(unmatched) > 1:
        sure.append(f"Parameters are not matched: {min(unmatched):,} to {max(unmatched):,}.")
    return {"asked": [asked_first, *also], "found": found, "sure": sure}


def irregularities(results: Results) -> list[str]:
    """Everything about the files that a reader must know."""
    notes = list(results.manifest.get("notes", ()))
    if warning := results.manifest["corpus"].get("warning"):
        notes.append(f"{warning[0].upper()}{warning[1:]}.")
    for before in results.reported:
        if before != results.subject:
            seeds, schemes = ", ".join(map(str, before["seeds"])), ", ".join(before["encodings"])
            notes.append(
                f"There was a report before, of seeds {seeds} and of {schemes}: intervals and p"
                " values take seeds and schemes as decided beforehand."
            )
    for name, values in (results.speed or {}).get("encodings", {}).items():
        if "problem" in values:
            notes.append(f"{name}: not timed, {values['problem']}.")
    for scheme in results.schemes:
        for run in scheme.runs.values():
            at = f"{scheme.name}, seed {run.seed}"
            if run.status != "ok":
                notes.append(f"{at}: {run.status}" + f" ({run.reason})" * bool(run.reason) + ".")
            if run.torn:
                plural = "s" * (run.torn > 1)
                notes.append(f"{at}: {run.torn} torn line{plural} of metrics.jsonl skipped.")
            if run.repeated:
                notes.append(f"{at}: {run.repeated} steps logged again after a resume; last kept.")
    done = [run.evaluation for s in results.schemes for run in s.runs.values() if run.evaluation]
    for field in ("commit", "device", "jax"):  # a resume may be of other code, elsewhere
        counts = collections.Counter(one.get(field, "unknown") for one in done)
        if len(counts) > 1:
            listed = ", ".join(f"{value} ({n})" for value, n in counts.most_common())
            notes.append(f"Not the same {field} in all runs: {listed}.")
    if results.speed is None:
        notes.append("Speed and memory were not measured: there is no speed.json.")
    return notes
