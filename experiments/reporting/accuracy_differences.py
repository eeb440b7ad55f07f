"""Differences of accuracies, paired by seed: intervals and verdicts of a family of them."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from experiments.reporting import statistics


class Difference(NamedTuple):
    """The difference of two entries in accuracy, in points.

    Attributes:
      of: the name of the first entry.
      minus: the name of the subtracted entry.
      estimate: paired by seed, over the tests with a number in both; None if there is none.
      without: the other tests, and why.
    """

    of: str
    minus: str
    estimate: statistics.Estimate | None
    without: dict[str, str]


def difference(
    entry: dict, other: dict, tests: Iterable[Any], by_seed: Callable[[dict, Any], dict | str]
) -> Difference:
    """The mean over tests of two entries' accuracies, one minus the other, in points.

    `by_seed(entry, test)` is the accuracy of each seed, or why there is none.
    """
    without, values = {}, []
    for test in tests:
        a, b = (by_seed(x, test) for x in (entry, other))
        if isinstance(a, str) or isinstance(b, str):
            without[test] = a if isinstance(a, str) else b
        else:
            values.append([100 * (a[seed] - b[seed]) for seed in a])
    means = [float(np.mean(points)) for points in zip(*values, strict=True)]
    estimate = statistics.estimate(means) if means else None
    return Difference(entry["name"], other["name"], estimate, without)


def judged(
    differences: list[Difference], what: str, same: dict[str, str | None] | None = None
) -> list[dict]:
    """Differences with intervals and verdicts after Holm's correction, for results.json.

    Those without a number count too; those in `same`, from `statistics.copies`, do not. `what`
    is right more often: "tokens", "images".
    """
    tested, _ = statistics.family({d.of: d.estimate for d in differences}, same)
    rows = []
    for d in differences:
        row = {"of": d.of, "minus": d.minus, "without": d.without}
        rows.append(row)
        if d.of not in tested:
            row["verdict"] = "no number in both"
            continue
        x = tested[d.of]
        bounds = {"points": x.estimate.mean, "low": x.low, "high": x.high}
        row |= {name: None if np.isnan(value) else value for name, value in bounds.items()}
        kind, reason = statistics.judge(x)
        words = "no difference" if kind == statistics.SAME else kind
        if kind in (statistics.HIGHER, statistics.LOWER):
            more = "more" if kind == statistics.HIGHER else "fewer"
            words, reason = f"{more} {what} right", statistics.p_equation(x.holm)
        row |= {
            "interval": x.interval(1),
            "seeds": x.estimate.n,
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
