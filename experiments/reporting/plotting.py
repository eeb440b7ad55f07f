"""Style and saving of all figures: one colour and marker per scheme.

Lines are labelled at their ends, without overlaps. A figure is drawn once and saved as PNG and SVG
with its data as CSV; each is narrow enough for a phone, and the page lays them out in columns.
"""

import csv
import dataclasses
import functools
import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from experiments.reporting.results import Scheme

INK, MUTED, RULE = "#1b2330", "#5b6675", "#dfe3e8"
COLOURS = (
    *("#0b3c5d", "#c8553d", "#2a9d8f", "#8a5a99", "#b8860b", "#5b6675", "#3a86c8", "#a23b5e"),
    *("#5c8a3a", "#d17a22", "#3d3d8f", "#7a4b2a", "#dd44aa", "#004422", "#6688ff", "#770077"),
    *("#888866", "#bb66dd", "#770011", "#552244", "#dd2266", "#444400", "#aa7788", "#009933"),
)  # the second dozen: each as far in Lab from those before as a contrast of 3.2 to white allows
MARKERS = "os^DvPX<>phd"
TAG = "scheme-"  # of an artist's gid
RISING = LinearSegmentedColormap.from_list("rising", ["#f1f4f7", "#6f9bc0", "#0b3c5d"])
FALLING = RISING.reversed()
SIGNED = LinearSegmentedColormap.from_list("signed", ["#b0523a", "#f6f4f1", "#0b3c5d"])
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
    "figure.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "pe_jax",
}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure, its data and its alt text."""

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
    """Writes STEM.png and STEM.csv and returns the SVG for the page.

    What was drawn with `paint` or `look` is a group of class "scheme" in it, with the scheme's
    index as data-s.
    """
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
    svg = re.sub(rf'<g id="{TAG}(\d+)"', r'<g class="scheme" data-s="\1"', svg)
    svg = re.sub(r'\bid="', f'id="{drawing.stem}-', svg)  # ids are unique in a page
    return re.sub(r'(href="|url\()#', rf"\1#{drawing.stem}-", svg)


def label(text: str, width: int = 20) -> str:
    """A name for a figure: printable and short."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= width else text[: width - 1] + "…"


def paint(scheme: Scheme) -> dict[str, Any]:
    """The colour of a scheme, by its place in the manifest, and the tag for the page's script."""
    return {"color": COLOURS[scheme.index % len(COLOURS)], "gid": f"{TAG}{scheme.index}"}


def look(scheme: Scheme) -> dict[str, Any]:
    """`paint`, and the marker of the scheme."""
    return {**paint(scheme), "marker": MARKERS[scheme.index % len(MARKERS)]}


class LegendKey(NamedTuple):
    """A scheme's colour and marker for a legend in HTML: `points` of a polygon in [-1, 1]²."""

    color: str
    points: str


def key(scheme: Scheme) -> LegendKey:
    """The scheme's colour and marker for a legend in HTML."""
    style = look(scheme)
    marker = MarkerStyle(style["marker"])
    (outline,) = marker.get_path().transformed(marker.get_transform()).to_polygons()
    outline = outline / np.abs(outline).max()
    points = " ".join(f"{x:.2f},{-y:.2f}" for x, y in outline)
    return LegendKey(style["color"], points)


