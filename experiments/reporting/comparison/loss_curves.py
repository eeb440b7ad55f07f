"""The loss during training, and which schemes may be undertrained rather than worse."""

import dataclasses

import numpy as np

from experiments.reporting.results import Results, Scheme
from experiments.reporting.statistics import number


@dataclasses.dataclass(frozen=True)
class Curve:
    """The loss at the training length during training, mean over seeds.

    Attributes:
      steps: at which every seed was evaluated, ascending.
      losses: at these steps, nats per token.
      work: steps up to there, each weighted by its learning rate relative to the peak.
      seeds: each seed's losses.
    """

    steps: np.ndarray
    losses: np.ndarray
    work: np.ndarray
    seeds: dict[int, np.ndarray]


def curve(scheme: Scheme) -> Curve | str:
    """The loss of a scheme during training, or why there is none: all seeds must have it."""
    good, problem = scheme.by_step()
    if problem:
        return problem
    steps = np.array(sorted(set.intersection(*(set(losses) for losses in good.values()))))
    if not steps.size:
        return "no step at which all seeds were evaluated"
    seeds = {seed: np.array([losses[step] for step in steps]) for seed, losses in good.items()}
    rows = next(iter(scheme.runs.values())).metrics
    rates = [(r["step"], r["learning_rate"]) for r in rows if r.get("learning_rate") is not None]
    work = steps.astype(float)
    if len(rates) > 1:
        at, rate = np.array(rates, float).T
        done = np.cumsum(np.diff(at, prepend=0) * (rate + np.append(rate[0], rate[:-1])) / 2)
        work = np.interp(steps, at, done / rate.max())
    return Curve(steps, np.mean([*seeds.values()], axis=0), work, seeds)


def still_falling(results: Results) -> dict[str, str]:
    """Scheme → a sentence, for each whose loss ends falling as fast as the best one's did there.

    Such a scheme may be undertrained rather than worse. The best has the least loss at the end. A
    scheme is listed if both hold:

    - Its loss falls between its last two evaluations by at least what the best one's fell for the
      same work, at the loss that the scheme ends with (over the two evaluations around that loss).
      Work is steps times the learning rate relative to its peak: a decay slows all schemes.
    - It falls by more than the best one's over the same last steps. The decay itself lowers the
      losses of all schemes at the end, which is not a sign of undertraining.

    It compares slopes of means over seeds, without a test, at the resolution of the evaluations,
    and does not predict a longer run. Schemes without losses of all seeds are not listed, nor those
    that end above the best one's first evaluation.
    """
    by_scheme = {s.name: curve(s) for s in results.schemes}
    curves = {name: c for name, c in by_scheme.items() if isinstance(c, Curve) and c.steps.size > 1}
    if not curves:
        return {}
    first = min(curves, key=lambda name: curves[name].losses[-1])
    best, sentences = curves[first], {}
    for name, loss_curve in curves.items():
        (before, last), (begin, end) = loss_curve.losses[-2:], loss_curve.steps[-2:]
        below = np.flatnonzero(best.losses < last)
        if name == first or not below.size or below[0] == 0:
            continue
        k = below[0]
        slope = (best.losses[k - 1] - best.losses[k]) / (best.work[k] - best.work[k - 1])
        fall = slope * (loss_curve.work[-1] - loss_curve.work[-2])
        best_losses = np.interp([begin, end], best.steps, best.losses)
        if before - last >= fall and before - last > best_losses[0] - best_losses[1]:
            sentences[name] = (
                f"still falling: {number(before - last)} nats over the last {end - begin:,} steps;"
                f" the best scheme, {first}, fell {number(fall)} at that level, in as many steps"
                " at those learning rates"
            )
    return sentences
