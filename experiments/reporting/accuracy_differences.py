"""Differences of accuracies, paired by seed: intervals and verdicts of a family of them."""

from typing import NamedTuple

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
    of: str, minus: str, accuracies: list[tuple[dict, dict]], without: dict[str, str]
) -> Difference:
    """The mean over tests of two entries' accuracies by seed, one minus the other, in points."""
    seeds = accuracies[0][0] if accuracies else ()
    values = [float(np.mean([100 * (a[s] - b[s]) for a, b in accuracies])) for s in seeds]
    return Difference(of, minus, statistics.estimate(values) if values else None, without)


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
        if d.of not in tested:
            rows.append({**row, "verdict": "no number in both"})
            continue
        x = tested[d.of]
        bounds = {"points": x.estimate.mean, "low": x.low, "high": x.high}
        row |= {name: None if np.isnan(value) else value for name, value in bounds.items()}
        rows.append({**row, "seeds": x.estimate.n, "verdict": _verdict(x, what)})
    return rows


def _verdict(tested: statistics.Tested, what: str) -> str:
    """Whether more are right, or fewer, or none is shown."""
    kind, reason = statistics.judge(tested)
    if kind in (statistics.HIGHER, statistics.LOWER):
        more = "more" if kind == statistics.HIGHER else "fewer"
        return f"{more} {what} right ({statistics.p_equation(tested.holm)})"
    words = "no difference" if kind == statistics.SAME else "inconclusive"
    return words + f" ({reason})" * bool(reason)


def line(row: dict) -> str:
    """A difference for the terminal."""
    interval = "" if row.get("low") is None else f" [{row['low']:+.1f}, {row['high']:+.1f}]"
    points = f"{row['points']:+.1f} points{interval}: " if "points" in row else ""
    missing = ", ".join(f"{task} ({why})" for task, why in row["without"].items())
    without = f"; without {missing}" if missing else ""
    return f"{row['of']} minus {row['minus']}: {points}{row['verdict']}{without}"
