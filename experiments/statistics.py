"""What a set of runs can show: estimates over seeds, paired differences, verdicts in words.

The unit is the seed. Differences are paired: the same seed, the same windows. A bootstrap over
windows would describe one model, never a scheme, so there is none here.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

LEVEL = 0.05
CLAIM_SEEDS = 3  # fewer show no difference, whatever the numbers are
HEADLINE_SEEDS = 5

LOWER, HIGHER, NONE = "lower", "higher", "none"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """One number a seed, their mean, its 95 % t interval, and the p value of "the mean is 0".

    With one seed there is no interval (NaN). Where every seed gave the same number, the interval
    is that number, and p is 1 if it is 0, else NaN: identical seeds say nothing about chance.
    """

    values: tuple[float, ...]
    mean: float
    low: float
    high: float
    p: float

    @property
    def n(self) -> int:
        """How many seeds."""
        return len(self.values)

    @property
    def median(self) -> float:
        """Over seeds."""
        return float(np.median(self.values))


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of one number per seed, with its t interval.

    Raises:
      ValueError: no values, or one that is not finite.
    """
    if len(values) == 0 or not np.isfinite(values).all():
        raise ValueError(f"values={values!r}: pass at least one number, all of them finite")
    return _estimate(tuple(map(float, values)))


@functools.lru_cache(maxsize=4096)  # a report asks for the same cell several times
def _estimate(values: tuple[float, ...]) -> Estimate:
    x = np.asarray(values, np.float64)
    mean = float(x.mean())
    if x.size == 1:
        return Estimate(values, mean, math.nan, math.nan, math.nan)
    if np.ptp(x) <= 1e-12 * abs(mean):
        return Estimate(values, mean, mean, mean, math.nan if mean else 1.0)
    test = stats.ttest_1samp(x, 0.0)
    interval = test.confidence_interval(1 - LEVEL)
    return Estimate(values, mean, float(interval.low), float(interval.high), float(test.pvalue))


def shown(values: Sequence[float], digits: int) -> str:
    """Mean, and the standard deviation if there are several."""
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def paired(scheme: Mapping[int, Sequence], reference: Mapping[int, Sequence]) -> list[float]:
    """Each seed's mean difference over identical windows: seed → the loss of every window.

    Raises:
      ValueError: other seeds, or another number of windows, than the reference has.
    """
    if scheme.keys() != reference.keys():
        raise ValueError(f"seeds {sorted(scheme)} against {sorted(reference)}: they must agree")
    differences = []
    for seed in sorted(scheme):
        a, b = (np.asarray(side[seed], np.float64) for side in (scheme, reference))
        if a.shape != b.shape or a.size == 0:
            raise ValueError(f"seed {seed}: {a.size} windows against {b.size}; they must agree")
        differences.append(float(np.mean(a - b)))
    return differences


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm-adjusted p values, over those that are defined; the others stay NaN."""
    tested = [name for name, p in p_values.items() if not math.isnan(p)]
    adjusted = dict.fromkeys(p_values, math.nan)
    if tested:
        values = multipletests([p_values[n] for n in tested], alpha=LEVEL, method="holm")[1]
        adjusted.update(zip(tested, map(float, values), strict=True))
    return adjusted


def judge(difference: Estimate, adjusted: float, reference: str) -> tuple[str, str]:
    """The verdict on a paired difference: its kind (LOWER, HIGHER or NONE), and in words."""
    nothing = "no difference shown"
    if difference.n == 1:
        return NONE, f"{nothing} (one seed)"
    if difference.mean == difference.low == difference.high:
        why = "identical numbers" if difference.mean == 0 else "all seeds gave the same number"
        return NONE, f"{nothing} ({why})"
    if difference.low <= 0 <= difference.high:
        return NONE, nothing
    if difference.n < CLAIM_SEEDS:
        return NONE, f"{nothing} ({difference.n} seeds; a claim needs {CLAIM_SEEDS})"
    if not adjusted < LEVEL:
        return NONE, f"{nothing} (not after Holm's correction)"
    kind = LOWER if difference.mean < 0 else HIGHER
    return kind, f"{kind} loss than {reference}"


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The median over repeats of a paired ratio, and its spread."""

    median: float
    low: float
    high: float


def ratio(times: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Ratios of repeat i to repeat i of the baseline, measured next to each other.

    Raises:
      ValueError: no repeats, another number of them, or a time that is not positive.
    """
    a, b = np.asarray(times, np.float64), np.asarray(baseline, np.float64)
    if a.shape != b.shape or a.size == 0 or not (a > 0).all() or not (b > 0).all():
        raise ValueError(f"{a.size} repeats against {b.size}: pass as many, all above 0")
    each = a / b
    return Ratio(float(np.median(each)), float(each.min()), float(each.max()))


BINS = 36


def log_bins(values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Means over log-spaced bins of positions 1, 2, …: (geometric centres, means).

    The first bins hold one position each, so the steep start is not smoothed away.
    """
    x = np.asarray(values, np.float64)
    edges = np.unique(np.round(np.geomspace(1, x.size + 1, BINS + 1)).astype(int))
    pairs = list(zip(edges[:-1], edges[1:], strict=True))
    centres = np.array([math.sqrt(low * (high - 1)) for low, high in pairs])
    return centres, np.array([x[low - 1 : high - 1].mean() for low, high in pairs])
