"""Figures of the report besides those against length: verdicts, speed, training."""

from collections.abc import Sequence

import numpy as np

from experiments.reporting import (
    loss_curves,
    number_formats,
    speed_ratios,
    statistics,
    takeaways,
)
from experiments.reporting.plotting import (
    MUTED,
    Drawing,
    canvas,
    dots,
    label,
    log2_axis,
    look,
    name_lines,
    paint,
    styled,
)
from experiments.reporting.results import Question, Results
from experiments.reporting.verdicts import Verdict


@styled
def speed(
    results: Results, measure: str, ratios: dict[str, statistics.Ratio], narrow: bool = False
) -> Drawing:
    """Ratios to the baseline: median over paired repeats, bar from the least to the greatest."""
    base, what = label(results.manifest["baseline"]), speed_ratios.MEASURES[measure]
    title = takeaways.ratios_title(what, ratios, results.manifest["baseline"])
    figure, (axes,) = canvas(5.8, 1.4 + 0.27 * len(ratios), title=title, narrow=narrow)
    shown = [(s, ratios[s.name]) for s in results.schemes if s.name in ratios]
    shown.sort(key=lambda pair: pair[1].median)
    dots(axes, [(s, r.median, r.low, r.high, f"{r.median:.2f}×") for s, r in shown], 1.0)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.95), max(high, 1.15))  # a difference of 0.1 % should look like one
    axes.set(xlabel=f"ratio to {base} (less is better)")
    rows = [(s.name, r.median, r.low, r.high) for s, r in shown]
    stem = "speed-" + measure.replace("_", "-")
    alt = f"{what} of each scheme as a ratio to {base}, sorted"
    return Drawing(stem, figure, ("encoding", "median", "least", "greatest"), rows, alt)


@styled
def speed_by_length(
    results: Results, measure: str, by_length: dict[int, dict], narrow: bool = False
) -> Drawing:
    """Ratios to the baseline against length, one line per scheme; bar: least to greatest."""
    baseline, what = results.manifest["baseline"], speed_ratios.BY_LENGTH[measure]
    longest = max(by_length)
    title = takeaways.ratios_title(f"{what}, at {longest:,}", by_length[longest], baseline)
    figure, (axes,) = canvas(5.8, 4.4, title=title, narrow=narrow)
    rows, ends = [], []
    for scheme in results.schemes:
        points = [
            (n, ratios[scheme.name]) for n, ratios in by_length.items() if scheme.name in ratios
        ]
        rows += [(scheme.name, n, r.median, r.low, r.high) for n, r in points]
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
    header = ("encoding", "length", "median", "least", "greatest")
    alt = f"{what} of each scheme as a ratio to {base}, against length"
    return Drawing("speed-by-length-" + measure.replace("_", "-"), figure, header, rows, alt)


@styled
def differences(
    results: Results, question: Question, verdicts: Sequence[Verdict], narrow: bool = False
) -> Drawing:
    """Paired differences to the reference, sorted: means, simultaneous intervals, every seed."""
    tested = {v.name: v.tested for v in verdicts if v.tested}
    shown = [
        (s, tested[s.name], tested[s.name].estimate) for s in results.schemes if s.name in tested
    ]
    shown.sort(key=lambda row: row[2].mean)
    title = takeaways.verdict_title(verdicts, results.manifest["reference"], question.length)
    figure, (axes,) = canvas(5.8, 1.4 + 0.27 * len(shown), title=title, narrow=narrow)
    if results.effect:
        axes.axvspan(-results.effect, results.effect, color=MUTED, alpha=0.13, lw=0, zorder=0.4)
    text = number_formats.number
    dots(axes, [(s, d.mean, t.low, t.high, text(d.mean, 3, True)) for s, t, d in shown], 0.0)
    for y, (s, _, d) in enumerate(shown):
        axes.plot(d.values, [y] * d.n, "|", ms=9, alpha=0.8, **paint(s))
    reference = label(results.manifest["reference"])
    axes.set(xlabel=f"nats per token, minus {reference} (below 0: lower loss)")
    rows = [(s.name, d.mean, t.low, t.high, d.median, *d.values) for s, t, d in shown]
    count = max((d.n for _, _, d in shown), default=0)
    header = ("encoding", "mean", "low", "high", "median", *(f"seed_{k + 1}" for k in range(count)))
    alt = (
        f"Paired difference of each scheme to {reference} at length {question.length}, with 95 %"
        f" simultaneous (Holm) intervals and every seed. {title}"
    )
    stem = "differences" if question.role == "primary" else f"differences-{question.role}"
    return Drawing(stem, figure, header, rows, alt)


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
    found = {s.name: loss_curves.curve(s) for s in results.schemes}
    curves = {name: c for name, c in found.items() if isinstance(c, loss_curves.Curve)}
    length = results.manifest["train_length"]
    title = takeaways.curves_title(curves, [*loss_curves.still_falling(results)])
    figure, (axes,) = canvas(5.8, 4.2, title=title, narrow=narrow)
    rows, ends = [], []
    for scheme in results.schemes:
        curve = found[scheme.name]
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
    found = [
        (s, loss_curves.curve(s), speed_ratios.step_seconds(results, s)) for s in results.schemes
    ]
    shown = [
        (scheme, curve, curve.steps * seconds)
        for scheme, curve, seconds in found
        if isinstance(curve, loss_curves.Curve) and seconds is not None
    ]
    if not shown:
        return None
    times = {scheme.name: (at, curve.losses) for scheme, curve, at in shown}
    title = takeaways.seconds_title(times)
    figure, (axes,) = canvas(5.8, 4.2, title=title, narrow=narrow)
    for scheme, curve, at in shown:
        axes.plot(at, curve.losses, lw=1.5, ms=5, markevery=2, **look(scheme))
    length = results.manifest["train_length"]
    axes.set(xlabel="seconds of training steps", ylabel=f"loss at length {length} (nats per token)")
    ends = [(scheme, round(at[-1], 1), curve.losses[-1]) for scheme, curve, at in shown]
    name_lines(axes, ends)
    rows = [
        (scheme.name, *row)
        for scheme, curve, at in shown
        for row in zip(curve.steps, at, curve.losses, strict=True)
    ]
    alt = (
        f"Loss on the evaluation text at length {length} against the time of the steps up to there,"
        " each as long as the median of the timed ones, without input, evaluation and checkpoints"
    )
    return Drawing("loss-by-seconds", figure, ("encoding", "step", "seconds", "mean"), rows, alt)
