"""Figures of losses and paired differences, against the context's length and the position in it."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from experiments.reporting import differences, takeaways
from experiments.reporting.plotting import (
    Drawing,
    canvas,
    label,
    log2_axis,
    look,
    mark_length,
    name_lines,
    paint,
    styled,
)
from experiments.reporting.results import Question, Results, Scheme
from experiments.reporting.statistics import CLAIM_SEEDS, Estimate
from experiments.reporting.verdicts import verdicts
from pe_jax.training.config import PROTOCOLS

BAND = 0.11  # opacity
POINTS = {"lw": 1.7, "ms": 5.5}


def band(axes: Axes, scheme: Scheme, x: Sequence[float], estimates: Sequence[Estimate]) -> None:
    """A line of means with its 95 % intervals, where there are several seeds."""
    low, high = ([getattr(e, side) for e in estimates] for side in ("low", "high"))
    if np.isfinite(low).all() and estimates[0].n >= CLAIM_SEEDS:  # of two, it says nothing
        axes.fill_between(x, low, high, **paint(scheme), alpha=BAND, lw=0)
    axes.plot(x, [e.mean for e in estimates], **POINTS, **look(scheme))


def _zero(axes: Axes, results: Results, x: Sequence[float]) -> list[tuple[Scheme, float, float]]:
    """The line of the reference, and its end, if it was run."""
    reference = results.scheme(results.manifest["reference"])
    if reference is None or not x:
        return []
    axes.plot(x, [0] * len(x), **POINTS, **look(reference))
    return [(reference, x[-1], 0.0)]


def _keep_in_view(axes: Axes, means: Sequence[float]) -> None:
    """Limits within twice the span of the means: a wide interval of one scheme may be cut."""
    if means:
        low, high = min(*means, 0), max(*means, 0)
        pad = 0.5 * (high - low) or 0.1
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, low - pad), min(top, high + pad))


def _finish(
    axes: Axes, results: Results, means: Sequence[float], x: Sequence[float], ends: list[tuple]
) -> None:
    """What figures of differences share: limits, the reference at 0, the unit, names of lines."""
    _keep_in_view(axes, means)
    zero = _zero(axes, results, x)
    reference = label(results.manifest["reference"])
    axes.set_ylabel(f"loss minus that of {reference} (nats per token)")
    mark_length(axes, results.manifest["train_length"])
    name_lines(axes, [*ends, *zero])


@styled
def differences_by_length(results: Results, protocol: str, narrow: bool = False) -> Drawing:
    """Paired differences to the reference against length: mean over seeds, 95 % t interval."""
    reference = results.manifest["reference"]
    found = differences.by_length(results, protocol)
    kinds = {
        n: {v.name: v.kind for v in verdicts(results, Question("", protocol, n))}
        for n in results.manifest["lengths"]
    }
    means = {name: {n: d.mean for n, d in each.items()} for name, each in found.items()}
    title = takeaways.differences_title(kinds, means, reference)
    figure, (axes,) = canvas(5.8, 4.6, title=title, narrow=narrow)
    rows, ends = [], []
    for scheme in results.schemes:
        each = found.get(scheme.name, {})
        for n, d in each.items():
            values = ";".join(f"{x:.6f}" for x in d.values)
            rows.append((scheme.name, protocol, n, d.mean, d.low, d.high, d.p, values))
        if each:
            band(axes, scheme, [*each], [*each.values()])
            ends.append((scheme, max(each), each[max(each)].mean))
    log2_axis(axes, results.manifest["lengths"])
    heights = [mean for each in means.values() for mean in each.values()]
    axes.set_xlabel(f"context length (tokens), {protocol}")
    _finish(axes, results, heights, results.manifest["lengths"], ends)
    header = ("encoding", "protocol", "length", "mean", "low", "high", "p", "each_seed")
    alt = (
        f"Paired difference of each scheme's loss to {reference} against context length,"
        f" {protocol}, with 95 % intervals over seeds. {title}"
    )
    return Drawing(f"differences-by-length-{protocol}", figure, header, rows, alt)


def _range(results: Results) -> tuple[float, float] | None:
    """The range of all losses, so that both protocols share an axis."""
    cells = [
        s.cell(p, n)
        for s in results.schemes
        for p in PROTOCOLS
        for n in results.manifest["lengths"]
    ]
    values = [v for c in cells for v in c.values.values()]
    values = [v for v in values if np.isfinite(v)]
    if not values:
        return None
    pad = 0.06 * (max(values) - min(values)) or 0.1
    return min(values) - pad, max(values) + pad


@styled
def loss_by_length(results: Results, protocol: str, narrow: bool = False) -> Drawing:
    """Loss against length: the mean over seeds and each seed; single seeds if some miss."""
    rows, ends = [], []
    lengths = results.manifest["lengths"]
    cells = {s.name: {n: s.cell(protocol, n) for n in lengths} for s in results.schemes}
    means = {
        name: {n: c.estimate.mean for n, c in each.items() if c.estimate}
        for name, each in cells.items()
    }
    title = takeaways.losses_title(means, results.manifest["train_length"])
    title = f"{protocol[0].upper()}{protocol[1:]}" + f": {title}" * bool(title)
    figure, (axes,) = canvas(5.8, 4.6, title=title, narrow=narrow)
    for scheme in results.schemes:
        for n, cell in cells[scheme.name].items():
            losses = [*cell.values.values()]
            dots = {"ms": 2.5, "alpha": 0.6} if cell.estimate else {"ms": 4.5, "mfc": "none"}
            axes.plot([n] * len(losses), losses, **dots, **look(scheme, line=False))
            e = cell.estimate
            span = (e.mean, e.low, e.high, e.median) if e else (None,) * 4
            each = ";".join(f"{seed}:{v:.6f}" for seed, v in cell.values.items())
            rows.append((scheme.name, protocol, n, *span, each, cell.problem))
        full = means[scheme.name]
        if full:
            axes.plot([*full], [*full.values()], **POINTS, **look(scheme))
            ends.append((scheme, max(full), full[max(full)]))
    log2_axis(axes, lengths)
    if limits := _range(results):
        axes.set_ylim(*limits)
    axes.set(xlabel="context length (tokens)", ylabel="loss (nats per token)")
    mark_length(axes, results.manifest["train_length"])
    name_lines(axes, ends)
    header = ("encoding", "protocol", "length", "mean", "low", "high", "median")
    header = (*header, "seeds", "problem")
    alt = f"Loss in nats per token against context length, {protocol}, one line per scheme. {title}"
    return Drawing(f"loss-by-length-{protocol}", figure, header, rows, alt)


@styled
def differences_by_position(results: Results, narrow: bool = False) -> Drawing:
    """Paired differences to the reference against the position in the longest context, in bins."""
    found, missing = differences.by_position(results)
    reference = results.manifest["reference"]
    title = takeaways.position_title(found, reference)
    figure, (axes,) = canvas(5.8, 4.2, title=title, narrow=narrow)
    rows: list[tuple] = [(name, *(None,) * 6, why) for name, why in missing.items()]
    ends, longest = [], 2
    for scheme in results.schemes:
        for bin in found.get(scheme.name, ()):
            d = bin.difference
            values = ";".join(f"{x:.6f}" for x in d.values)
            rows.append((scheme.name, bin.first, bin.last, d.mean, d.low, d.high, values, ""))
        if each := found.get(scheme.name):
            band(axes, scheme, [bin.centre for bin in each], [bin.difference for bin in each])
            ends.append((scheme, each[-1].centre, each[-1].difference.mean))
            longest = max(longest, each[-1].last)
    first = min((each[0].centre for each in found.values()), default=1)
    start = int(np.floor(np.log2(first)))
    log2_axis(axes, 2 ** np.arange(start, np.floor(np.log2(longest)) + 1))
    estimates = [bin.difference for each in found.values() for bin in each]
    means = [estimate.mean for estimate in estimates]
    intervals = ", with 95 % intervals over seeds" * all(np.isfinite(e.low) for e in estimates)
    axes.set_xlabel("position in the context (the first is 1)")
    _finish(axes, results, means, [bin.centre for bin in next(iter(found.values()), ())], ends)
    header = ("encoding", "first", "last", "mean", "low", "high", "each_seed", "problem")
    alt = (
        f"Paired difference of each scheme's loss to {reference} against position in the"
        f" context{intervals}. {title}"
    )
    return Drawing("differences-by-position", figure, header, rows, alt)
