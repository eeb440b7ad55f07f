"""Reports of `experiments.benchmark`: tables, a figure, and which targets were reached.

`write` makes docs/performance.md and docs/figures/performance-NAME.png, one section per run. Text
of the page outside the two marks is kept.
"""

import dataclasses
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from rich import box
from rich.table import Table

from experiments.measuring import timing
from experiments.measuring.matmuls import TILE
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
from pe_jax.validation import ConfigError

FORWARD, BACKWARD = MODES["forward"] + MODES["backward"]
BOTH = (FORWARD, BACKWARD)
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"


@dataclasses.dataclass(frozen=True)
class Target:
    """A bound by length on a number of `Timings.ratios`; on "growth", from a tile's length on.

    Without `schemes` it is for all of them: the worst counts.
    """

    number: str
    schemes: tuple[str, ...]
    modes: tuple[str, ...]
    bounds: dict[int, float]


TARGET_FLAGS = {"heads": 8, "head_dim": 64, "batch": 1, "dtype": "float32", "causal": True}
GROWTH = 2.1
BIASES = ("alibi", "t5", "kerple")  # of distances, one of each sort
TARGETS = (  # on a CPU, with TARGET_FLAGS
    Target("to_matmuls", ("nope",), (FORWARD,), {4096: 1.20, 8192: 1.20}),
    Target("to_matmuls", ("nope",), (BACKWARD,), {4096: 1.12, 8192: 1.10}),
    Target("to_sdpa", ("nope", *BIASES), (FORWARD,), {512: 1.5, 1024: 1.5, 4096: 1.4, 8192: 1.4}),
    Target(
        "to_sdpa", ("nope", *BIASES), (BACKWARD,), {512: 1.5, 1024: 1.5, 4096: 1.25, 8192: 1.25}
    ),
    Target("sdpa_to_this", BIASES, BOTH, {512: 1, 1024: 1, 4096: 1, 8192: 1}),
    Target("naive_to_this", (), (FORWARD,), {4096: 5, 8192: 8}),
    Target("naive_to_this", (), (BACKWARD,), {4096: 7, 8192: 12}),
    Target("to_none", ("rope",), BOTH, {4096: 1.05, 8192: 1.04}),
    Target("to_none", ("alibi_plain",), BOTH, {4096: 1.03, 8192: 1.02}),
    Target("to_none", ("alibi",), BOTH, {4096: 0.80, 8192: 0.55, 16384: 0.42}),
    Target("to_none", ("t5", "buckets"), BOTH, {4096: 1.08, 8192: 1.05}),
    Target("to_none", ("shaw",), (BACKWARD,), {4096: 1.15, 8192: 1.10}),
    Target("to_none", ("deberta",), (BACKWARD,), {4096: 1.30, 8192: 1.20}),
    Target("to_none", ("transformer_xl",), BOTH, {4096: 1.45, 8192: 1.40}),
    Target("growth", (), BOTH, {}),
)
NUMBERS = {
    "to_none": "÷ none",
    "to_matmuls": "÷ matmuls",
    "to_sdpa": f"÷ {SDPA}, none",
    "naive_to_this": f"{NAIVE} ÷ ours",
    "sdpa_to_this": f"{SDPA} ÷ ours",
    "growth": "temporaries at 2L ÷ L",
}


def _cells(timings: Timings, row: Row) -> dict[str, str]:
    """The columns of a row that was timed, by their titles."""
    ratios = {n: "–" if x is None else f"{x:.2f}" for n, x in timings.ratios(row).items()}
    low, middle, high = 1e3 * np.percentile(row.seconds, (25, 50, 75))
    spread = timing.quartiles(timings.ours(row), row)
    naive = timings.find(row.length, row.mode, row.scheme, NAIVE) if row.engine == OURS else None

    def per_second(count: float | None, unit: float = 1) -> str:
        return plain(None if count is None else count / unit / float(np.median(row.seconds)))

    def mib(of: Row | None) -> str:
        return "–" if of is None or of.temp_bytes is None else plain(of.temp_bytes / 2**20)

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
        "temp MiB": mib(row),
        f"{NAIVE} MiB": mib(naive),
        "compile s": plain(row.compile_seconds, 2),
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
    shown, columns = [_cells(timings, row) for row in rows if row.seconds], []
    for name in shown[0] if shown else ():
        cells = [row[name] for row in shown]
        if name == f"{NAIVE} MiB" or all(text == "–" for text in cells):
            continue  # shown in a separate row, or empty
        left = name in ("scheme", "engine")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
        columns.append(cells)
    for line in zip(*columns, strict=True):
        table.add_row(*line)
    return [table, *notes(rows)]


