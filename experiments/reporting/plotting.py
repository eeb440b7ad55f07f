"""Style and saving of all figures.

Lines are labelled at their ends, without overlaps. A figure is saved as PNG and SVG with its data
as CSV. In a page, colours are variables of its style, which has a dark mode, and phones get a
separate narrow drawing with letters of the same size.
"""

import contextlib
import dataclasses
import functools
import io
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from PIL import Image
from scipy.optimize import isotonic_regression

from experiments.reporting.results import Cell, Scheme
from experiments.reporting.scheme_styles import PALETTE, Style, style
from experiments.running.files.table import write_csv

INK, MUTED, RULE, PAPER = "#1b2330", "#5b6675", "#dfe3e8", "#ffffff"
SHADES = ("#0b3c5d", "#3a86c8", "#c8553d", "#e0a458")  # of lines that are not schemes
DARK_SHADES = ("#8fb8d8", "#3a86c8", "#e07a63", "#e0a458")
POINTS = {"lw": 1.7, "ms": 5.5}  # of lines with a marker for each number
TAG = "scheme-"  # of an artist's gid
NARROW = 3.7  # inches: a phone's screen
RISING = LinearSegmentedColormap.from_list("rising", ["#f1f4f7", "#6f9bc0", "#0b3c5d"])
FALLING = RISING.reversed()
SIGNED = LinearSegmentedColormap.from_list("signed", ["#b0523a", "#f6f4f1", "#0b3c5d"])
VARIABLES = {INK: "ink", MUTED: "muted", RULE: "rule", PAPER: "paper"}
VARIABLES |= {light: f"c{k}" for k, (light, _) in enumerate(PALETTE)}
VARIABLES |= {shade: f"shade{k}" for k, shade in enumerate(SHADES)}
STYLE: Any = {
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
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "pe_jax",
}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure and its alt text; its data, or the name of the report's table that has them."""

    stem: str
    figure: Figure
    header: tuple[str, ...] = ()
    rows: list[tuple] = dataclasses.field(default_factory=list)
    alt: str = ""
    source: str = ""

    @property
    def table(self) -> str:
        """The file of its data, from the folder of the report."""
        return self.source or f"figures/{self.stem}.csv"


def write(drawing: Drawing, folder: Path) -> None:
    """Writes STEM.png, and STEM.csv if it has data."""
    folder.mkdir(parents=True, exist_ok=True)
    if drawing.header:
        write_csv(folder / f"{drawing.stem}.csv", drawing.header, drawing.rows)
    picture(drawing, folder / f"{drawing.stem}.png")


def picture(drawing: Drawing, path: Path) -> None:
    """Writes the PNG alone, with a palette: a third of the bytes, and no difference to the eye."""
    buffer = io.BytesIO()
    _save(drawing.figure, buffer, dpi=150)
    colours = Image.open(buffer).convert("RGB")
    colours.quantize(256, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)
    drawing.figure.set_layout_engine("none")  # laid out once is enough


def _save(figure: Figure, target: Any, **options: Any) -> None:
    with warnings.catch_warnings(), _settings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(target, **options)


