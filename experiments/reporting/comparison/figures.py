"""Figures of a comparison: losses and differences against length and position, speed, training.

A figure is drawn from the results, and again `narrow` for a phone; its rows are its data.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from experiments.reporting import verdicts
from experiments.reporting.comparison import loss_curves, sentences, speed_ratios
from experiments.reporting.plotting import (
    INK,
    MUTED,
    PAPER,
    POINTS,
    Drawing,
    canvas,
    dots,
    label,
    log2_axis,
    look,
    mark_length,
    name_lines,
    paint,
    seeds,
    styled,
)
from experiments.reporting.results import Question, Results, Scheme
from experiments.reporting.statistics import CLAIM_SEEDS, Estimate, Ratio, number
from experiments.reporting.verdicts import Verdict
from pe_jax.training.config import PROTOCOLS

BAND = 0.11  # opacity


def band(
    axes: Axes, scheme: Scheme, x: Sequence[float], estimates: Sequence[Estimate]
) -> tuple[Scheme, float, float]:
    """Draws means with 95 % intervals, where there are several seeds; returns the line's end."""
    low, high = ([getattr(e, side) for e in estimates] for side in ("low", "high"))
    if np.isfinite(low).all() and estimates[0].n >= CLAIM_SEEDS:  # of two seeds it says nothing
        axes.fill_between(x, low, high, **paint(scheme), alpha=BAND, lw=0)
    axes.plot(x, [e.mean for e in estimates], **POINTS, **look(scheme))
    return scheme, x[-1], estimates[-1].mean


def each_seed(estimate: Estimate) -> str:
    """The differences of all seeds, for a table."""
    return ";".join(f"{x:.6f}" for x in estimate.values)


def _differences(
    axes: Axes,
    results: Results,
    lines: Mapping[str, tuple[Sequence[float], Sequence[Estimate]]],
    x: Sequence[float],
) -> None:
    """Lines of differences by scheme, the reference at 0 over `x`; limits, unit, names.

    Limits are within twice the span of the means: a wide interval of one scheme may be cut.
    """
    ends = [band(axes, s, *lines[s.name]) for s in results.schemes if s.name in lines]
    means = [e.mean for _, estimates in lines.values() for e in estimates]
    if means:
        low, high = min(*means, 0), max(*means, 0)
        pad = 0.5 * (high - low) or 0.1
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, low - pad), min(top, high + pad))
    if results.reference is not None and x:
        axes.plot(x, [0] * len(x), **POINTS, **look(results.reference))
        ends.append((results.reference, x[-1], 0.0))
    reference = label(results.manifest.reference)
    axes.set_ylabel(f"loss minus that of {reference} (nats per token)")
    mark_length(axes, results.manifest.train_length)
    name_lines(axes, ends)


@styled
def differences_by_length(
    results: Results, protocol: str, narrow: bool = False, closely: bool = False
) -> Drawing:
    """Paired differences to the reference against length: means and 95 % t intervals.

    `closely` draws those at the trained length on their own scale too, at the left. A report's page
    has a separate figure of them.
    """
    reference, lengths = results.manifest.reference, results.manifest.lengths
    trained = results.manifest.train_length
    by_scheme = verdicts.by_length(results, protocol)
    decided = {n: verdicts.verdicts(results, Question("", protocol, n)) for n in lengths}
    kinds = {n: {v.name: v.kind for v in at_length} for n, at_length in decided.items()}
    means = {name: {n: d.mean for n, d in each.items()} for name, each in by_scheme.items()}
    title = sentences.differences_title(kinds, means, reference)
    near = [v for v in decided[trained] if v.difference] if closely else []
    if near:
        shape = {"columns": 2, "widths": (0.6 + 0.1 * len(near), 4)}
        figure, (left, axes) = canvas(6.6 + 0.1 * len(near), 4.6, title=title, **shape)
        _closely(left, results, near)
        left.set_xlabel(f"at {trained:,} (Holm)")
    else:
        figure, (axes,) = canvas(5.8, 4.6, title=title, narrow=narrow)
    lines = {name: ([*each], [*each.values()]) for name, each in by_scheme.items() if each}
    log2_axis(axes, lengths)
    axes.set_xlabel(f"context length (tokens), {protocol}")
    _differences(axes, results, lines, lengths)
    if near:
        figure.axes[0].set_ylabel(axes.get_ylabel())
        axes.set_ylabel("")
    rows = [
        (name, protocol, n, d.mean, d.low, d.high, d.p, each_seed(d))
        for name, each in by_scheme.items()
        for n, d in each.items()
    ]
    header = ("encoding", "protocol", "length", "mean", "low", "high", "p", "each_seed")
    beside = f" (at {trained:,} also simultaneous ones, by Holm)" * bool(near)
    alt = (
        f"Paired difference of each scheme's loss to {reference} against context length,"
        f" {protocol}, with 95 % intervals over seeds and windows{beside}. {title}"
    )
    return Drawing(f"differences-by-length-{protocol}", figure, header, rows, alt)