GROWTH_HEAD = ("mode", "tokens", "ours, from", "to", f"{NAIVE}, from", "to")


def growth_rows(timings: Timings) -> list[list[str]]:
    """Temporaries at 2L ÷ at L: the least and the greatest of all schemes."""
    lines = []
    for (length, mode), rows in timings.groups().items():
        line = [mode, f"{length} → {2 * length}"]
        for engine in (OURS, NAIVE):
            growths = [(timings.growth(r), r.scheme) for r in rows if r.engine == engine]
            known = sorted((x, name) for x, name in growths if x is not None)
            line += [f"{x:.2f} ({s})" for x, s in (known[0], known[-1])] if known else ["–"] * 2
        lines += [line] * (line[2:] != ["–"] * 4)
    return lines


def growth_table(timings: Timings) -> Table | str:
    """`growth_rows` for a terminal."""
    rows = growth_rows(timings)
    if not rows:
        return "Temporaries at 2L ÷ at L: no length was run together with its double."
    title = "Temporaries at 2L ÷ at L"
    table = Table(*GROWTH_HEAD, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    return table


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table without empty columns; "" without rows."""
    if not rows:
        return ""
    used = [i for i in range(len(head)) if any(row[i] != "–" for row in rows)]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line[i] for i in used)} |" for line in lines)


def target_rows(timings: Timings) -> list[list[str]]:
    """Target, mode, length, bound, measured value, "reached" or "missed", for each target."""
    ours = dict.fromkeys(r.scheme for r in timings.rows if r.engine == OURS)
    lines = []
    for target in TARGETS:
        for mode in target.modes:
            lengths = sorted({r.length for r in timings.rows if r.mode == mode})
            growth = {n: GROWTH for n in lengths if 2 * n in lengths and n >= TILE}
            for length, bound in (target.bounds or growth).items():
                rows = {s: timings.find(length, mode, s) for s in target.schemes or ours}
                numbers = {s: _number(timings, row, target.number) for s, row in rows.items()}
                names = ", ".join(target.schemes) or "every scheme"
                where = [f"{names}: {NUMBERS[target.number]}", mode, str(length)]
                at_least = target.number.endswith("to_this")
                lines.append([*where, *_outcome(numbers, bound, at_least)])
    return lines


def _number(timings: Timings, row: Row | None, number: str) -> float | None:
    if row is None:
        return None
    return timings.growth(row) if number == "growth" else timings.ratios(row)[number]


def _outcome(numbers: dict[str, float | None], bound: float, at_least: bool) -> list[str]:
    """The bound, the worst measured value, and whether it is within the bound."""
    text = f"{'≥' if at_least else '≤'} {bound:g}"
    known = {name: x for name, x in numbers.items() if x is not None}
    if not known:
        return [text, "–", "not run"]
    worst = (min if at_least else max)(known, key=known.__getitem__)
    reached = known[worst] >= bound if at_least else known[worst] <= bound
    shown = f"{known[worst]:.2f}" + f" ({worst})" * (len(numbers) > 1)
    missing = [name for name in numbers if name not in known]
    mark = "**reached**" if reached else "missed"
    return [text, shown, mark + f"; not run: {', '.join(missing)}" * bool(missing)]


def targets(runs: Sequence[tuple[dict, Timings]]) -> str:
    """The table of targets over all runs that they apply to; the first run with a number gives it.

    Ratios are within a run; growth may compare two, as the compiler's counts do not vary.
    """
    fits = []
    for about, timings in runs:
        same = all(about["flags"][flag] == value for flag, value in TARGET_FLAGS.items())
        fits += [timings] * (same and about["backend"] == "cpu")
    if not fits:
        return "Targets are for a CPU and the default sizes: none of these runs has both."
    groups: dict[tuple[int, str], list[Row]] = {}
    for timings in fits:
        groups = {**timings.groups(), **groups}
    joined = Timings([row for rows in groups.values() for row in rows])
    by_target: dict[tuple[str, ...], list[str]] = {}
    for line in (line for timings in (*fits, joined) for line in target_rows(timings)):
        name = tuple(line[:3])
        if by_target.get(name, line)[4] == "–" or name not in by_target:
            by_target[name] = line
    lines = sorted(by_target.values(), key=lambda line: line[4] == "–")
    known = [line for line in lines if line[4] != "–"]
    rest = "; ".join(", ".join(line[:3]) for line in lines[len(known) :])
    table = markdown(("target", "mode", "length", "bound", "measured", ""), known)
    return f"{table}\n\nNot run: {rest}." if rest else table


def read(folder: Path) -> tuple[dict, Timings]:
    """The description of a run, and its timings."""
    about = json.loads((folder / "benchmark.json").read_text(encoding="utf-8"))
    return about, Timings.read(folder / "benchmark.csv")


def section(folder: Path, picture: str | None) -> str:
    """One run: machine, command, figure, tables."""
    about, timings = read(folder)
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    parts = [
        f"## {folder.name}: {about['device']}, {about['processor']}",
        f"{about['date']}, commit {about['commit']}, {versions}.",
        f"```bash\n{about['command']}\n```",
    ]
    if picture is not None:
        parts.append(f"![Time ÷ none, and temporaries against length]({picture})")
    for (length, mode), rows in timings.groups().items():
        timed = [r for r in rows if r.seconds and r.engine not in (NAIVE, DENSE)]
        shown = [_cells(timings, row) for row in timed]
        names = [name for name in (shown[0] if shown else ()) if name != "of minima"]
        cells = [[row[name] for name in names] for row in shown]
        parts += [f"### {length} tokens, {mode}", markdown(names, cells)]
        parts += ["\n".join(f"- {note}" for note in notes(rows))]
    growth = growth_rows(timings)
    if growth:
        parts += ["### Temporaries at 2L ÷ at L", markdown(GROWTH_HEAD, growth)]
    return "\n\n".join(part for part in parts if part)


INTRO = """\
Made by `{command}`; do not edit between the marks.

One process runs all programs of a table in turn, in a new order every round. Times are per call;
ratios are medians over rounds of the ratio within a round. *none* is NoPE by our engine; *matmuls*
is the matmuls of the visible 512 × 512 tiles and nothing else; *jax.nn* is
`jax.nn.dot_product_attention` with a materialised bias, including its construction, and *sdpa*
PyTorch's `scaled_dot_product_attention` with one; *sdpa, none* is that without a bias;
*alibi_plain* skips no tiles; *shaw_keys* adds no vectors at the values. Forward + backward computes
the gradients of q, k, v and every parameter. Temporaries are the compiler's count. Sinusoidal and
learned positions enter before attention: only in models do their rows differ from none by more than
noise.

A training step is forward, backward, clipping and AdamW with RoPE, from the same weights in every
library: *ours* is the trainer of the programs, *dense* and *tiled* the same with that engine, *jax*
is plain JAX and optax, *torch* is eager. *Of peak* and *of MLP's* are its operations per second (of
matrix products, with every score of attention) as a share of those of a large product and of the
product of the model's MLP in the same run; in brackets are quartiles of the rounds.
"""


def insert(text: str, body: str) -> str:
    """The page with the text between its marks replaced; a new page if it has no marks."""
    if BEGIN not in text or END not in text:
        text = f"# Performance\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{body}\n{END}{rest.split(END)[1]}"


def write(runs: Sequence[Path], docs: Path, command: str) -> Path:
    """Writes the page and its figures.

    Raises:
      ConfigError: a folder without results, two folders of one name.
    """
    for folder in runs:
        if not (folder / "benchmark.csv").exists():
            raise ConfigError(f"runs={str(folder)!r}: it has no benchmark.csv; run the benchmark")
    if len({folder.name for folder in runs}) < len(runs):
        raise ConfigError(f"runs={[*map(str, runs)]}: give each folder a different name")
    (docs / "figures").mkdir(parents=True, exist_ok=True)
    parts = [INTRO.format(command=command), "## Targets", targets([*map(read, runs)])]
    for folder in runs:
        drawn = any(row.mode in BOTH for row in read(folder)[1].rows)  # the figure is of these
        picture = f"figures/performance-{folder.name}.png" if drawn else None
        parts.append(section(folder, picture))
        if picture is not None:
            shutil.copy(folder / "benchmark.png", docs / picture)
    page = docs / "performance.md"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    page.write_text(insert(text, "\n\n".join(parts)), encoding="utf-8")
    return page


# The figure.


@styled
def figure(timings: Timings) -> Drawing:
    """Left: time ÷ none, forward and with backward, sorted. Right: temporaries against length."""
    names = [*dict.fromkeys(r.scheme for r in timings.rows if r.engine == OURS and r.mode in BOTH)]
    names = [name for name in names if name != "nope"]
    longest = max((r.length for r in timings.rows if r.mode in BOTH), default=0)
    modes = [m for m in BOTH if any(r.mode == m for r in timings.rows)]
    found = {m: _ratios(timings, m, names) for m in modes}
    words = []
    for mode in modes:
        if ratios := found[mode].get(longest):
            most = max(ratios, key=ratios.__getitem__)
            words.append(
                f"{mode[0].upper()}{mode[1:]}: {most} takes most, {ratios[most]:.2f} × none"
            )
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
