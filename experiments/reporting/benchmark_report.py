"""The tables and the figure of `experiments.benchmark`."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from rich import box
from rich.table import Table

from experiments.measuring import timing
from experiments.measuring.timing import (
    CSV_HEADER,
    DENSE,
    NAIVE,
    OURS,
    SDPA,
    Row,
    Timings,
    plain,
)
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


def _cells(timings: Timings, row: Row) -> dict[str, str]:
    """The columns of a row that was timed, by their titles."""
    ratios = {n: "–" if x is None else f"{x:.2f}" for n, x in timings.ratios(row).items()}
    low, middle, high = 1e3 * np.percentile(row.seconds, (25, 50, 75))
    spread = timing.quartiles(timings.ours(row), row)

    def per_second(count: float | None, unit: float = 1) -> str:
        return plain(None if count is None else count / unit / float(np.median(row.seconds)))

    return {
        "scheme": row.scheme,
        "engine": row.engine,
        "ms min": plain(1e3 * min(row.seconds)),
        "median": plain(float(middle)),
        "IQR": plain(float(high - low), 2),
        "÷ none": ratios["to_none"],
        "of minima": ratios["to_none_of_minima"],
        "÷ matmuls": ratios["to_matmuls"],
        f"÷ {SDPA}, none": ratios["to_sdpa"],
        f"{NAIVE} ÷ ours": ratios["naive_to_this"],
        f"{SDPA} ÷ ours": ratios["sdpa_to_this"],
        f"{DENSE} ÷ ours": ratios["dense_to_this"],
        "tokens/s": per_second(row.tokens),
        "GFLOP/s": per_second(row.operations, 1e9),
        "of peak": ratios["share_of_large"],
        "of MLP's": ratios["share_of_own"],
        "ours ÷ this": "–" if spread is None else "{1:.2f} ({0:.2f}–{2:.2f})".format(*spread),
        "temp MiB": plain(row.temp_bytes and row.temp_bytes / 2**20),
        "compile s": plain(row.compile_seconds or None, 2),
    }


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """The remarks on rows, one line per remark: what did not run, and others."""
    for note in dict.fromkeys(row.note for row in rows if row.note):
        noted = [row for row in rows if row.note == note]
        names = ", ".join(f"{row.scheme} ({row.engine})" for row in noted)
        yield f"{names}: {'' if noted[0].seconds else 'not run: '}{note}"


def terminal(timings: Timings, length: int, mode: str) -> list[Table | str]:
    """The table of one length and mode, and its notes."""
    rows = timings.groups().get((length, mode), [])
    table = Table(title=f"{length} tokens, {mode}", title_justify="left", box=box.SIMPLE_HEAD)
    timed, columns = [_cells(timings, row) for row in rows if row.seconds], []
    for name in timed[0] if timed else ():
        cells = [row[name] for row in timed]
        if all(text == "–" for text in cells):
            continue
        is_name = name in ("scheme", "engine")
        table.add_column(name, justify="left" if is_name else "right", no_wrap=True)
        columns.append(cells)
    for line in zip(*columns, strict=True):
        table.add_row(*line)
    return [table, *notes(rows)]


def growth_table(timings: Timings) -> Table | str:
    """Temporaries at 2L ÷ at L: the least and the greatest of all schemes."""
    head = ("mode", "tokens", "ours, from", "to", f"{NAIVE}, from", "to")
    title = "Temporaries at 2L ÷ at L"
    table = Table(*head, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for (length, mode), rows in timings.groups().items():
        line = []
        for engine in (OURS, NAIVE):
            growths = [(timings.growth(r), r.scheme) for r in rows if r.engine == engine]
            pairs = sorted((x, name) for x, name in growths if x is not None)
            line += [f"{x:.2f} ({s})" for x, s in (pairs[0], pairs[-1])] if pairs else ["–"] * 2
        if line != ["–"] * 4:
            table.add_row(mode, f"{length} → {2 * length}", *line)
    return table if table.rows else f"{title}: no length was run together with its double."


# The figure.


@styled
def figure(timings: Timings) -> Drawing:
    """Left: time ÷ none, forward and with backward, sorted. Right: temporaries against length."""
    names = [*dict.fromkeys(r.scheme for r in timings.rows if r.engine == OURS and r.mode in BOTH)]
    names = [name for name in names if name != "nope"]
    longest = max((r.length for r in timings.rows if r.mode in BOTH), default=0)
    modes = [m for m in BOTH if any(r.mode == m for r in timings.rows)]
    by_mode = {m: _ratios(timings, m, names) for m in modes}
    words = []
    for mode in modes:
        if ratios := by_mode[mode].get(longest):
            most = max(ratios, key=ratios.__getitem__)
            words.append(
                f"{mode[0].upper()}{mode[1:]}: {most} takes most, {ratios[most]:.2f} × none"
            )
    drawn, axes = canvas(13, 1.9 + 0.27 * len(names), 1, 3, title="; ".join(words))
    for panel, mode in zip(axes, BOTH, strict=False):
        _bars(panel, by_mode.get(mode, {}), longest)
        panel.set_title(f"{mode[0].upper()}{mode[1:]}, {longest:,} tokens")
    last_mode = modes[-1:]
    lengths = sorted({r.length for r in timings.rows if r.mode in BOTH})
    _temporaries(axes[2], [r for r in timings.rows if r.mode in last_mode], lengths)
    axes[2].set_title(f"Temporaries, {last_mode[0]}" if last_mode else "Temporaries")
    alt = "Time of each scheme as a ratio to no encoding, and temporaries against length"
    return Drawing("benchmark", drawn, CSV_HEADER, timings.csv_rows(), alt)


def _ratios(timings: Timings, mode: str, names: list[str]) -> dict[int, dict[str, float]]:
    """Length → scheme → time ÷ none."""
    by_length: dict[int, dict[str, float]] = {}
    for row in timings.rows:
        if (row.mode, row.engine) == (mode, OURS) and row.scheme in names and row.seconds:
            ratio = timings.ratios(row)["to_none"]
            if ratio is not None:
                by_length.setdefault(row.length, {})[row.scheme] = ratio
    return by_length


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
            measured = [r for r in rows if (r.scheme, r.engine) == (name, engine) and r.temp_bytes]
            points = sorted((r.length, r.temp_bytes / 2**20) for r in measured if r.temp_bytes)
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
    if not ends:
        return
    lay_out(axes)
    heights = axes.transAxes.inverted().transform(axes.transData.transform([*ends]))[:, 1]
    for (end, text), height in zip(ends.items(), keep_apart(heights, 0.06, 0.0, 1.0), strict=True):
        axes.annotate(
            text,
            end,
            (1.03, height),
            textcoords="axes fraction",
            color=SHADES[2 * text.startswith(NAIVE)],
            fontsize=9,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.6, "relpos": (0, 0.5)},
        )
