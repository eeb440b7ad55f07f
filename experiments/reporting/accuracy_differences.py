"""Differences of accuracies, paired by seed: intervals and verdicts of a family of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.reporting import statistics
from experiments.reporting.results import Scheme
from experiments.reporting.verdicts import family
from experiments.running.files.table import Test


class Difference(NamedTuple):
    """The difference of two schemes in accuracy, in points.

    `estimate` is paired by seed, over what has a number in both, None if nothing has; `without` is
    the rest, and why.
    """

    of: str
    minus: str
    estimate: statistics.Estimate | None
    without: dict[str, str]


def difference(scheme: Scheme, other: Scheme, tests: Mapping[str, Sequence[Test]]) -> Difference:
    """The mean of two schemes' accuracies, one minus the other, in points.

    `tests` by name: each is the mean over its tests, and left out where one has no number.
    """
    without, values = {}, []
    for name, listed in tests.items():
        (ours, problem), (theirs, other_problem) = (s.means(listed) for s in (scheme, other))
        if problem or other_problem:
            without[name] = problem or other_problem
        else:
            values.append([100 * (ours[seed] - theirs[seed]) for seed in ours])
    means = [float(np.mean(points)) for points in zip(*values, strict=True)]
    estimate = statistics.estimate(means) if means else None
    return Difference(scheme.name, other.name, estimate, without)


def judged(
    pairs: Sequence[tuple[Scheme, Scheme]],
    tests: Mapping[str, Sequence[Test]],
    what: str,
    alike: Iterable[Test] = (),
) -> list[dict[str, Any]]:
    """The `difference` of each pair, with its verdict after Holm's correction, for results.json.

    Those without a number count too; those do not that have the numbers of another scheme in all of
    `alike`, by default `tests`. `what` is right more often: "tokens", "images".
    """
    alike = [*alike] or [test for listed in tests.values() for test in listed]
    differences = [difference(*pair, tests) for pair in pairs]
    verdicts, _ = family(pairs, {d.of: d.estimate for d in differences}, alike)
    rows = []
    for d in differences:
        row: dict[str, Any] = {"of": d.of, "minus": d.minus, "without": d.without}
        rows.append(row)
        if d.of not in verdicts:
            row["verdict"] = "no number in both"
            continue
        x, kind, reason = verdicts[d.of]
        bounds = {"points": x.estimate.mean, "low": x.low, "high": x.high}
        row |= {name: None if np.isnan(value) else value for name, value in bounds.items()}
        words = "no difference" if kind == statistics.SAME else kind
        if kind in (statistics.HIGHER, statistics.LOWER):
            more = "more" if kind == statistics.HIGHER else "fewer"
            words, reason = f"{more} {what} right", statistics.p_equation(x.holm)
        row |= {
            "interval": x.interval(1),
            f"{pairs[0][0].unit}s": x.estimate.n,
            "verdict": words + f" ({reason})" * bool(reason),
        }
    return rows


def line(row: dict) -> str:
    """A difference for the terminal."""
    interval = "" if row.get("low") is None else f" {row['interval']}"
    mean = statistics.number(row.get("points"), 1, signed=True)
    points = f"{mean} points{interval}: " if "points" in row else ""
    missing = ", ".join(f"{task} ({why})" for task, why in row["without"].items())
    without = f"; without {missing}" if missing else ""
    return f"{row['of']} minus {row['minus']}: {points}{row['verdict']}{without}"
