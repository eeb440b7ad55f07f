"""What a comparison and its figures show, in sentences computed from the results.

A sentence claims what the statistics support: verdicts after Holm's correction over the schemes of
one comparison at one length or position; or it names means, and says so.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.reporting import statistics
from experiments.reporting.comparison.loss_curves import Curve
from experiments.reporting.results import Question, Results
from experiments.reporting.statistics import (
    HIGHER,
    INCONCLUSIVE,
    LOWER,
    SAME,
    Estimate,
    Ratio,
    number,
    p_equation,
)
from experiments.reporting.verdicts import REFERENCE, UNDECIDED, Bin, Verdict, verdicts

COUNTS = ("no", "one", "two", "three", "four")
ROWS = 8  # of the first screen's table: as many as fit next to the figure
KINDS = {
    LOWER: "Lower loss than {}",
    HIGHER: "Higher loss than {}",
    SAME: "No practical difference to {}",
    INCONCLUSIVE: "Inconclusive",
}


def listed(names: Sequence[str], of: int = 0, most: int = 3) -> str:
    """a, b and c; more than `most` are counted: 5 of 9 schemes, or all 5 schemes."""
    if len(names) > most:
        return f"all {of} schemes" if len(names) == of else f"{len(names)} of {of} schemes"
    return " and ".join([*([", ".join(names[:-1])] if names[:-1] else []), *names[-1:]])


def capital(text: str) -> str:
    """The text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def _sentence(text: str) -> str:
    """As `capital`, unless the text begins with the name of a scheme."""
    return capital(text) if text.startswith(("all ", "no ")) else text


