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


def differences_title(kinds: dict[int, dict[str, str]], reference: str) -> str:
    """Where the reference loses the lead that it has at the shortest length, if it does.

    `kinds` are those of the verdicts at each length, corrected over schemes: a lead ends where it
    is not shown any more.
    """
    lengths = sorted(kinds)
    first, last = kinds[lengths[0]], kinds[lengths[-1]]
    count = sum(kind != REFERENCE for kind in first.values())
    lead = [name for name, kind in first.items() if kind == statistics.HIGHER]
    lost: dict[int, list[str]] = {}
    for name in lead:
        gone = [n for n in lengths if kinds[n][name] not in (statistics.HIGHER, UNDECIDED)]
        if gone:
            lost.setdefault(gone[0], []).append(name)
    if lost:
        each = [f"over {listed(names, count)} by {n:,}" for n, names in sorted(lost.items())]
        return f"{reference} loses its lead {', '.join(each)} tokens"
    ahead = [name for name, kind in last.items() if kind == statistics.LOWER]
    if ahead:
        verb = _verb(ahead, "is", "are")
        words = f"{listed(ahead, count)} {verb} ahead of {reference} at {lengths[-1]:,} tokens"
        return _capital(words)
    kept = [name for name in lead if last[name] == statistics.HIGHER]
    if kept:
        return f"{reference} keeps its lead over {listed(kept, count)} to {lengths[-1]:,} tokens"
    return f"No scheme is shown ahead of {reference}, or behind it from the start"


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
        return f"Mean difference to {reference} by position"
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


def series_title(found: dict[str, list[Estimate]], reference: str, length: int, varied: str) -> str:
    """Which schemes are below the reference at every size, above it, or first one, then the other.

    `found` has a scheme's differences by size, or by what else `varied` names; a side is shown
    where the 95 % interval has no 0.
    """
    sides = {name: {_side(d) for d in each} for name, each in found.items()}
    words = [
        f"{listed(names, len(sides))} {what}"
        for shown, what in (({-1}, "below"), ({1}, "above"))
        if (names := [name for name, at in sides.items() if at == shown])
    ]
    crossing = [name for name, at in sides.items() if at >= {-1, 1}]
    if crossing:
        words.append(f"{listed(crossing, len(sides))} on both sides of")
    if not words:
        return (
            f"At {length:,} tokens no scheme is shown on one side of {reference} at every {varied}"
        )
    return f"At {length:,} tokens and every {varied}: {', '.join(words)} {reference} (95 %)"


def _side(difference: Estimate) -> int:
    """-1 below zero, 1 above, 0 if the interval does not say, or there is none."""
    return int(difference.low > 0) - int(difference.high < 0)


def _capital(text: str) -> str:
    """A sentence that begins with a word, and not with a scheme's name, has a capital."""
    return text[0].upper() + text[1:] if text.startswith(("all ", "no ")) else text