def _closely(axes: Axes, results: Results, near: Sequence[Verdict]) -> None:
    """Differences at one length, the least first, with simultaneous intervals, on their own scale.

    A mean beyond twice the median of how far the intervals reach from 0 is a number at the edge.
    """
    near = sorted(near, key=lambda v: v.tested.estimate.mean)
    drawn = [(v.tested.low, v.tested.estimate.mean, v.tested.high) for v in near]
    limit = 2 * np.median(np.nanmax(np.abs(drawn), 1))
    ends = [0.0, *(x for row in drawn if abs(row[1]) <= limit for x in row if np.isfinite(x))]
    pad = 0.05 * (max(ends) - min(ends)) or 0.1
    axes.set_ylim(min(ends) - pad, max(ends) + pad)
    for x, (v, (low, mean, high)) in enumerate(zip(near, drawn, strict=True)):
        scheme = results.schemes[v.index]
        marks = {**look(scheme, line=False), "ms": 5.5, "mec": PAPER, "mew": 0.5}
        if abs(mean) <= limit:
            axes.plot([x, x], [low, high], **paint(scheme), lw=2, alpha=0.5)
            axes.plot([x], [mean], **marks)
        else:
            edge, inwards = (0.98, "top") if mean > 0 else (0.02, "bottom")
            across = axes.get_xaxis_transform()
            axes.plot([x], [edge], transform=across, **marks)
            words = {"rotation": 90, "fontsize": 7.5, "ha": "center", "va": inwards, "color": INK}
            at = edge - 0.03 if mean > 0 else edge + 0.03
            axes.text(x, at, number(mean, 2, True), transform=across, **words, gid=marks["gid"])
    if results.reference is not None:
        axes.axhline(0, **paint(results.reference), lw=1.7)
    axes.set(xticks=[], xlim=(-0.8, len(near) - 0.2))


@styled
def differences_by_position(results: Results, narrow: bool = False) -> Drawing:
    """Paired differences to the reference against the position in the longest context, in bins."""
    by_scheme, missing = verdicts.by_position(results)
    reference = results.manifest.reference
    title = sentences.position_title(by_scheme, reference, missing)
    figure, (axes,) = canvas(5.8, 4.2, title=title, narrow=narrow)
    lines = {
        n: ([b.centre for b in bins], [b.difference for b in bins]) for n, bins in by_scheme.items()
    }
    first = min((x[0] for x, _ in lines.values()), default=1)
    longest = max([2, *(bins[-1].last for bins in by_scheme.values())])
    start = int(np.floor(np.log2(first)))
    log2_axis(axes, 2 ** np.arange(start, np.floor(np.log2(longest)) + 1))
    axes.set_xlabel("position in the context (the first is 1)")
    _differences(axes, results, lines, next((x for x, _ in lines.values()), ()))
    rows: list[tuple] = [(name, *(None,) * 6, why) for name, why in missing.items()]
    rows += [
        (name, first, last, d.mean, d.low, d.high, each_seed(d), "")
        for name, bins in by_scheme.items()
        for first, last, d in bins
    ]
    has_intervals = all(np.isfinite(e.low) for _, estimates in lines.values() for e in estimates)
    header = ("encoding", "first", "last", "mean", "low", "high", "each_seed", "problem")
    alt = (
        f"Paired difference of each scheme's loss to {reference} against position in the"
        f" context{', with 95 % intervals over seeds' * has_intervals}. {title}"
    )
    return Drawing("differences-by-position", figure, header, rows, alt)


@styled
def loss_by_length(results: Results, protocol: str, narrow: bool = False) -> Drawing:
    """Loss against length: the mean over seeds and each seed; single seeds if some miss."""
    ends, lengths, trained = [], results.manifest.lengths, results.manifest.train_length
    cells = {
        (s.name, p, n): s.cell(p, n) for s in results.schemes for p in PROTOCOLS for n in lengths
    }
    means = {
        s.name: {n: e.mean for n in lengths if (e := cells[s.name, protocol, n].estimate)}
        for s in results.schemes
    }
    title = sentences.losses_title(means, trained)
    title = f"{sentences.capital(protocol)}" + f": {title}" * bool(title)
    figure, (axes,) = canvas(5.8, 4.6, title=title, narrow=narrow)
    for scheme in results.schemes:
        ends += seeds(axes, scheme, {n: cells[scheme.name, protocol, n] for n in lengths})
    log2_axis(axes, lengths)
    if finite := [x for cell in cells.values() for x in cell.values.values() if np.isfinite(x)]:
        pad = 0.06 * (max(finite) - min(finite)) or 0.1  # both protocols share an axis
        axes.set_ylim(min(finite) - pad, max(finite) + pad)
    axes.set(xlabel="context length (tokens)", ylabel="loss (nats per token)")
    mark_length(axes, trained)
    name_lines(axes, ends)
    alt = f"Loss in nats per token against context length, {protocol}, one line per scheme. {title}"
    return Drawing(f"loss-by-length-{protocol}", figure, alt=alt, source="loss_by_length.csv")