def vector(drawing: Drawing, suffix: str = "") -> str:
    """The SVG; its ids begin with the drawing's stem and `suffix`, so that a page may hold several.

    Artists drawn with `paint` or `look` are groups of class "scheme" in it, with the scheme's index
    as data-s.
    """
    buffer, stem = io.StringIO(), drawing.stem + suffix
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    _save(drawing.figure, buffer, format="svg", metadata=no_metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(rf'<g id="{TAG}(\d+)"', r'<g class="scheme" data-s="\1"', svg)
    svg = re.sub(r'\bid="', f'id="{stem}-', svg)
    return re.sub(r'(href="|url\()#', rf"\1#{stem}-", svg)


def themed(svg: str) -> str:
    """The SVG with this module's colours as variables of a page's style."""

    def variable(match: re.Match) -> str:
        return f"var(--{VARIABLES[match[0]]})" if match[0] in VARIABLES else match[0]

    colour = re.compile(r"#[0-9a-f]{6}")
    return re.sub(r'style="[^"]*"', lambda match: colour.sub(variable, match[0]), svg)


def theme(dark: bool) -> str:
    """CSS: the colours of schemes and of other lines as variables."""
    pairs = [(f"c{k}", pair[dark]) for k, pair in enumerate(PALETTE)]
    pairs += [(f"shade{k}", c) for k, c in enumerate(DARK_SHADES if dark else SHADES)]
    return " ".join(f"--{name}: {value};" for name, value in pairs)


def label(text: str, width: int = 20) -> str:
    """A name for a figure: printable and short; variants often differ at their ends."""
    return labels([text], width)[0]


def labels(names: Sequence[str], width: int = 20) -> list[str]:
    """`label` of each name; those that would look alike begin where they differ."""
    texts = [
        "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in n) for n in names
    ]
    head, shown = width // 2, []
    cut = [t if len(t) <= width else t[:head] + "…" + t[head + 1 - width :] for t in texts]
    for text, short in zip(texts, cut, strict=True):
        alike = {t for t, other in zip(texts, cut, strict=True) if other == short}
        if len(alike) > 1:
            short = "…" + text[len(os.path.commonprefix([*alike])) :]
        shown.append(short if len(short) <= width else short[: width - 1] + "…")
    return shown


def _style(scheme: Scheme) -> Style:
    return scheme.style or style(scheme.name, scheme.spec)


def paint(scheme: Scheme) -> dict[str, Any]:
    """The colour of a scheme, and the tag for the page's script."""
    colour = PALETTE[_style(scheme).colour][0]
    return {"color": colour, "gid": f"{TAG}{scheme.index}"}


def look(scheme: Scheme, line: bool = True) -> dict[str, Any]:
    """`paint`, the marker of the scheme and, for a line, its dashes."""
    chosen = _style(scheme)
    dashes = {"ls": chosen.dashes, "mec": PAPER, "mew": 0.5} if line else {"ls": ""}
    return {**paint(scheme), "marker": chosen.marker, **dashes}


class LegendKey(NamedTuple):
    """A scheme's colour and marker for a legend in HTML: `points` of a polygon in [-1, 1]²."""

    color: str
    points: str


def key(scheme: Scheme) -> LegendKey:
    """The scheme's colour, as a variable of the page, and its marker for a legend in HTML."""
    chosen = _style(scheme)
    marker = MarkerStyle(chosen.marker)
    (outline,) = marker.get_path().transformed(marker.get_transform()).to_polygons()
    outline = outline / np.abs(outline).max()
    points = " ".join(f"{x:.2f},{-y:.2f}" for x, y in outline)
    return LegendKey(f"var(--c{chosen.colour})", points)


def canvas(
    width: float = 5.2,
    height: float = 4.2,
    rows: int = 1,
    columns: int = 1,
    title: str = "",
    narrow: bool = False,
    widths: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """A figure with its axes, row by row, without global state; `title` is what it shows.

    `widths` are those of the columns, relative to each other.
    """
    width = min(width, NARROW) if narrow else width
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        lines = textwrap.wrap(title, int(10 * width))
        figure.set_figheight(height + 0.2 * (len(lines) - 1))
        options = {"ha": "left", "fontsize": 11.5, "fontweight": "bold"}
        figure.suptitle("\n".join(lines), x=0.01, **options)
    return figure, list(figure.subplots(rows, columns, squeeze=False, width_ratios=widths).flat)


def _settings() -> contextlib.AbstractContextManager:
    """matplotlib's own settings with STYLE, whatever the user's matplotlibrc says."""
    return matplotlib.style.context(["default", STYLE])


def styled(draw: Callable) -> Callable:
    """Runs a drawing function under STYLE, without reading or changing the user's settings."""

    @functools.wraps(draw)
    def wrapped(*args, **kwargs):
        with _settings():
            return draw(*args, **kwargs)

    return wrapped


def keep_apart(heights: ArrayLike, gap: float, low: float, high: float) -> np.ndarray:
    """Values near `heights`, in the same order, at least `gap` apart, within [low, high]."""
    order = np.argsort(heights, kind="stable")
    gap = min(gap, (high - low) / max(len(order) - 1, 1))
    steps = gap * np.arange(len(order))
    flat = isotonic_regression(np.asarray(heights, float)[order] - steps).x  # without the gaps
    positions = np.empty(len(order))
    positions[order] = np.clip(flat, low, max(high - gap * (len(order) - 1), low)) + steps
    return positions


def lay_out(axes: Axes) -> Figure:
    """Lays out the figure of these axes, so that their limits and sizes are known; returns it."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    return figure


def name_lines(axes: Axes, ends: Sequence[tuple[Scheme, float, float]]) -> None:
    """Writes each scheme's marker and name right of its line's end (x, y), without overlaps.

    The name of a line that ends early includes its end, instead of a leader across the others.
    """
    if not ends:
        return
    figure, size = lay_out(axes), 9
    width = 12 if figure.get_figwidth() <= NARROW else 20
    points = axes.get_window_extent().height / figure.dpi * 72
    pixels = axes.transAxes.inverted().transform(
        axes.transData.transform([(x, y) for _, x, y in ends])
    )
    heights = keep_apart(pixels[:, 1], 1.25 * size / points, 0.0, 1.0)
    last = max(x for _, x, _ in ends)
    names = labels([scheme.name for scheme, *_ in ends], width)
    for (scheme, x, y), height, name in zip(ends, heights, names, strict=True):
        line = paint(scheme)
        leader = {"arrowstyle": "-", **line, "lw": 0.6, "alpha": 0.7, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            "",
            (x, y),
            (1.045, height),
            textcoords="axes fraction",
            annotation_clip=False,
            arrowprops=leader if x == last else {**leader, "alpha": 0},
            gid=line["gid"],
        )
        mark = {**look(scheme, line=False), "mec": PAPER, "mew": 0.5}
        axes.plot([1.06], [height], transform=axes.transAxes, clip_on=False, ms=5.5, **mark)
        axes.annotate(
            name + (f" (to {x:g})" if x < last else ""),
            (1.06, height),
            (6, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=size,
            va="center",
            annotation_clip=False,
            color=INK,
            gid=line["gid"],
        )


def seeds(
    axes: Axes, scheme: Scheme, cells: Mapping[int, Cell]
) -> list[tuple[Scheme, float, float]]:
    """A dot per seed, a line through the means of complete cells, by x; [its end], if it has one.

    Seeds of a cell that is not complete are open circles.
    """
    for x, cell in cells.items():
        dot = {"ms": 2.5, "alpha": 0.6} if cell.estimate else {"ms": 4.5, "mfc": "none"}
        values = [*cell.values.values()]
        axes.plot([x] * len(values), values, **dot, **look(scheme, line=False))
    means = {x: cell.estimate.mean for x, cell in cells.items() if cell.estimate}
    if means:
        axes.plot([*means], [*means.values()], **POINTS, **look(scheme))
    return [(scheme, *end) for end in [*means.items()][-1:]]


def mark_length(axes: Axes, length: float, words: str = "trained at", before: bool = False) -> None:
    """A dashed line at a length, labelled above, behind the line or `before` it."""
    axes.axvline(length, color=MUTED, lw=0.9, ls=(0, (4, 3)), zorder=0.5)
    axes.annotate(
        f"{words} {length:,}",
        (length, 1.0),
        (-4 if before else 4, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=MUTED,
        fontsize=8.5,
        va="top",
        ha="right" if before else "left",
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
    )


def heat(axes: Axes, values: np.ndarray, unit: str) -> None:
    """A heat map, without NaN, with a colour bar.

    Pale is 0 if both signs occur, else the least or the greatest.
    """
    low, high = np.nanmin(values), np.nanmax(values)
    scale = {"cmap": RISING, "vmin": low, "vmax": high}
    if low < 0 < high:
        top = max(-low, high)
        scale = {"cmap": SIGNED, "vmin": -top, "vmax": top}
    elif high <= 0:
        scale["cmap"] = FALLING
    if low == high:  # a constant: 0 is pale, anything else is dark
        scale |= {"vmin": min(low, 0) - (low == 0), "vmax": max(high, 0) + (high == 0)}
        scale["cmap"] = SIGNED if low == 0 else scale["cmap"]
    image = axes.imshow(values, interpolation="nearest", **scale)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    _bar(axes.figure, image, unit, ax=axes, shrink=0.85, pad=0.03, aspect=24)


def numbers(axes: Axes, values: Any) -> None:
    """A map of fractions with a number in each cell; a cell with NaN is empty."""
    values = np.asarray(values, float)
    axes.imshow(values, cmap=RISING, vmin=0, vmax=1, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = PAPER if value > 0.6 else INK
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=colour)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def colour_bar(figure: Figure, axes: Sequence[Axes], unit: str) -> None:
    """The colours of `numbers`, below all axes."""
    image = axes[0].get_images()[0]
    _bar(figure, image, unit, ax=axes, location="bottom", shrink=0.6, aspect=40, pad=0.02)


def _bar(figure: Any, image: Any, unit: str, **options: Any) -> None:
    bar = figure.colorbar(image, **options)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8)
    bar.set_label(unit, fontsize=8.5)


def log2_axis(axes: Axes, ticks: Iterable[float]) -> None:
    """A log2 x axis with plain numbers at the ticks."""
    axes.set_xscale("log", base=2)
    ticks = list(ticks)
    axes.set_xticks(ticks, [f"{t:,g}" for t in ticks])
    axes.minorticks_off()


def dots(axes: Axes, rows: Sequence[tuple[Scheme, float, float, float, str]], zero: float) -> None:
    """One row per scheme: a dot, its interval, its number at the right; a line at `zero`."""
    for y, (scheme, middle, low, high, text) in enumerate(rows):
        marks = look(scheme, line=False)
        if np.isfinite([low, high]).all():
            axes.plot([low, high], [y, y], **paint(scheme), lw=2.2, alpha=0.5)
        axes.plot([middle], [y], ms=6.5, mec=PAPER, mew=0.5, **marks)
        options = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 9}
        axes.annotate(text, (1.02, y), **options, color=INK, gid=marks["gid"])
    axes.axvline(zero, color=MUTED, lw=0.9, zorder=0.5)
    axes.set_yticks(range(len(rows)), labels([r[0].name for r in rows]), color=INK, fontsize=9.5)
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_gid(paint(row[0])["gid"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
