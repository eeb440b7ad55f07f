"""What a comparison and its figures show, in sentences computed from the results.

A sentence claims what the statistics support: verdicts after Holm's correction for the title, 95 %
paired intervals for figures against length and position, means where it says so.
"""

import math
from collections.abc import Sequence

import numpy as np

from experiments.reporting import statistics
from experiments.reporting.differences import Bin
from experiments.reporting.loss_curves import Curve
from experiments.reporting.number_formats import number
from experiments.reporting.results import Results
from experiments.reporting.statistics import Estimate, Ratio
from experiments.reporting.verdicts import REFERENCE, UNDECIDED, Verdict

COUNTS = ("no", "one", "two", "three", "four")


def listed(names: Sequence[str], of: int = 0, most: int = 3) -> str:
    """a, b and c; more than `most` are counted: 5 of 9 schemes, or all 5 schemes."""
    if len(names) > most:
        return f"all {of} schemes" if len(names) == of else f"{len(names)} of {of} schemes"
    return " and ".join([*([", ".join(names[:-1])] if names[:-1] else []), *names[-1:]])


def _verb(names: Sequence[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several


def headline(
    results: Results, trained: Sequence[Verdict] | None, longest: Sequence[Verdict]
) -> str:
    """The finding in one sentence: who is shown to beat the reference, at one or two lengths."""
    m = results.manifest
    reference, seeds = m["reference"], len(m["seeds"])
    at, far = f"{m['train_length']:,}", f"{results.primary[1]:,}"
    if seeds < statistics.CLAIM_SEEDS:
        of = f"{COUNTS[seeds]} seed{'s' * (seeds > 1)}"
        return f"Nothing can be claimed from {of}: losses at {at} and {far} tokens"
    lead = "Exploratory: " if results.changes else ""
    if seeds < statistics.HEADLINE_SEEDS:
        lead += f"Over {COUNTS[seeds]} seeds, "
    far_words, won = _longest(longest, reference, far)
    if trained is None or m["train_length"] == results.primary[1]:
        return _capital(lead + far_words)
    near = _trained(trained, reference, won)
    return _capital(f"{lead}{far_words}; at the trained {at}, {near}")


def _sides(verdicts: Sequence[Verdict]) -> tuple[list[str], list[str], int]:
    """(lower, higher, all): names by size of the difference, and how many were compared."""
    known = [v for v in verdicts if v.difference]
    known.sort(key=lambda v: -abs(v.difference.mean) if v.difference else 0.0)
    kinds = (statistics.LOWER, statistics.HIGHER)
    lower, higher = ([v.name for v in known if v.kind == kind] for kind in kinds)
    return lower, higher, sum(v.kind != REFERENCE for v in verdicts)


def _longest(verdicts: Sequence[Verdict], reference: str, far: str) -> tuple[str, bool]:
    lower, higher, count = _sides(verdicts)
    if lower:
        words = (
            f"{listed(lower, count)} {_verb(lower, 'beats', 'beat')} {reference} at {far} tokens"
        )
        return words, True
    if higher:
        return f"{reference} beats {listed(higher, count)} at {far} tokens", False
    return f"no scheme is shown to differ from {reference} at {far} tokens", False


def _trained(verdicts: Sequence[Verdict], reference: str, won: bool) -> str:
    lower, higher, count = _sides(verdicts)
    if lower:
        only = "only " * (won and len(lower) == 1)
        verb = _verb(lower, "does", "do") if won else _verb(lower, "beats it", "beat it")
        return f"{only}{listed(lower, count)} {verb}"
    if higher:
        none = "none is shown to, and " if won else ""
        return f"{none}{reference} beats {listed(higher, count)}"
    return "none is shown to" if won else "no difference is shown"


def verdict_title(verdicts: Sequence[Verdict], reference: str, length: int) -> str:
    """How many schemes are shown below and above the reference at a length."""
    lower, higher, count = _sides(verdicts)
    if not lower and not higher:
        return f"No difference to {reference} is shown at {length:,} tokens"
    sides = [f"{listed(lower, count, 2)} lower" * bool(lower)]
    sides += [f"{listed(higher, count, 2)} higher" * bool(higher)]
    return f"Against {reference} at {length:,} tokens: {', '.join(filter(None, sides))}"


def differences_title(
    kinds: dict[int, dict[str, str]], means: dict[str, dict[int, float]], reference: str
) -> str:
    """Who ends below and above the reference, by how much, and the leads that it loses.

    `kinds` are those of the verdicts at each length, corrected over schemes, `means` the mean
    differences of each scheme. A lead that is not shown at the greatest length is lost.
    """
    lengths = sorted(kinds)
    first, last = kinds[lengths[0]], kinds[lengths[-1]]
    count = sum(kind != REFERENCE for kind in first.values())
    parts = []
    for kind, side in ((statistics.LOWER, "below"), (statistics.HIGHER, "above")):
        names = [name for name in last if last[name] == kind]
        names.sort(key=lambda name: means[name][lengths[-1]])
        if names:
            sizes = [abs(means[name][lengths[-1]]) for name in names]
            least, most = (number(size, 2) for size in (min(sizes), max(sizes)))
            by = most if least == most else f"{least} to {most}"
            words = f"{by} {side} it" if parts else f"{by} nats {side} {reference}"
            parts.append(f"{listed(names, count)} {_verb(names, 'ends', 'end')} {words}")
    shown = (statistics.LOWER, statistics.HIGHER, UNDECIDED)
    lost = [n for n, kind in first.items() if kind == statistics.HIGHER and last[n] not in shown]
    if parts:
        parts[-1] += f" at {lengths[-1]:,} tokens"
        ends = _capital(", ".join(parts))
        return ends + f"; {reference} loses its lead over {listed(lost, count)}" * bool(lost)
    if lost:
        return f"{reference} loses its lead over {listed(lost, count)} by {lengths[-1]:,} tokens"
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
    rise = f"; {steep} rises most, by {number(rises[steep], 2)}" if rises[steep] > 0 else ""
    return words + rise * (last > trained)


def position_title(found: dict[str, list[Bin]], reference: str) -> str:
    """Which schemes are below and above the reference in the last bin."""
    if not found:
        return ""
    last = {name: each[-1] for name, each in found.items()}
    some = next(iter(last.values()))
    sides = {
        "below": [name for name, bin in last.items() if bin.difference.high < 0],
        "above": [name for name, bin in last.items() if bin.difference.low > 0],
    }
    if not math.isfinite(some.difference.low):
        least = min(last, key=lambda name: last[name].difference.mean)
        mean = last[least].difference.mean
        where = f"At positions {some.first:,} to {some.last:,}"
        if mean >= 0:
            return f"{where} no mean is below that of {reference}"
        return f"{where} {least} has the least mean, {number(-mean, 2)} below {reference}"
    words = [f"{listed(names, len(last))} {side}" for side, names in sides.items() if names]
    what = " and ".join(words) if words else "none shown below or above"
    return f"At positions {some.first:,} to {some.last:,}: {what} {reference} (95 %)"


def ratios_title(what: str, ratios: dict[str, Ratio], baseline: str) -> str:
    """The greatest ratio to the baseline, and how many are close to 1."""
    what = what[0].upper() + what[1:]
    others = {name: r.median for name, r in ratios.items() if name != baseline}
    if not others:
        return what
    most = max(others, key=others.__getitem__)
    close = sum(abs(x - 1) < 0.05 for x in others.values())
    rest = f"; {close} of {len(others)} within 5 %" if close else ""
    return f"{what}: {most} takes most, {others[most]:.2f}× {baseline}{rest}"


def curves_title(curves: dict[str, Curve], late: Sequence[str]) -> str:
    """Which scheme ends lowest, and which ones still fall."""
    if not curves:
        return ""
    best = min(curves, key=lambda name: curves[name].losses[-1])
    falling = f"; {listed(late, len(curves))} still {_verb(late, 'falls', 'fall')}" if late else ""
    return f"{best} ends lowest, {number(curves[best].losses[-1])}{falling}"


def seconds_title(times: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """Which scheme is lowest when the first one has finished; of seconds and losses by scheme."""
    end = min(at[-1] for at, _ in times.values())
    there = {name: float(np.interp(end, *curve)) for name, curve in times.items()}
    best = min(there, key=there.__getitem__)
    return f"After {end:,.3g} s, when the first one ends, {best} is lowest, {number(there[best])}"


def series_title(found: dict[int, dict[str, list[Estimate]]], reference: str, varied: str) -> str:
    """Which schemes are below the reference at every size, above it, or first one, then the other.

    `found` has for each length a scheme's differences by size, or by what else `varied` names; a
    side is shown where the 95 % interval has no 0.
    """
    parts = []
    for length, by_name in found.items():
        sides = {name: {_side(d) for d in each} for name, each in by_name.items()}
        groups = (
            ([name for name, at in sides.items() if at == {-1}], "below"),
            ([name for name, at in sides.items() if at == {1}], "above"),
            ([name for name, at in sides.items() if at >= {-1, 1}], "on both sides"),
        )
        words = [f"{listed(names, len(sides))} {side}" for names, side in groups if names]
        if words:
            parts.append(f"{', '.join(words)} at {length:,} tokens")
    if not parts:
        return f"No scheme is shown on one side of {reference} at every {varied}"
    return f"Against {reference} at every {varied}: {'; '.join(parts)} (95 %)"


def _side(difference: Estimate) -> int:
    """-1 below zero, 1 above, 0 if the interval does not say, or there is none."""
    return int(difference.low > 0) - int(difference.high < 0)


def _capital(text: str) -> str:
    """A sentence that begins with a word, and not with a scheme's name, has a capital."""
    return text[0].upper() + text[1:] if text.startswith(("all ", "no ")) else text