@styled
def speed(
    results: Results, measure: str, ratios: dict[str, Ratio], narrow: bool = False
) -> Drawing:
    """Ratios to the baseline: median over paired repeats, bar from the least to the greatest."""
    base, what = label(results.manifest.baseline), speed_ratios.MEASURES[measure]
    title = sentences.ratios_title(what, ratios, results.manifest.baseline)
    figure, (axes,) = canvas(5.8, 1.4 + 0.27 * len(ratios), title=title, narrow=narrow)
    pairs = [(s, ratios[s.name]) for s in results.schemes if s.name in ratios]
    pairs.sort(key=lambda pair: pair[1].median)
    dots(axes, [(s, r.median, r.low, r.high, f"{r.median:.2f}×") for s, r in pairs], 1.0)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.95), max(high, 1.15))  # a difference of 0.1 % should look like one
    axes.set(xlabel=f"ratio to {base} (less is better)")
    stem = "speed-" + measure.replace("_", "-")
    alt = f"{what} of each scheme as a ratio to {base}, sorted"
    return Drawing(stem, figure, alt=alt, source="speed.csv")


@styled
def speed_by_length(
    results: Results, measure: str, by_length: dict[int, dict], narrow: bool = False
) -> Drawing:
    """Ratios to the baseline against length, one line per scheme; bar: least to greatest."""
    baseline, what = results.manifest.baseline, speed_ratios.MEASURES[measure]
    longest = max(by_length)
    title = sentences.ratios_title(f"{what}, at {longest:,}", by_length[longest], baseline)
    figure, (axes,) = canvas(5.8, 4.4, title=title, narrow=narrow)
    ends = []
    for scheme in results.schemes:
        ratios = [(n, by_scheme.get(scheme.name)) for n, by_scheme in sorted(by_length.items())]
        points = [(n, r) for n, r in ratios if r is not None]
        if points:
            aside = 2 ** (0.3 * (scheme.index / len(results.schemes) - 0.5))  # bars side by side
            x, y = [n * aside for n, _ in points], [r.median for _, r in points]
            axes.plot(x, y, lw=1.5, ms=5, **look(scheme))
            for at, (_, r) in zip(x, points, strict=True):
                axes.plot([at, at], [r.low, r.high], lw=1, alpha=0.5, **paint(scheme))
            ends.append((scheme, points[-1][0], y[-1]))
    log2_axis(axes, sorted(by_length))
    base = label(baseline)
    axes.set(xlabel="length (tokens)", ylabel=f"ratio to {base} (less is better)")
    name_lines(axes, ends)
    alt = f"{what} of each scheme as a ratio to {base}, against length"
    stem = "speed-by-length-" + measure.replace("_", "-")
    return Drawing(stem, figure, alt=alt, source="speed.csv")


@styled
def differences(
    results: Results, question: Question, decided: Sequence[Verdict], narrow: bool = False
) -> Drawing:
    """Paired differences to the reference, sorted: means, simultaneous intervals, every seed."""
    compared = [v for v in decided if v.difference]
    points = [(results.schemes[v.index], v.tested, v.tested.estimate) for v in compared]
    points.sort(key=lambda row: row[2].mean)
    title = sentences.verdict_title(decided, results.manifest.reference, question.length)
    figure, (axes,) = canvas(5.8, 1.4 + 0.27 * len(points), title=title, narrow=narrow)
    if results.effect:
        axes.axvspan(-results.effect, results.effect, color=MUTED, alpha=0.13, lw=0, zorder=0.4)
    dots(axes, [(s, d.mean, t.low, t.high, number(d.mean, 3, True)) for s, t, d in points], 0.0)
    for y, (s, _, d) in enumerate(points):
        axes.plot(d.values, [y] * d.n, "|", ms=9, alpha=0.8, **paint(s))
    reference = label(results.manifest.reference)
    axes.set(xlabel=f"nats per token, minus {reference} (below 0: lower loss)")
    alt = (
        f"Paired difference of each scheme to {reference} at length {question.length}, with 95 %"
        f" simultaneous (Holm) intervals and every seed. {title}"
    )
    stem = "differences" if question.role == "primary" else f"differences-{question.role}"
    return Drawing(stem, figure, alt=alt, source="verdicts.csv")


