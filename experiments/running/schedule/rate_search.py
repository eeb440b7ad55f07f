"""Which learning rates to try: a grid, then the neighbours of the best one that it lacks.

The least loss of a grid may lie at its edge, where a rate beyond it may be better still. Such rates
are tried next: for as many rounds as asked, or until the best one is better than its neighbours.
"""

import bisect
import dataclasses
from collections.abc import Callable, Iterable

import jax

from experiments.running.configs.sweep import TrainingSweep
from experiments.running.schedule.work import Runs

RATES = ("learning_rate", "encoding_rate")  # fields of the optimizer
Pair = tuple[float, float]  # a learning rate, and the multiple of it for parameters of encodings
Losses = dict[Pair, float]  # infinite where there is none


def pair_words(pair: Pair | None) -> str:
    """0.01, or 0.01 (× 30) if the rate of the encoding's parameters is 30 times that."""
    if pair is None:
        return "—"
    return f"{pair[0]:g}" + (f" (× {pair[1]:g})" if pair[1] != 1 else "")


def grid(config: TrainingSweep, spec: str) -> list[Pair]:
    """The pairs to try for a scheme: several multiples only for one that has parameters."""
    pattern = dataclasses.replace(config.model, encoding=spec).pattern
    sizes = [e.layer_dims(config.model.dims) for e in pattern]
    drawn = zip(pattern, sizes, strict=True)
    shapes = [jax.eval_shape(lambda e=e, n=n: e.init(jax.random.key(0), n)) for e, n in drawn]
    rates = config.rates or (config.optimizer.learning_rate,)
    multiples = config.encoding_rates or (config.optimizer.encoding_rate,)
    multiples = multiples if jax.tree.leaves(shapes) else (1.0,)
    return [(float(rate), float(multiple)) for rate in rates for multiple in multiples]


def best(losses: Losses) -> Pair:
    """The pair with the least loss; ties, or all diverged: the least rate, then multiple."""
    return min(losses, key=lambda pair: (losses[pair], *pair))


def neighbours(tried: Iterable[Pair], pair: Pair) -> list[Pair]:
    """The pairs next to `pair`, in each direction in which several values were tried."""
    rates, multiples = (sorted({p[k] for p in tried}) for k in (0, 1))
    beside = [(rate, pair[1]) for rate in _beside(rates, pair[0])]
    return beside + [(pair[0], multiple) for multiple in _beside(multiples, pair[1])]


def _beside(values: list[float], value: float) -> list[float]:
    """The values below and above one of ascending `values`; past an end, by the ratio there."""
    if len(values) == 1:
        return []
    first, last = values[0] ** 2 / values[1], values[-1] ** 2 / values[-2]
    ends = [float(f"{x:.12g}") for x in (first, last)]  # 0.04, not 0.04000000000000001
    extended = [ends[0], *values, ends[1]]
    index = bisect.bisect_left(extended, value)
    return [extended[index - 1], extended[index + 1]]


def untried(pairs: list[Pair], losses: Losses, rounds: int) -> list[Pair]:
    """The pairs to try next: those of the grid, then in each round the neighbours of the best.

    `losses` are those of all pairs that were tried, infinite where there is none.
    """
    wanted = list(pairs)
    for _ in range(rounds + 1 if pairs else 0):
        if missing := [pair for pair in wanted if pair not in losses]:
            return missing
        wanted += neighbours(wanted, best({pair: losses[pair] for pair in wanted}))
    return []


def search(
    pairs: list[Pair], tried: Callable[[list[Pair]], Runs[list[float]]], rounds: int
) -> Runs[Losses]:
    """The losses of all pairs that are to be tried, each of a run; those of a round go together."""
    losses: Losses = {}
    while missing := untried(pairs, losses, rounds):
        found = yield from tried(missing)
        losses |= zip(missing, found, strict=True)
    return losses
