"""Every scheme against the reference: paired differences of losses, and their verdicts.

A difference by length is the mean with its 95 % t interval over seeds and windows, paired by seed
over the same windows, of one pair at one length, without correction; one by position has an
interval over seeds alone, as windows are not saved by position. Verdicts are corrected over all
schemes.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from experiments.reporting import statistics
from experiments.reporting.results import Question, Results, Scheme
from experiments.reporting.statistics import NO_NUMBER, Estimate, Tested
from experiments.running.files.table import Test
from pe_jax.training.config import PROTOCOLS

REFERENCE, UNDECIDED = "reference", "undecided"
CLAIMS = (statistics.LOWER, statistics.HIGHER)
MARKS = {
    statistics.LOWER: "▼",
    statistics.HIGHER: "▲",
    statistics.SAME: "≈",
    statistics.INCONCLUSIVE: "?",
    REFERENCE: "●",
    UNDECIDED: "∅",
}
TOKENS = 128  # the fewest of each seed in a bin of positions
GROWTH = math.sqrt(2)  # of a bin's end over the last bin's


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One scheme against the reference.

    `loss` is the scheme's mean over seeds, `family` the number of differences that Holm's procedure
    counted; it is exploratory where seeds or schemes changed after a report.
    """

    index: int
    name: str
    loss: float | None
    kind: str
    words: str
    tested: Tested = NO_NUMBER
    family: int = 0
    exploratory: bool = False

    @property
    def difference(self) -> Estimate | None:
        """The paired difference, without correction."""
        return self.tested.estimate if self.tested is not NO_NUMBER else None

    @property
    def mark(self) -> str:
        """A sign for the kind."""
        return MARKS[self.kind]

    @property
    def claimed(self) -> bool:
        """Whether a lower or a higher loss was shown, as decided beforehand."""
        return self.kind in CLAIMS and not self.exploratory


