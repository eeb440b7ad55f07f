"""A verdict as a row of a table, in words."""

from typing import NamedTuple

from experiments.reporting import number_formats, statistics
from experiments.reporting.number_formats import number
from experiments.reporting.results import Question, Results
from experiments.reporting.verdicts import REFERENCE, UNDECIDED, Verdict, interval

MARKS = {
    statistics.LOWER: "▼",
    statistics.HIGHER: "▲",
    statistics.SAME: "≈",
    statistics.INCONCLUSIVE: "?",
    REFERENCE: "●",
    UNDECIDED: "∅",
}
CLAIMS = (statistics.LOWER, statistics.HIGHER)


class VerdictRow(NamedTuple):
    """A scheme's verdict: `value` is its mean loss, `brief` the interval with fewer digits."""

    place: int
    name: str
    kind: str
    claimed: bool
    mark: str
    words: str
    value: float | None
    loss: str
    mean: str
    median: str
    interval: str
    brief: str
    p: str
    holm: str


def verdict_row(results: Results, question: Question, verdict: Verdict) -> VerdictRow:
    """A verdict on a question as a row."""
    difference, tested = verdict.difference, verdict.tested
    scheme = results.scheme(verdict.name)
    assert scheme is not None
    estimate = scheme.cell(question.protocol, question.length).estimate
    value = estimate.mean if estimate else None
    return VerdictRow(
        place=scheme.index,
        name=verdict.name,
        kind=verdict.kind,
        claimed=verdict.kind in CLAIMS and not verdict.exploratory,
        mark=MARKS[verdict.kind],
        words=verdict.words,
        value=value,
        loss=number(value),
        mean=number(difference.mean, 3, signed=True) if difference else "—",
        median=number(difference.median, 4, signed=True) if difference else "—",
        interval=interval(tested),
        brief=interval(tested, 3),
        p=number_formats.p_value(difference.p) if difference else "—",
        holm=number_formats.p_value(tested.holm) if tested else "—",
    )


def by_difference(rows: list[tuple[Verdict, VerdictRow]]) -> list[VerdictRow]:
    """Rows from the lowest difference to the highest; the reference is 0, what has none is last."""

    def place(pair: tuple[Verdict, VerdictRow]) -> float:
        verdict, _ = pair
        if verdict.kind == REFERENCE:
            return 0.0
        return verdict.difference.mean if verdict.difference else float("inf")

    return [row for _, row in sorted(rows, key=place)]
