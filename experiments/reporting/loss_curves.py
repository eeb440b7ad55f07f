"""The loss during training, and which schemes may be late, and not worse."""

import dataclasses

import numpy as np

from experiments.reporting.number_formats import number
from experiments.reporting.results import Results, Scheme


@dataclasses.dataclass(frozen=True)
class Curve:
    """The loss at the training length during training, mean over seeds.

    Attributes:
      steps: where every seed was evaluated, ascending.
      losses: at these, nats per token.
      work: steps up to there, each counted by its learning rate as a part of the greatest.
      seeds: each seed's losses.
    """

    steps: np.ndarray
    losses: np.ndarray
    work: np.ndarray
    seeds: dict[int, np.ndarray]


def curve(scheme: Scheme) -> Curve | str:
    """The loss during training of a scheme, or why there is none: every seed has to have it."""
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
    """Scheme → a sentence, for each that falls as fast at its end as the best one did there.

    Such a scheme may be late, and not worse. The best is the one with the least loss at the end.
    Said of a scheme if both hold:

    - Its fall between its last two evaluations is no less than what the best one fell for the same
      work, at the loss that the scheme ends with (over the two evaluations that enclose that loss).
      Work is steps times the learning rate as a part of its peak: a decay slows all of them down.
    - It is more than what the best one fell over the same last steps. The decay itself makes losses
      fall at the end, of all schemes alike, and that says nothing of being late.

    It compares slopes of means over seeds, without a test, as fine as evaluations were frequent,
    and does not say where a longer run would end. Nothing is said of a loss that the best one had
    below its first evaluation, nor of schemes without losses of all seeds.
    """
    by_scheme = {s.name: curve(s) for s in results.schemes}
    curves = {name: c for name, c in by_scheme.items() if isinstance(c, Curve) and c.steps.size > 1}
    if not curves:
        return {}
    first = min(curves, key=lambda name: curves[name].losses[-1])
    best, said = curves[first], {}
    for name, ours in curves.items():
        (before, last), (begin, end) = ours.losses[-2:], ours.steps[-2:]
        below = np.flatnonzero(best.losses < last)
        if name == first or not below.size or below[0] == 0:
            continue
        k = below[0]
        slope = (best.losses[k - 1] - best.losses[k]) / (best.work[k] - best.work[k - 1])
        there = slope * (ours.work[-1] - ours.work[-2])
        then = np.interp([begin, end], best.steps, best.losses)
        if before - last >= there and before - last > then[0] - then[1]:
            said[name] = (
                f"still falling: {number(before - last)} nats over the last {end - begin:,} steps;"
                f" the best scheme, {first}, fell {number(there)} at that level, in as many steps"
                " at those learning rates"
            )
    return said
