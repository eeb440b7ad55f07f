"""The figure of `experiments.benchmark`: sorted times as ratios to no encoding, and temporaries."""

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from experiments.measuring.timing import CSV_HEADER, NAIVE, OURS, Row, Timings, plain
from experiments.measuring.workloads import MODES
from experiments.reporting.plotting import (
    INK,
    MUTED,
    PAPER,
    SHADES,
    Drawing,
    canvas,
    keep_apart,
    label,
    lay_out,
    log2_axis,
    styled,
)
from experiments.reporting.scheme_styles import PALETTE, style

FORWARD, BACKWARD = MODES["forward"] + MODES["backward"]
BOTH = (FORWARD, BACKWARD)


@styled
def figure(timings: Timings) -> Drawing:
    """Left: time ÷ none, forward and with backward, sorted. Right: temporaries against length."""
    names = [*dict.fromkeys(r.scheme for r in timings.rows if r.engine == OURS and r.mode in BOTH)]
    names = [name for name in names if name != "nope"]
    longest = max((r.length for r in timings.rows if r.mode in BOTH), default=0)
    modes = [m for m in BOTH if any(r.mode == m for r in timings.rows)]
    found = {m: _ratios(timings, m, names) for m in modes}
    words = [_most(mode, found[mode][longest]) for mode in modes if found[mode].get(longest)]
    drawn, axes = canvas(13, 1.9 + 0.27 * len(names), 1, 3, title="; ".join(words))
    for one, mode in zip(axes, BOTH, strict=False):
        _bars(one, found.get(mode, {}), longest)
        one.set_title(f"{mode[0].upper()}{mode[1:]}, {longest:,} tokens")
    shown = modes[-1:]
    lengths = sorted({r.length for r in timings.rows if r.mode in BOTH})
    _temporaries(axes[2], [r for r in timings.rows if r.mode in shown], lengths)
    axes[2].set_title(f"Temporaries, {shown[0]}" if shown else "Temporaries")
    alt = "Time of each scheme as a ratio to no encoding, and temporaries against length"
    return Drawing("benchmark", drawn, CSV_HEADER, timings.csv_rows(), alt)


def _ratios(timings: Timings, mode: str, names: list[str]) -> dict[int, dict[str, float]]:
    """Length → scheme → time ÷ none."""
    found: dict[int, dict[str, float]] = {}
    for row in timings.rows:
        if (row.mode, row.engine) == (mode, OURS) and row.scheme in names and row.seconds:
            ratio = timings.ratios(row)["to_none"]
            if ratio is not None:
                found.setdefault(row.length, {})[row.scheme] = ratio
    return found


def _most(mode: str, ratios: dict[str, float]) -> str:
    most = max(ratios, key=ratios.__getitem__)
    return f"{mode[0].upper()}{mode[1:]}: {most} takes most, {ratios[most]:.2f} × none"


def _bars(axes: Axes, ratios: dict[int, dict[str, float]], longest: int) -> None:
    """One bar per scheme at the longest length, sorted; a tick for each shorter length."""
    values = ratios.get(longest, {})
    names = sorted(values, key=values.__getitem__)
    for y, name in enumerate(names):
        colour = PALETTE[style(name).colour][0]
        axes.barh(y, values[name], height=0.68, color=colour, alpha=0.85)
        box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
        options = {"va": "center", "fontsize": 9, "textcoords": "offset points", "bbox": box}
        axes.annotate(f"{values[name]:.2f}", (values[name], y), (5, 0), **options)
        shorter = [each[name] for n, each in ratios.items() if n != longest and name in each]
        axes.plot(shorter, [y] * len(shorter), "|", ms=9, mew=1.4, color=INK)
    axes.axvline(1, color=MUTED, lw=0.9)
    axes.set_yticks(range(len(names)), [label(n) for n in names], color=INK, fontsize=9.5)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set(xlim=(0, 1.15 * max([1, *(x for each in ratios.values() for x in each.values())])))
    axes.set_xlabel("time ÷ none" + (" (ticks: shorter lengths)" if len(ratios) > 1 else ""))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _temporaries(axes: Axes, rows: list[Row], lengths: list[int]) -> None:
    """One line per scheme and engine; the least and the greatest of each engine are named."""
    ends: dict[tuple[int, float], str] = {}
    for engine, colour in ((OURS, SHADES[0]), (NAIVE, SHADES[2])):
        last = []
        for name in dict.fromkeys(r.scheme for r in rows):
            mine = [r for r in rows if (r.scheme, r.engine) == (name, engine) and r.temp_bytes]
            points = sorted((r.length, r.temp_bytes / 2**20) for r in mine if r.temp_bytes)
            if points:
                axes.plot(*zip(*points, strict=True), "o-", ms=3, lw=1, color=colour, alpha=0.6)
                last.append((*points[-1], name))
        longest = sorted(end for end in last if end[0] == max(last)[0])
        for x, y, name in longest[:1] + longest[1:][-1:]:
            ends[x, y] = f"{engine}: {name}, {plain(y)} MiB"
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter("{x:,g}")
    if lengths:
        log2_axis(axes, lengths)
        axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
    axes.set(xlabel="tokens", ylabel="MiB")
    _name(axes, ends)


def _name(axes: Axes, ends: dict[tuple[int, float], str]) -> None:
    """Writes each text right of the axes, at the height of its line's end, without overlaps."""
    if not ends:
        return
    lay_out(axes)
    heights = axes.transAxes.inverted().transform(axes.transData.transform([*ends]))[:, 1]
    for (end, text), place in zip(ends.items(), keep_apart(heights, 0.06, 0.0, 1.0), strict=True):
        axes.annotate(
            text,
            end,
            (1.03, place),
            textcoords="axes fraction",
            color=SHADES[2 * text.startswith(NAIVE)],
            fontsize=9,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.6, "relpos": (0, 0.5)},
        )
