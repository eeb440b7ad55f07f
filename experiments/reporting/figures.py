"""The figures of the report: loss against length and position, speed, differences, training."""

from collections.abc import Sequence

import numpy as np

from experiments.reporting import loss_curves, number_formats, speed_ratios, statistics
from experiments.reporting.plotting import (
    MUTED,
    Drawing,
    canvas,
    dots,
    label,
    log2_axis,
    look,
    mark_length,
    name_lines,
    paint,
    styled,
)
from experiments.reporting.results import Question, Results
from experiments.reporting.verdicts import Verdict
from pe_jax.training.config import PROTOCOLS


def _range(results: Results) -> tuple[float, float] | None:
    """The range of all losses, so that both protocols share an axis."""
    cells = [
        s.cell(p, n)
        for s in results.schemes
        for p in PROTOCOLS
        for n in results.manifest["lengths"]
    ]
    values = [v for c in cells for v in c.values.values()]
    values += [v for c in cells if c.estimate for v in (c.estimate.low, c.estimate.high)]
    values = [v for v in values if np.isfinite(v)]
    if not values:
        return None
    pad = 0.04 * (max(values) - min(values)) or 0.1
    return min(values) - pad, max(values) + pad


@styled
def loss_by_length(results: Results, protocol: str) -> Drawing:
    """Loss against length: mean and 95 % t interval over seeds; single seeds if some miss."""
    figure, (axes,) = canvas()
    rows, ends = [], []
    lengths = results.manifest["lengths"]
    for scheme in results.schemes:
        cells = [scheme.cell(protocol, n) for n in lengths]
        full = [(n, c.estimate) for n, c in zip(lengths, cells, strict=True) if c.estimate]
        style = look(scheme)
        if full:
            x, mean = [n for n, _ in full], [e.mean for _, e in full]
            low, high = ([getattr(e, side) for _, e in full] for side in ("low", "high"))
            if np.isfinite(low).all():
                axes.fill_between(x, low, high, **paint(scheme), alpha=0.1, lw=0)
            axes.plot(x, mean, lw=1.7, ms=5, mec="white", mew=0.5, **style)
            each = [(n, v) for n, e in full for v in e.values]
            axes.plot(*zip(*each, strict=True), ".", ms=2.5, alpha=0.6, **paint(scheme))
            ends.append((scheme, x[-1], mean[-1]))
        for n, cell in zip(lengths, cells, strict=True):
            if not cell.estimate:  # single seeds, hollow and without a line, as there is no mean
                losses = list(cell.values.values())
                axes.plot([n] * len(losses), losses, ls="", ms=4, mfc="none", mew=0.9, **style)
            e = cell.estimate
            span = (e.mean, e.low, e.high, e.median) if e else (None,) * 4
            each = ";".join(f"{seed}:{v:.6f}" for seed, v in cell.values.items())
            rows.append((scheme.name, protocol, n, *span, each, cell.problem))
    log2_axis(axes, lengths)
    if limits := _range(results):
        axes.set_ylim(*limits)
    axes.set(xlabel="context length (tokens)", ylabel="loss (nats per token)", title=protocol)
    mark_length(axes, results.manifest["train_length"])
    name_lines(axes, ends)
    header = ("encoding", "protocol", "length", "mean", "low", "high", "median")
    header = (*header, "seeds", "problem")
    alt = (
        f"Loss in nats per token against context length, {protocol} evaluation, one line per scheme"
    )
    return Drawing(f"loss-by-length-{protocol}", figure, header, rows, alt)


@styled
def loss_by_position(results: Results) -> Drawing:
    """Loss against the position in the longest context, in log-spaced bins."""
    figure, (axes,) = canvas(5.8, 4.2)
    rows, ends, longest = [], [], 1
    for scheme in results.schemes:
        good, problem = scheme.by_position()
        if problem or not good:
            rows.append((scheme.name, None, None, problem))
            continue
        centres, means = statistics.log_bins(np.mean(list(good.values()), axis=0))
        rows += [(scheme.name, x, y, "") for x, y in zip(centres, means, strict=True)]
        axes.plot(centres, means, lw=1.5, ms=4.5, markevery=4, mec="white", mew=0.4, **look(scheme))
        ends.append((scheme, centres[-1], means[-1]))
        longest = max(longest, centres[-1])
    log2_axis(axes, 2 ** np.arange(0, np.ceil(np.log2(longest)) + 1))
    axes.set(xlabel="position in the context (the first is 1)", ylabel="loss (nats per token)")
    mark_length(axes, results.manifest["train_length"])
    name_lines(axes, ends)
    alt = "Loss in nats per token against position in the context, one line per scheme"
    return Drawing(
        "loss-by-position", figure, ("encoding", "position", "loss", "problem"), rows, alt
    )