def verdicts(results: Results, question: Question | None = None) -> list[Verdict]:
    """Every scheme against the reference at a question, the primary one if none is given."""
    question = question or results.questions[0]
    return decide(
        results.schemes,
        results.manifest.reference,
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
    means = {s.name: s.mean(protocol, length) for s in schemes}
    reference = next((s for s in schemes if s.name == name), None)
    if reference is None:
        why = f"not decided: the reference {name} was not run"
        return [Verdict(s.index, s.name, means[s.name], UNDECIDED, why) for s in schemes]
    pairs = [(s, reference) for s in schemes if s is not reference]
    outcomes = {s.name: paired_difference(s, reference, protocol, length) for s, _ in pairs}
    differences = {n: x if isinstance(x, Estimate) else None for n, x in outcomes.items()}
    judged, size = family(pairs, differences, [(protocol, length)], effect)

    def verdict(scheme: Scheme) -> Verdict:
        about = scheme.index, scheme.name, means[scheme.name]
        if scheme is reference:
            problem = scheme.cell(protocol, length).problem
            words = "the reference" + f" ({problem})" * bool(problem)
            return Verdict(*about, REFERENCE, words)
        if scheme.name not in judged:
            return Verdict(*about, UNDECIDED, str(outcomes[scheme.name]), NO_NUMBER, size)
        tested, kind, reason = judged[scheme.name]
        words = f"{kind} loss than {name}" if kind in CLAIMS else kind
        words = "no practical difference" if kind == statistics.SAME else words
        remarks = ["exploratory"] * exploratory + [reason] * bool(reason)
        words += f" ({'; '.join(remarks)})" * bool(remarks)
        return Verdict(*about, kind, words, tested, size, exploratory)

    return [verdict(scheme) for scheme in schemes]


class Judged(NamedTuple):
    """A difference as one of a family, the kind of its verdict, and the reason for it or ""."""

    tested: Tested
    kind: str
    reason: str


def family(
    pairs: Sequence[tuple[Scheme, Scheme]],
    differences: Mapping[str, Estimate | None],
    alike: Sequence[Test],
    effect: float = 0.0,
) -> tuple[dict[str, Judged], int]:
    """Judges the differences of all pairs together: those with a number, and how many count.

    Args:
      pairs: a scheme, and what it is compared with.
      differences: by the scheme's name; None for one without a number, which counts too.
      alike: a pair whose numbers here are those of an earlier pair, or of each other, does not
        count.
      effect: the smallest of interest.
    """
    outcomes, units = {}, {scheme.name: scheme.unit for scheme, _ in pairs}
    for scheme, other in pairs:
        if differences[scheme.name]:
            ours, theirs = (s.outcome(alike) for s in (scheme, other))
            outcomes[scheme.name] = None if ours == theirs else (ours, theirs)
    tested, size = statistics.family(differences, statistics.copies(outcomes, None))
    judged = {n: Judged(x, *statistics.judge(x, effect, units[n])) for n, x in tested.items()}
    return judged, size


def paired_difference(
    scheme: Scheme, reference: Scheme, protocol: str, length: int
) -> Estimate | str:
    """The paired difference of the losses at a length, or why there is none."""
    ours, problem = scheme.measured(protocol, length)
    theirs, reference_problem = reference.measured(protocol, length)
    if problem:
        return problem
    if reference_problem:
        return f"not decided: the reference {reference.name} has {reference_problem}"
    try:
        return statistics.crossed(ours, theirs)
    except ValueError as error:
        return f"not comparable: {error}"


def by_difference(decided: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts by difference, lowest first; the reference counts as 0, no number is last."""
    ranks = {REFERENCE: 0.0, UNDECIDED: math.inf}
    return sorted(decided, key=lambda v: ranks.get(v.kind, v.tested.estimate.mean))


def by_length(results: Results, protocol: str) -> dict[str, dict[int, Estimate]]:
    """Scheme → length → difference to the reference, where there is one; not the reference."""
    reference, lengths = results.reference, results.manifest.lengths
    return {
        s.name: {
            n: d
            for n in lengths
            if isinstance(d := paired_difference(s, reference, protocol, n), Estimate)
        }
        for s in results.schemes
        if reference is not None and s is not reference
    }


class Bin(NamedTuple):
    """A difference over positions `first` to `last`; the first position of a context is 1."""

    first: int
    last: int
    difference: Estimate

    @property
    def centre(self) -> float:
        """The geometric mean of its ends."""
        return math.sqrt(self.first * self.last)


def bins(count: int, windows: int) -> list[tuple[int, int]]:
    """(first, last) position of bins over positions 1 … `count`, each of which `windows` have.

    A bin ends GROWTH times as far as it begins, or where it holds TOKENS tokens. What remains at
    the end joins the last one if it is too small.
    """
    least = math.ceil(TOKENS / max(windows, 1))
    ends = [0]
    while ends[-1] < count:
        ends.append(max(math.ceil(GROWTH * ends[-1]), ends[-1] + least))
    ends = [end for end in ends if end <= count]
    if ends[-1] < count:
        is_large = count - ends[-1] >= max(least, (GROWTH - 1) / 2 * ends[-1])
        ends = [*ends, count] if is_large or len(ends) == 1 else [*ends[:-1], count]
    return [(low + 1, high) for low, high in zip(ends[:-1], ends[1:], strict=True)]


def by_position(results: Results) -> tuple[dict[str, list[Bin]], dict[str, str]]:
    """Scheme → its bins, without the reference; and scheme → why it has none."""
    reference = results.reference
    theirs, problem = reference.by_position() if reference else ({}, "not run")
    by_scheme, missing = {}, {}
    for scheme in results.schemes:
        if scheme is reference:
            continue
        ours, scheme_problem = scheme.by_position()
        if problem or not theirs:
            missing[scheme.name] = f"the reference has none: {problem or 'not evaluated'}"
        elif scheme_problem or not ours:
            missing[scheme.name] = scheme_problem or "not evaluated"
        else:
            paired = [ours[seed] - theirs[seed] for seed in sorted(ours)]
            windows, _ = scheme.measured(PROTOCOLS[0], results.longest)
            by_scheme[scheme.name] = [
                Bin(a, b, statistics.estimate([float(d[a - 1 : b].mean()) for d in paired]))
                for a, b in bins(paired[0].size, min((w.size for w in windows.values()), default=1))
            ]
    return by_scheme, missing