def canvas(
    width: float = 5.2, height: float = 4.2, rows: int = 1, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure with its axes, row by row, without global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def styled(draw: Callable) -> Callable:
    """Runs a drawing function under STYLE, without changing matplotlib's settings."""

    @functools.wraps(draw)
    def wrapped(*args, **kwargs):
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapped


def keep_apart(heights: ArrayLike, gap: float, low: float, high: float) -> np.ndarray:
    """Values near `heights`, in the same order, at least `gap` apart, within [low, high]."""
    order = np.argsort(heights, kind="stable")
    gap = min(gap, (high - low) / max(len(order) - 1, 1))
    steps = gap * np.arange(len(order))
    blocks: list[list[float]] = []  # pool adjacent violators on what remains without the gaps
    for value in np.asarray(heights, float)[order] - steps:
        blocks.append([value, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks.pop(-2), blocks.pop()
            blocks.append([(a * n + b * m) / (n + m), n + m])
    flat = np.concatenate([np.full(int(n), value) for value, n in blocks] or [np.empty(0)])
    places = np.empty(len(order))
    places[order] = np.clip(flat, low, max(high - gap * (len(order) - 1), low)) + steps
    return places


def lay_out(axes: Axes) -> Figure:
    """Lays out the figure of these axes, so that their limits and sizes are known; returns it."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    return figure


def name_lines(axes: Axes, ends: Sequence[tuple[Scheme, float, float]], size: float = 9) -> None:
    """Writes each scheme's name right of its line's end (x, y), without overlaps.

    The name of a line that ends early includes its end, instead of a leader across the others.
    """
    if not ends:
        return
    figure = lay_out(axes)
    points = axes.get_window_extent().height / figure.dpi * 72
    pixels = axes.transAxes.inverted().transform(
        axes.transData.transform([(x, y) for _, x, y in ends])
    )
    places = keep_apart(pixels[:, 1], 1.25 * size / points, 0.0, 1.0)
    last = max(x for _, x, _ in ends)
    for (scheme, x, y), place in zip(ends, places, strict=True):
        style = paint(scheme)
        leader = {"arrowstyle": "-", **style, "lw": 0.6, "alpha": 0.6, "shrinkB": 3}
        leader |= {"relpos": (0, 0.5), "shrinkA": 1}
        axes.annotate(
            label(scheme.name) + (f" (to {x:g})" if x < last else ""),
            (x, y),
            (1.05, place),
            textcoords="axes fraction",
            fontsize=size,
            va="center",
            annotation_clip=False,
            arrowprops=leader if x == last else None,
            **style,
        )


def mark_length(axes: Axes, length: float, words: str = "trained at") -> None:
    """A dashed line at a length, labelled above."""
    axes.axvline(length, color=MUTED, lw=0.9, ls=(0, (4, 3)), zorder=0.5)
    axes.annotate(
        f"{words} {length}",
        (length, 1.0),
        (4, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=MUTED,
        fontsize=8.5,
        va="top",
    )


def heat(
    axes: Axes, values: np.ndarray, unit: str = "", limits: tuple[float, float] | None = None
) -> None:
    """A heat map, without NaN, with a colour bar if there is a unit.

    Pale is 0 if both signs occur, else the least or the greatest; or the first of `limits`, which
    make several maps comparable.
    """
    low, high = limits or (np.nanmin(values), np.nanmax(values))
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
    if unit:
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.85, pad=0.03, aspect=24)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8)
        bar.set_label(unit, fontsize=8.5)


def log2_axis(axes: Axes, ticks: Iterable[float]) -> None:
    """A log2 x axis with plain numbers at the ticks."""
    axes.set_xscale("log", base=2)
    ticks = list(ticks)
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()


def dots(axes: Axes, rows: Sequence[tuple[Scheme, float, float, float, str]], zero: float) -> None:
    """One row per scheme: a dot, its interval, its number at the right; a line at `zero`."""
    for y, (scheme, middle, low, high, text) in enumerate(rows):
        style = look(scheme)
        if np.isfinite([low, high]).all():
            axes.plot([low, high], [y, y], **paint(scheme), lw=2.2, alpha=0.5)
        axes.plot([middle], [y], ms=6.5, mec="white", mew=0.5, **style)
        options = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 9}
        axes.annotate(text, (1.02, y), **options, color=INK, gid=style["gid"])
    axes.axvline(zero, color=MUTED, lw=0.9, zorder=0.5)
    axes.set_yticks(range(len(rows)), [label(r[0].name) for r in rows], color=INK, fontsize=9.5)
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_gid(paint(row[0])["gid"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
