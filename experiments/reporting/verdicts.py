"""Every scheme against the reference: the paired difference of losses, and its verdict."""

import dataclasses
import math
from collections.abc import Sequence

from experiments.reporting import statistics
from experiments.reporting.number_formats import number
from experiments.reporting.results import Question, Results, Scheme
from experiments.reporting.statistics import Estimate, Tested

REFERENCE, UNDECIDED = "reference", "undecided"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One scheme against the reference.

    `tested` is None if there is no difference; `family` is the number of differences that Holm's
    procedure counted; `exploratory` says that seeds or schemes changed after a report.
    """

    name: str
    kind: str
    words: str
    tested: Tested | None = None
    family: int = 0
    exploratory: bool = False

    @property
    def difference(self) -> Estimate | None:
        """The paired difference, without correction."""
        return self.tested and self.tested.estimate


def verdicts(results: Results, question: Question | None = None) -> list[Verdict]:
    """Every scheme against the reference at a question, the primary one if none is given."""
    question = question or results.questions[0]
    return decide(
        results.schemes,
        results.manifest["reference"],
        question.protocol,
        question.length,
        effect=results.effect,
        exploratory=bool(results.changes),
    )


def decide(
    schemes: Sequence[Scheme],
    name: str,
    protocol: str,
    length: int,
    effect: float = 0.0,
    exploratory: bool = False,
) -> list[Verdict]:
    """Every scheme against the reference of that name.

    Holm's family is all schemes but the reference, also those whose runs failed; schemes whose
    losses are bitwise those of the reference or of an earlier scheme do not enlarge it.
    """
    reference = next((s for s in schemes if s.name == name), None)
    if reference is None:
        why = f"not decided: the reference {name} was not run"
        return [Verdict(s.name, UNDECIDED, why) for s in schemes]
    others = [s for s in schemes if s is not reference]
    outcomes = {s.name: paired_difference(s, reference, protocol, length) for s in others}
    differences = {n: x if isinstance(x, Estimate) else None for n, x in outcomes.items()}
    losses = {s.name: _bits(s, protocol, length) for s in others if differences[s.name]}
    same = statistics.copies(losses, _bits(reference, protocol, length))
    tested, family = statistics.family(differences, same)

    def verdict(scheme: Scheme) -> Verdict:
        if scheme is reference:
            problem = scheme.cell(protocol, length).problem
            words = f"the reference ({problem})" if problem else "the reference"
            return Verdict(scheme.name, REFERENCE, words)
        if scheme.name not in tested:
            return Verdict(scheme.name, UNDECIDED, str(outcomes[scheme.name]), None, family)
        difference = tested[scheme.name]
        kind, words = _kind_and_words(difference, name, effect, exploratory)
        return Verdict(scheme.name, kind, words, difference, family, exploratory)

    return [verdict(scheme) for scheme in schemes]


def paired_difference(
    scheme: Scheme, reference: Scheme, protocol: str, length: int
) -> Estimate | str:
    """The paired difference of the losses at a length, or why there is none."""
    ours, problem = scheme.windows(protocol, length)
    theirs, reference_problem = reference.windows(protocol, length)
    if problem:
        return problem
    if reference_problem:
        return f"not decided: the reference {reference.name} has {reference_problem}"
    try:
        return statistics.estimate(statistics.paired(ours, theirs))
    except ValueError as error:
        return f"not comparable: {error}"


def _bits(scheme: Scheme, protocol: str, length: int) -> tuple[tuple[int, bytes], ...]:
    windows, _ = scheme.windows(protocol, length)
    return tuple((seed, windows[seed].tobytes()) for seed in sorted(windows))


def _kind_and_words(
    tested: Tested, reference: str, effect: float, exploratory: bool
) -> tuple[str, str]:
    kind, reason = statistics.judge(tested, effect)
    words = {
        statistics.LOWER: f"lower loss than {reference}",
        statistics.HIGHER: f"higher loss than {reference}",
        statistics.SAME: "no practical difference",
        statistics.INCONCLUSIVE: "inconclusive",
    }[kind]
    remarks = ["exploratory"] * exploratory + [reason] * bool(reason)
    return kind, words + f" ({'; '.join(remarks)})" * bool(remarks)


def interval(tested: Tested | None, digits: int = 4) -> str:
    """[low, high], simultaneous, or an em dash; a round bracket at a zero that Holm excludes."""
    if tested is None or math.isnan(tested.low):
        return "—"
    left = "(" if _is_excluded_zero(tested, tested.low) else "["
    right = ")" if _is_excluded_zero(tested, tested.high) else "]"
    return f"{left}{number(tested.low, digits, True)}, {number(tested.high, digits, True)}{right}"


def _is_excluded_zero(tested: Tested, bound: float) -> bool:
    """Whether this end of the interval is the zero that Holm's procedure excludes."""
    return tested.off_zero and bound == 0