@styled
def speed(results: Results, measure: str, ratios: dict[str, statistics.Ratio]) -> Drawing:
    """Ratios to the baseline: median over paired repeats, bar from the least to the greatest."""
    figure, (axes,) = canvas(5.2, 1.2 + 0.27 * len(ratios))
    shown = [(s, ratios[s.name]) for s in results.schemes if s.name in ratios]
    dots(axes, [(s, r.median, r.low, r.high, f"{r.median:.2f}×") for s, r in shown], 1.0)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.95), max(high, 1.15))  # a difference of 0.1 % should look like one
    base = label(results.manifest["baseline"])
    axes.set(xlabel=f"ratio to {base} (less is better)", title=speed_ratios.MEASURES[measure])
    rows = [(s.name, r.median, r.low, r.high) for s, r in shown]
    stem = "speed-" + measure.replace("_", "-")
    alt = f"{speed_ratios.MEASURES[measure]} of each scheme as a ratio to {base}"
    return Drawing(stem, figure, ("encoding", "median", "least", "greatest"), rows, alt)


@styled
def speed_by_length(results: Results, measure: str, by_length: dict[int, dict]) -> Drawing:
    """Ratios to the baseline against length, one line per scheme; bar: least to greatest."""
    figure, (axes,) = canvas()
    rows, ends = [], []
    for scheme in results.schemes:
        points = [
            (n, ratios[scheme.name]) for n, ratios in by_length.items() if scheme.name in ratios
        ]
        rows += [(scheme.name, n, r.median, r.low, r.high) for n, r in points]
        if points:
            aside = 2 ** (0.3 * (scheme.index / len(results.schemes) - 0.5))  # bars side by side
            x, y = [n * aside for n, _ in points], [r.median for _, r in points]
            axes.plot(x, y, lw=1.5, ms=4.5, mec="white", mew=0.4, **look(scheme))
            for at, (_, r) in zip(x, points, strict=True):
                axes.plot([at, at], [r.low, r.high], lw=1, alpha=0.5, **paint(scheme))
            ends.append((scheme, points[-1][0], y[-1]))
    log2_axis(axes, sorted(by_length))
    base, what = label(results.manifest["baseline"]), speed_ratios.BY_LENGTH[measure]
    axes.set(xlabel="length (tokens)", ylabel=f"ratio to {base} (less is better)", title=what)
    name_lines(axes, ends)
    header = ("encoding", "length", "median", "least", "greatest")
    alt = f"{what} of each scheme as a ratio to {base}, against length"
    return Drawing("speed-by-length-" + measure.replace("_", "-"), figure, header, rows, alt)


@styled
def differences(results: Results, question: Question, verdicts: Sequence[Verdict]) -> Drawing:
    """Paired differences to the reference: means, simultaneous intervals, and a tick per seed."""
    tested = {v.name: v.tested for v in verdicts if v.tested}
    shown = [
        (s, tested[s.name], tested[s.name].estimate) for s in results.schemes if s.name in tested
    ]
    figure, (axes,) = canvas(5.8, 1.2 + 0.27 * len(shown))
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
        " simultaneous (Holm) intervals and every seed"
    )
    stem = "differences" if question.role == "primary" else f"differences-{question.role}"
    return Drawing(stem, figure, header, rows, alt)


@styled
def training(results: Results) -> Drawing | None:
    """Training loss against the step, one thin line per seed; None if nothing was logged."""
    figure, (axes,) = canvas(5.8, 3.8)
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
def loss_by_step(results: Results) -> Drawing | None:
    """Loss at the training length against the step, mean over seeds; None if not evaluated."""
    figure, (axes,) = canvas(5.8, 3.8)
    rows, ends = [], []
    for scheme in results.schemes:
        curve = loss_curves.curve(scheme)
        if isinstance(curve, str):
            rows.append((scheme.name, None, None, "", curve))
            continue
        for k, (step, loss) in enumerate(zip(curve.steps, curve.losses, strict=True)):
            each = ";".join(f"{seed}:{losses[k]:.6f}" for seed, losses in curve.seeds.items())
            rows.append((scheme.name, step, loss, each, ""))
        axes.plot(curve.steps, curve.losses, lw=1.5, ms=4.5, mec="white", mew=0.4, **look(scheme))
        ends.append((scheme, curve.steps[-1], curve.losses[-1]))
    if not ends:
        return None
    length = results.manifest["train_length"]
    axes.set(xlabel="step", ylabel=f"loss at length {length} (nats per token)")
    name_lines(axes, ends)
    header = ("encoding", "step", "mean", "seeds", "problem")
    alt = f"Loss on the evaluation text at length {length} against the step, one line per scheme"
    return Drawing("loss-by-step", figure, header, rows, alt)