@styled
def training(results: Results, narrow: bool = False) -> Drawing | None:
    """Training loss against the step, one thin line per seed; None if nothing was logged."""
    count = sum(len(scheme.runs) for scheme in results.schemes)
    title = f"Training loss of all {count} runs"
    figure, (axes,) = canvas(5.8, 4.2, title=title, narrow=narrow)
    rows, ends = [], []
    for scheme in results.schemes:
        for run in scheme.runs.values():
            points = [(r["step"], r["loss"]) for r in run.metrics if r.get("loss") is not None]
            rows += [(scheme.name, run.seed, *point) for point in points]
            if points:
                x, y = zip(*points, strict=True)
                axes.plot(x, y, lw=0.8, alpha=0.75, **paint(scheme))
                ends = [e for e in ends if e[0] is not scheme]
                ends += [(scheme, x[-1], y[-1])] * bool(np.isfinite(y[-1]))
    if not rows:
        return None
    axes.set(xlabel="step", ylabel="training loss (nats per token)")
    name_lines(axes, ends)
    alt = "Training loss against the step, one thin line per run"
    return Drawing("training-loss", figure, ("encoding", "seed", "step", "loss"), rows, alt)


@styled
def loss_by_step(results: Results, narrow: bool = False) -> Drawing | None:
    """Loss at the training length against the step, mean over seeds; None if not evaluated."""
    by_scheme = {s.name: loss_curves.curve(s) for s in results.schemes}
    curves = {name: c for name, c in by_scheme.items() if isinstance(c, loss_curves.Curve)}
    length = results.manifest.train_length
    title = sentences.curves_title(curves, [*loss_curves.still_falling(results)])
    figure, (axes,) = canvas(5.8, 4.2, title=title, narrow=narrow)
    rows, ends = [], []
    for scheme in results.schemes:
        curve = by_scheme[scheme.name]
        if isinstance(curve, str):
            rows.append((scheme.name, None, None, "", curve))
            continue
        for k, (step, loss) in enumerate(zip(curve.steps, curve.losses, strict=True)):
            each = ";".join(f"{seed}:{losses[k]:.6f}" for seed, losses in curve.seeds.items())
            rows.append((scheme.name, step, loss, each, ""))
        axes.plot(curve.steps, curve.losses, lw=1.5, ms=5, markevery=2, **look(scheme))
        ends.append((scheme, curve.steps[-1], curve.losses[-1]))
    if not ends:
        return None
    axes.set(xlabel="step", ylabel=f"loss at length {length} (nats per token)")
    name_lines(axes, ends)
    header = ("encoding", "step", "mean", "seeds", "problem")
    alt = f"Loss on the evaluation text at length {length} against the step, one line per scheme"
    return Drawing("loss-by-step", figure, header, rows, alt)


@styled
def loss_by_seconds(results: Results, narrow: bool = False) -> Drawing | None:
    """The same losses against steps × the timed step; None if no scheme has both."""
    candidates = [
        (s, loss_curves.curve(s), speed_ratios.step_seconds(results, s)) for s in results.schemes
    ]
    timed = [
        (scheme, curve, curve.steps * seconds)
        for scheme, curve, seconds in candidates
        if isinstance(curve, loss_curves.Curve) and seconds is not None
    ]
    if not timed:
        return None
    title = sentences.seconds_title({s.name: (at, curve.losses) for s, curve, at in timed})
    figure, (axes,) = canvas(5.8, 4.2, title=title, narrow=narrow)
    for scheme, curve, at in timed:
        axes.plot(at, curve.losses, lw=1.5, ms=5, markevery=2, **look(scheme))
    length = results.manifest.train_length
    axes.set(xlabel="seconds of training steps", ylabel=f"loss at length {length} (nats per token)")
    ends = [(scheme, round(at[-1], 1), curve.losses[-1]) for scheme, curve, at in timed]
    name_lines(axes, ends)
    rows = [
        (scheme.name, *row)
        for scheme, curve, at in timed
        for row in zip(curve.steps, at, curve.losses, strict=True)
    ]
    alt = (
        f"Loss on the evaluation text at length {length} against the time of the steps up to there,"
        " each as long as the median of the timed ones, without input, evaluation and checkpoints"
    )
    return Drawing("loss-by-seconds", figure, ("encoding", "step", "seconds", "mean"), rows, alt)