def _verb(names: Sequence[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several


def _by_kind(decided: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """The verdicts of each kind that have a difference, the greatest first."""
    with_difference = [v for v in decided if v.difference]
    with_difference.sort(key=lambda v: -abs(v.tested.estimate.mean))
    return {kind: [v for v in with_difference if v.kind == kind] for kind in KINDS}


def count_compared(decided: Sequence[Verdict]) -> int:
    """How many schemes are compared with the reference."""
    return sum(v.kind != REFERENCE for v in decided)


class Answer(NamedTuple):
    """What is shown at a length: `words` are sentences, `rows` by scheme's name."""

    title: str
    length: int
    words: str
    rows: dict[str, Verdict]


class Glance(NamedTuple):
    """A scheme in the table of the first screen: its verdict of each answer."""

    place: int
    name: str
    cells: list[Verdict]


class FirstScreen(NamedTuple):
    """The finding in words, the answers, a table of both, and how many schemes it leaves out."""

    headline: str
    answers: list[Answer]
    rows: list[Glance]
    more: int
    protocol: str


def first_screen(results: Results) -> FirstScreen:
    """The first screen; an answer at the trained length only if the question was declared."""
    protocol, longest = results.primary
    trained, reference = results.manifest.train_length, results.manifest.reference
    declared = {q.length for q in results.questions if q.protocol == protocol}
    lengths = [n for n in dict.fromkeys((trained, longest)) if n in declared]
    decided = {n: verdicts(results, Question("", protocol, n)) for n in lengths}
    answers = [_answer(results, n, at_length) for n, at_length in decided.items()]
    rows = [
        Glance(s.index, s.name, [answer.rows[s.name] for answer in answers])
        for s in results.schemes
    ]
    rows.sort(key=lambda row: math.inf if row.cells[-1].loss is None else row.cells[-1].loss)
    keep = [row for row in rows if row.name != reference][: ROWS - 1]
    visible = [row for row in rows if row in keep or row.name == reference]
    title = headline(results, decided.get(trained), decided[lengths[-1]])
    return FirstScreen(title, answers, visible, len(rows) - len(visible), protocol)


def _answer(results: Results, n: int, decided: list[Verdict]) -> Answer:
    """Which schemes are shown lower or higher, that by most with numbers; many are only counted."""
    trained, reference = results.manifest.train_length, results.manifest.reference
    times = f", {number(n / trained, 0 if n % trained == 0 else 1)} × as long"
    title = f"At the trained length, {n:,} tokens" if n == trained else f"At {n:,} tokens{times}"
    parts = []
    for kind, rows in _by_kind(decided).items():
        if rows:
            names, most = [v.name for v in rows], ""
            if kind in (LOWER, HIGHER):
                name = f"{names[0]} by most, " * (len(rows) > 1)
                mean, p = rows[0].tested.estimate.mean, p_equation(rows[0].tested.holm)
                most = f" ({name}{number(mean, 3, signed=True)}, Holm {p})"
            what = listed(names, count_compared(decided))
            parts.append(f"{KINDS[kind].format(reference)}: {what}{most}.")
    if lost := [f"{v.name} ({v.words})" for v in decided if v.kind == UNDECIDED]:
        parts.append(f"No number: {'; '.join(lost)}.")
    return Answer(title, n, " ".join(parts), {v.name: v for v in decided})


def headline(
    results: Results, trained: Sequence[Verdict] | None, longest: Sequence[Verdict]
) -> str:
    """The finding in one sentence: who is shown to beat the reference, at one or two lengths."""
    m = results.manifest
    reference, seeds = m.reference, len(m.seeds)
    at, far = f"{m.train_length:,}", f"{results.primary[1]:,}"
    if seeds < statistics.CLAIM_SEEDS:
        of = f"{COUNTS[seeds]} seed{'s' * (seeds > 1)}"
        return f"Nothing can be claimed from {of}: losses at {at} and {far} tokens"
    lead = "Exploratory: " if results.changes else ""
    if seeds < statistics.HEADLINE_SEEDS:
        lead += f"Over {COUNTS[seeds]} seeds, "
    lower, higher, count = _sides(longest)
    words = f"no scheme is shown to differ from {reference} at {far} tokens"
    if lower:
        verb = _verb(lower, "beats", "beat")
        words = f"{listed(lower, count)} {verb} {reference} at {far} tokens"
    elif higher:
        words = f"{reference} beats {listed(higher, count)} at {far} tokens"
    if trained is None or m.train_length == results.primary[1]:
        return _sentence(lead + words)
    won = bool(lower)
    lower, higher, count = _sides(trained)
    near = "none is shown to" if won else "no difference is shown"
    if lower:
        only = "only " * (won and len(lower) == 1)
        verb = _verb(lower, "does", "do") if won else _verb(lower, "beats it", "beat it")
        near = f"{only}{listed(lower, count)} {verb}"
    elif higher:
        near = f"{'none is shown to, and ' * won}{reference} beats {listed(higher, count)}"
    return _sentence(f"{lead}{words}; at the trained {at}, {near}")


def _sides(decided: Sequence[Verdict]) -> tuple[list[str], list[str], int]:
    """(lower, higher, all): names by size of the difference, and how many were compared."""
    lower, higher = ([v.name for v in _by_kind(decided)[kind]] for kind in (LOWER, HIGHER))
    return lower, higher, count_compared(decided)


# Titles of figures and questions.


def verdict_title(decided: Sequence[Verdict], reference: str, length: int) -> str:
    """How many schemes are shown below and above the reference at a length."""
    *sides, count = _sides(decided)
    named_sides = zip(sides, ("lower", "higher"), strict=True)
    words = [f"{listed(names, count, 2)} {side}" for names, side in named_sides if names]
    if not words:
        return f"No difference to {reference} is shown at {length:,} tokens"
    return f"Against {reference} at {length:,} tokens: {', '.join(words)}"


def differences_title(
    kinds: dict[int, dict[str, str]], means: dict[str, dict[int, float]], reference: str
) -> str:
    """Who ends below and above the reference, by how much; which of its leads are shown no more.

    `kinds` are those of the verdicts at each length, corrected over schemes, `means` the mean
    differences of each scheme. A lead is one that is shown at the least length.
    """
    lengths = sorted(kinds)
    first, last = kinds[lengths[0]], kinds[lengths[-1]]
    count = sum(kind != REFERENCE for kind in first.values())
    parts = []
    for kind, side in ((LOWER, "below"), (HIGHER, "above")):
        names = [name for name in last if last[name] == kind]
        names.sort(key=lambda name: means[name][lengths[-1]])
        if names:
            sizes = [abs(means[name][lengths[-1]]) for name in names]
            least, most = (number(size, 2) for size in (min(sizes), max(sizes)))
            by = most if least == most else f"{least} to {most}"
            words = f"{by} {side} it" if parts else f"{by} nats {side} {reference}"
            parts.append(f"{listed(names, count)} {_verb(names, 'ends', 'end')} {words}")
    not_lost = (LOWER, HIGHER, UNDECIDED)
    lost = [n for n, kind in first.items() if kind == HIGHER and last[n] not in not_lost]
    if parts:
        ends = _sentence(f"{', '.join(parts)} at {lengths[-1]:,} tokens")
        over = f"; no lead of {reference} over {listed(lost, count)} is shown there"
        return ends + over * bool(lost)
    if lost:
        over = listed(lost, count)
        return f"No lead of {reference} over {over} is shown at {lengths[-1]:,} tokens any more"
    return f"No scheme is shown to differ from {reference} at {lengths[-1]:,} tokens"


def losses_title(means: dict[str, dict[int, float]], trained: int) -> str:
    """The least mean loss at the trained and the longest length, and the steepest rise."""
    full = {name: each for name, each in means.items() if trained in each}
    if not full:
        return ""
    last = max(n for each in full.values() for n in each)
    far = {name: each[last] for name, each in full.items() if last in each}
    best = [min(full, key=lambda name: full[name][trained]), min(far, key=far.__getitem__)]
    rises = {name: far[name] - full[name][trained] for name in far}
    steep = max(rises, key=rises.__getitem__)
    where = f"{trained:,} and {last:,}" if best[0] == best[1] else f"{trained:,}"
    words = f"{best[0]} has the least mean at {where}"
    words += f", {best[1]} at {last:,}" * (best[0] != best[1])
    rise = f"; that of {steep} rises most, by {number(rises[steep], 2)}" * (rises[steep] > 0)
    return words + rise * (last > trained)


def position_title(found: dict[str, list[Bin]], reference: str, missing: Iterable[str] = ()) -> str:
    """Which schemes are shown below and above the reference in the last bin.

    Those that are `missing`, without a difference, count in Holm's family too.
    """
    if not found:
        return ""
    last = {name: each[-1].difference for name, each in found.items()}
    first, end, some = next(iter(found.values()))[-1]
    where = f"At positions {first:,} to {end:,}"
    if not math.isfinite(some.low):
        least = min(last, key=lambda name: last[name].mean)
        mean = last[least].mean
        if mean >= 0:
            return f"{where} no mean is below that of {reference}"
        return f"{where} {least} has the least mean, {number(-mean, 2)} below {reference}"
    kinds = _kinds({**dict.fromkeys(missing), **last})
    sides = {side: [n for n in last if kinds[n] == kind] for kind, side in _SIDES.items()}
    words = [f"{listed(names, len(last))} {side}" for side, names in sides.items() if names]
    what = " and ".join(words) if words else "none shown below or above"
    return f"{where}: {what} {reference} (Holm)"


_SIDES = {LOWER: "below", HIGHER: "above"}


def _kinds(differences: Mapping[str, Estimate | None]) -> dict[str, str]:
    """The kind of each difference's verdict, all of them one family."""
    tested, _ = statistics.family(differences)
    return {name: statistics.judge(difference)[0] for name, difference in tested.items()}


def series_title(
    found: dict[int, dict[str, dict[int, Estimate]]], reference: str, varied: str
) -> str:
    """Which schemes are below the reference at every size, above it, or first one, then the other.

    `found` has for each length a scheme's differences by size, or by what else `varied` names: a
    scheme without some of them is not in the title. A side is that of the verdict; a family is all
    schemes at one size and length.
    """
    parts = []
    values = {x for by_name in found.values() for each in by_name.values() for x in each}
    for length, by_name in found.items():
        at = [_kinds({name: each.get(x) for name, each in by_name.items()}) for x in values]
        complete = [name for name, each in by_name.items() if each.keys() == values]
        sides = {name: {kinds[name] for kinds in at} for name in complete}
        groups = (
            ([name for name, kinds in sides.items() if kinds == {LOWER}], "below"),
            ([name for name, kinds in sides.items() if kinds == {HIGHER}], "above"),
            ([name for name, kinds in sides.items() if kinds >= {LOWER, HIGHER}], "on both sides"),
        )
        words = [f"{listed(names, len(sides))} {side}" for names, side in groups if names]
        if words:
            parts.append(f"{', '.join(words)} at {length:,} tokens")
    if not parts:
        return f"No scheme is shown on one side of {reference} at every {varied}"
    return f"Against {reference} at every {varied}: {'; '.join(parts)} (Holm)"


def ratios_title(what: str, ratios: dict[str, Ratio], baseline: str) -> str:
    """The greatest median ratio to the baseline, and how many are close to 1."""
    compared = {name: r.median for name, r in ratios.items() if name != baseline}
    if not compared:
        return capital(what)
    most = max(compared, key=compared.__getitem__)
    close = sum(abs(x - 1) < 0.05 for x in compared.values())
    close_words = f"; {close} of {len(compared)} within 5 %" if close else ""
    greatest = f"{most} has the greatest median, {compared[most]:.2f}× {baseline}"
    return f"{capital(what)}: {greatest}{close_words}"


def curves_title(curves: dict[str, Curve], late: Sequence[str]) -> str:
    """Which scheme ends with the least mean, and which ones still fall."""
    if not curves:
        return ""
    best = min(curves, key=lambda name: curves[name].losses[-1])
    falling = f"; {listed(late, len(curves))} still {_verb(late, 'falls', 'fall')}" if late else ""
    return f"{best} ends with the least mean, {number(curves[best].losses[-1])}{falling}"


def seconds_title(times: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """Which scheme has the least mean when the first ends, from seconds and losses by scheme."""
    end = min(at[-1] for at, _ in times.values())
    losses = {name: float(np.interp(end, *curve)) for name, curve in times.items()}
    best = min(losses, key=losses.__getitem__)
    least = f"{best} has the least mean, {number(losses[best])}"
    return f"After {end:,.3g} s, when the first one ends, {least}"


def question_title(results: Results, question: Question) -> str:
    """The title of a question: its role if there are several, length and protocol."""
    at = f"length {question.length}, {question.protocol} evaluation"
    if question.length == results.manifest.train_length:
        at = f"the trained length, {question.length}, {question.protocol} evaluation"
    return f"{capital(question.role)}: {at}" if len(results.questions) > 1 else capital(at)
