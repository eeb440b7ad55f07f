"""Paired differences to the reference: by length, and by position in bins that hold enough tokens.

Each is the mean over seeds with its 95 % t interval, paired by seed over the same windows. These
intervals are of one pair at one place, without correction: verdicts are in `verdicts`.
"""

import math
from typing import NamedTuple

from experiments.reporting import statistics
from experiments.reporting.results import Results, Scheme
from experiments.reporting.statistics import Estimate
from experiments.reporting.verdicts import paired_difference
from pe_jax.training.config import PROTOCOLS

TOKENS = 128  # of each seed in a bin of positions, at least
GROWTH = math.sqrt(2)  # of the bins' ends

ByLength = dict[str, dict[int, Estimate]]


def by_length(results: Results, protocol: str) -> ByLength:
    """Scheme → length → difference to the reference, where there is one; not the reference."""
    reference = results.scheme(results.manifest["reference"])
    if reference is None:
        return {}
    found: ByLength = {}
    for scheme in results.schemes:
        if scheme is not reference:
            each = {
                n: paired_difference(scheme, reference, protocol, n)
                for n in results.manifest["lengths"]
            }
            found[scheme.name] = {n: d for n, d in each.items() if isinstance(d, Estimate)}
    return found


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
        whole = count - ends[-1] >= max(least, (GROWTH - 1) / 2 * ends[-1])
        ends = [*ends, count] if whole or len(ends) == 1 else [*ends[:-1], count]
    return [(low + 1, high) for low, high in zip(ends[:-1], ends[1:], strict=True)]


def by_position(results: Results) -> tuple[dict[str, list[Bin]], dict[str, str]]:
    """Scheme → its bins, the reference apart; and scheme → why it has none."""
    reference = results.scheme(results.manifest["reference"])
    theirs, problem = reference.by_position() if reference else ({}, "not run")
    if problem or not theirs:
        why = f"the reference has none: {problem or 'not evaluated'}"
        return {}, {s.name: why for s in results.schemes if s is not reference}
    found, missing = {}, {}
    for scheme in results.schemes:
        if scheme is reference:
            continue
        ours, problem = scheme.by_position()
        if problem or not ours:
            missing[scheme.name] = problem or "not evaluated"
            continue
        each = [ours[seed] - theirs[seed] for seed in sorted(ours)]
        found[scheme.name] = [
            Bin(a, b, statistics.estimate([float(d[a - 1 : b].mean()) for d in each]))
            for a, b in bins(each[0].size, _windows(scheme, results.longest))
        ]
    return found, missing


def _windows(scheme: Scheme, length: int) -> int:
    """Windows of the longest context of a run: tokens at each position."""
    good, _ = scheme.windows(PROTOCOLS[0], length)
    return min((w.size for w in good.values()), default=1)
