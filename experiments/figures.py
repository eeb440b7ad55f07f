"""The figures of the report. Each is drawn once and saved as PNG and SVG, its data beside it.

One colour and one marker per scheme, the same in every figure; labels stand at the lines. A panel
is a figure of its own, narrow enough for a phone: the page lays them out side by side.
"""

import csv
import dataclasses
import functools
import io
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments import findings, statistics
from experiments.results import PROTOCOLS, Results, Scheme

INK, MUTED, RULE = "#1b2330", "#5b6675", "#dfe3e8"
COLOURS = (
    *("#0b3c5d", "#c8553d", "#2a9d8f", "#8a5a99", "#b8860b", "#5b6675", "#3a86c8", "#a23b5e"),
    *("#5c8a3a", "#d17a22", "#3d3d8f", "#7a4b2a"),
)
MARKERS = "os^DvPX<>phd"
STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.parse_math": False,  # a name may hold a dollar sign
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "pe_jax",
}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure, the data in it, and words for who cannot see it."""

    stem: str
    figure: Figure
    header: tuple[str, ...]
    rows: list[tuple]
    alt: str


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence]) -> None:
    """Writes a table, UTF-8; None becomes an empty field."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def save(drawing: Drawing, folder: Path) -> str:
    """Writes STEM.png and STEM.csv and returns the SVG, to be put into the page as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / f"{drawing.stem}.csv", drawing.header, drawing.rows)
    buffer = io.StringIO()
    with warnings.catch_warnings(), matplotlib.rc_context(STYLE):
        warnings.filterwarnings("ignore", "Glyph .* missing")
        drawing.figure.savefig(folder / f"{drawing.stem}.png", dpi=150)
        drawing.figure.set_layout_engine("none")  # laid out once is enough
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawing.figure.savefig(buffer, format="svg", metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{drawing.stem}-', svg)  # ids are unique in a page
    return re.sub(r'(href="|url\()#', rf"\1#{drawing.stem}-", svg)


def label(text: str, width: int = 18) -> str:
    """A name for a figure: printable and short."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= width else text[: width - 1] + "…"


