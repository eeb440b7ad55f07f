"""The first screen of a comparison: the finding, and answers at the trained and longest length."""

from typing import NamedTuple

from experiments.reporting import number_formats, statistics, takeaways
from experiments.reporting.number_formats import number
from experiments.reporting.results import Question, Results
from experiments.reporting.verdict_rows import VerdictRow, verdict_row
from experiments.reporting.verdicts import REFERENCE, UNDECIDED, Verdict, verdicts

ROWS = 8  # of the table: what fits beside the figure


class Answer(NamedTuple):
    """What is shown at a length: `words` are sentences, `rows` by scheme's name."""

    title: str
    length: int
    words: str
    rows: dict[str, VerdictRow]


class Glance(NamedTuple):
    """A scheme in the table of the first screen: its loss and verdict of each answer."""

    place: int
    name: str
    cells: list[VerdictRow]


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
    trained = results.manifest["train_length"]
    declared = {q.length for q in results.questions if q.protocol == protocol}
    lengths = [n for n in dict.fromkeys((trained, longest)) if n in declared]
    questions = [Question("", protocol, n) for n in lengths]
    found = [_answer(results, question) for question in questions]
    order = sorted(results.schemes, key=lambda s: _loss(found[-1].rows[s.name]))
    rows = [Glance(s.index, s.name, [answer.rows[s.name] for answer in found]) for s in order]
    reference = results.manifest["reference"]
    keep = [row for row in rows if row.name != reference][: ROWS - 1]
    shown = [row for row in rows if row in keep or row.name == reference]
    near = verdicts(results, questions[0]) if trained in declared else None
    headline = takeaways.headline(results, near, verdicts(results, questions[-1]))
    return FirstScreen(headline, found, shown, len(rows) - len(shown), protocol)


def _loss(row: VerdictRow) -> float:
    return float("inf") if row.value is None else row.value


def _answer(results: Results, question: Question) -> Answer:
    trained, n = results.manifest["train_length"], question.length
    times = f", {number(n / trained, 0 if n % trained == 0 else 1)} × as long"
    title = f"At the trained length, {n:,} tokens" if n == trained else f"At {n:,} tokens{times}"
    decided = verdicts(results, question)
    rows = {v.name: verdict_row(results, question, v) for v in decided}
    return Answer(title, n, _sentences(decided, results.manifest["reference"]), rows)


KINDS = {
    statistics.LOWER: "Lower loss than {}",
    statistics.HIGHER: "Higher loss than {}",
    statistics.SAME: "No practical difference to {}",
    statistics.INCONCLUSIVE: "Inconclusive",
}


def _sentences(decided: list[Verdict], reference: str) -> str:
    """Who is shown lower or higher, the one by most with its numbers; few names, else counts."""
    count = sum(v.kind != REFERENCE for v in decided)
    known = sorted((v for v in decided if v.difference), key=_size, reverse=True)
    parts = []
    for kind, words in KINDS.items():
        rows = [v for v in known if v.kind == kind]
        if rows:
            listed = takeaways.listed([v.name for v in rows], count)
            most = _most(rows) if kind in (statistics.LOWER, statistics.HIGHER) else ""
            parts.append(f"{words.format(reference)}: {listed}{most}.")
    lost = [f"{v.name} ({v.words})" for v in decided if v.kind == UNDECIDED]
    return " ".join([*parts, *([f"No number: {'; '.join(lost)}."] if lost else [])])


def _size(verdict: Verdict) -> float:
    return abs(verdict.difference.mean) if verdict.difference else 0.0


def _most(rows: list[Verdict]) -> str:
    """The greatest difference with its p value."""
    tested = rows[0].tested
    assert tested is not None
    name = "" if len(rows) == 1 else f"{rows[0].name} by most, "
    p = number_formats.p_equation(tested.holm)
    return f" ({name}{number(tested.estimate.mean, 3, signed=True)}, Holm {p})"