def look(scheme: Scheme) -> dict[str, str]:
    """The colour and marker of a scheme, by its place in the manifest."""
    i = scheme.index
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def canvas(width: float = 5.2, height: float = 4.2, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with axes below each other, without global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(np.atleast_1d(figure.subplots(rows, 1)))


def styled(draw: Callable) -> Callable:
    """Runs a drawing function under STYLE, and leaves matplotlib as it was."""

    @functools.wraps(draw)
    def wrapped(*args, **kwargs):
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapped


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> np.ndarray:
    """Places near the wanted ones, in the same order, at least `gap` apart, within [low, high]."""
    order = np.argsort(wanted, kind="stable")
    gap = min(gap, (high - low) / max(len(order) - 1, 1))
    steps = gap * np.arange(len(order))
    blocks: list[list[float]] = []  # pool adjacent violators on what remains without the gaps
    for value in np.asarray(wanted, float)[order] - steps:
        blocks.append([value, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks.pop(-2), blocks.pop()
            blocks.append([(a * n + b * m) / (n + m), n + m])
    flat = np.concatenate([np.full(int(n), value) for value, n in blocks] or [np.empty(0)])
    places = np.empty(len(order))
    places[order] = np.clip(flat, low, max(high - gap * (len(order) - 1), low)) + steps
    return places


def name_lines(axes: Axes, ends: Sequence[tuple[Scheme, float, float]], size: float = 9) -> None:
    """Writes each scheme's name right of its line's end (x, y), names kept apart.

    A line that ends early is named with its end, without a leader across the others.
    """
    if not ends:
        return
    axes.figure.draw_without_rendering()  # fixes the limits and the layout
    points = axes.get_window_extent().height / axes.figure.dpi * 72
    pixels = axes.transAxes.inverted().transform(
        axes.transData.transform([(x, y) for _, x, y in ends])
    )
    places = apart(pixels[:, 1], 1.25 * size / points, 0.0, 1.0)
    last = max(x for _, x, _ in ends)
    for (scheme, x, y), place in zip(ends, places, strict=True):
        colour = look(scheme)["color"]
        leader = {"arrowstyle": "-", "color": colour, "lw": 0.6, "alpha": 0.6, "shrinkB": 3}
        leader |= {"relpos": (0, 0.5), "shrinkA": 1}
        axes.annotate(
            label(scheme.name) + (f" (to {x:g})" if x < last else ""),
            (x, y),
            (1.05, place),
            textcoords="axes fraction",
            color=colour,
            fontsize=size,
            va="center",
            annotation_clip=False,
            arrowprops=leader if x == last else None,
        )


def mark_training(axes: Axes, length: float) -> None:
    """A dashed line at the training length."""
    axes.axvline(length, color=MUTED, lw=0.9, ls=(0, (4, 3)), zorder=0.5)
    axes.annotate(
        f"trained at {length}",
        (length, 1.0),
        (4, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=MUTED,
        fontsize=8.5,
        va="top",
    )


def log2_axis(axes: Axes, ticks: Sequence[float]) -> None:
    """A log2 x axis with plain numbers at the ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ticks), [f"{t:g}" for t in ticks])
    axes.minorticks_off()


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
    """Loss against length: mean and 95 % t interval over seeds; lone seeds where some miss."""
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
                axes.fill_between(x, low, high, color=style["color"], alpha=0.13, lw=0)
            axes.plot(x, mean, lw=1.7, ms=5, mec="white", mew=0.5, **style)
            ends.append((scheme, x[-1], mean[-1]))
        for n, cell in zip(lengths, cells, strict=True):
            if not cell.estimate:  # single seeds, hollow and not joined: there is no mean to show
                alone = list(cell.values.values())
                axes.plot([n] * len(alone), alone, ls="", ms=4, mfc="none", mew=0.9, **style)
            e = cell.estimate
            span = (e.mean, e.low, e.high) if e else (None, None, None)
            each = ";".join(f"{seed}:{v:.6f}" for seed, v in cell.values.items())
            rows.append((scheme.name, protocol, n, *span, each, cell.problem))
    log2_axis(axes, lengths)
    if limits := _range(results):
        axes.set_ylim(*limits)
    axes.set(xlabel="context length (tokens)", ylabel="loss (nats per token)", title=protocol)
    mark_training(axes, results.manifest["train_length"])
    name_lines(axes, ends)
    header = ("encoding", "protocol", "length", "mean", "low", "high", "seeds", "problem")
    alt = f"Loss in nats per token against context length, {protocol} evaluation, one line a scheme"
    return Drawing(f"loss-by-length-{protocol}", figure, header, rows, alt)


@styled
def loss_by_position(results: Results) -> Drawing:
    """Loss against the position in the longest context, in log-spaced bins."""
    figure, (axes,) = canvas(7.2, 4.4)
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
    mark_training(axes, results.manifest["train_length"])
    name_lines(axes, ends)
    alt = "Loss in nats per token against position in the context, one line a scheme"
    return Drawing(
        "loss-by-position", figure, ("encoding", "position", "loss", "problem"), rows, alt
    )


def dots(axes: Axes, rows: Sequence[tuple[Scheme, float, float, float, str]], zero: float) -> None:
    """One row a scheme: a dot, its interval, its number at the right; a line at `zero`."""
    for y, (scheme, middle, low, high, text) in enumerate(rows):
        style = look(scheme)
        if np.isfinite([low, high]).all():
            axes.plot([low, high], [y, y], color=style["color"], lw=2.2, alpha=0.5)
        axes.plot([middle], [y], ms=6.5, mec="white", mew=0.5, **style)
        axes.annotate(
            text, (1.02, y), xycoords=("axes fraction", "data"), va="center", fontsize=9, color=INK
        )
    axes.axvline(zero, color=MUTED, lw=0.9, zorder=0.5)
    axes.set_yticks(range(len(rows)), [label(r[0].name) for r in rows], color=INK, fontsize=9.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


@styled
def speed(results: Results, measure: str, ratios: dict[str, statistics.Ratio]) -> Drawing:
    """Ratios to the baseline: median over paired repeats, bar from the least to the greatest."""
    figure, (axes,) = canvas(5.2, 1.2 + 0.27 * len(ratios))
    shown = [(s, ratios[s.name]) for s in results.schemes if s.name in ratios]
    dots(axes, [(s, r.median, r.low, r.high, f"{r.median:.2f}×") for s, r in shown], 1.0)
    base = label(results.manifest["baseline"])
    axes.set(xlabel=f"ratio to {base} (less is better)", title=findings.MEASURES[measure])
    rows = [(s.name, r.median, r.low, r.high) for s, r in shown]
    stem = "speed-" + measure.replace("_", "-")
    alt = f"{findings.MEASURES[measure]} of each scheme as a ratio to {base}"
    return Drawing(stem, figure, ("encoding", "median", "least", "greatest"), rows, alt)


@styled
def differences(results: Results, verdicts: Sequence[findings.Verdict]) -> Drawing:
    """Paired differences to the reference with their intervals, at the primary metric."""
    found = {v.name: v.difference for v in verdicts if v.difference}
    shown = [(s, found[s.name]) for s in results.schemes if s.name in found]
    figure, (axes,) = canvas(5.8, 1.2 + 0.27 * len(shown))
    text = findings.number
    dots(axes, [(s, d.mean, d.low, d.high, text(d.mean, 3, True)) for s, d in shown], 0.0)
    reference = label(results.manifest["reference"])
    axes.set(xlabel=f"nats per token, minus {reference} (below 0: lower loss)")
    rows = [(s.name, d.mean, d.low, d.high) for s, d in shown]
    alt = f"Paired difference of each scheme to {reference}, with 95 % t intervals"
    return Drawing("differences", figure, ("encoding", "mean", "low", "high"), rows, alt)


@styled
def training(results: Results) -> Drawing | None:
    """Training loss against the step, every seed a thin line; None where nothing was logged."""
    figure, (axes,) = canvas(7.2, 3.8)
    rows, ends = [], []
    for scheme in results.schemes:
        for run in scheme.runs.values():
            points = [(r["step"], r["loss"]) for r in run.metrics if r.get("loss") is not None]
            rows += [(scheme.name, run.seed, *point) for point in points]
            if points:
                x, y = zip(*points, strict=True)
                axes.plot(x, y, lw=0.8, alpha=0.75, color=look(scheme)["color"])
                ends = [e for e in ends if e[0] is not scheme]
                ends += [(scheme, x[-1], y[-1])] * bool(np.isfinite(y[-1]))
    if not rows:
        return None
    axes.set(xlabel="step", ylabel="training loss (nats per token)")
    name_lines(axes, ends)
    alt = "Training loss against the step, one thin line a run"
    return Drawing("training-loss", figure, ("encoding", "seed", "step", "loss"), rows, alt)
