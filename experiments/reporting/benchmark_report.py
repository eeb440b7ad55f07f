"""Reports of `experiments.benchmark`: tables, a figure, and which targets were reached.

`write` makes docs/performance.md and docs/figures/performance-NAME.png, one section per run. Text
of the page outside the two marks is kept.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from experiments.measuring import timing
from experiments.measuring.matmuls import TILE
from experiments.measuring.timing import DENSE, NAIVE, OURS, SDPA, Row, Timings, plain
from experiments.reporting.benchmark_figure import BACKWARD, BOTH, FORWARD
from pe_jax.validation import ConfigError

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


def _ratio(x: float | None) -> str:
    return "–" if x is None else f"{x:.2f}"


def _spread(quartiles: tuple[float, float, float] | None) -> str:
    if quartiles is None:
        return "–"
    low, median, high = quartiles
    return f"{median:.2f} ({low:.2f}–{high:.2f})"


def _per_second(row: Row, count: float | None, unit: float = 1) -> float | None:
    return None if count is None else count / unit / float(np.median(row.seconds))


def _mib(row: Row | None) -> str:
    return "–" if row is None or row.temp_bytes is None else plain(row.temp_bytes / 2**20)


def _iqr(row: Row) -> float:
    low, high = np.percentile(row.seconds, (25, 75))
    return 1e3 * float(high - low)


COLUMNS: dict[str, Callable[[Timings, Row], str]] = {
    "scheme": lambda _, r: r.scheme,
    "engine": lambda _, r: r.engine,
    "ms min": lambda _, r: plain(1e3 * min(r.seconds)),
    "median": lambda _, r: plain(1e3 * float(np.median(r.seconds))),
    "IQR": lambda _, r: plain(_iqr(r), 2),
    "÷ none": lambda a, r: _ratio(a.ratios(r)["to_none"]),
    "of minima": lambda a, r: _ratio(a.ratios(r)["to_none_of_minima"]),
    "÷ matmuls": lambda a, r: _ratio(a.ratios(r)["to_matmuls"]),
    f"÷ {SDPA}, none": lambda a, r: _ratio(a.ratios(r)["to_sdpa"]),
    f"{NAIVE} ÷ ours": lambda a, r: _ratio(a.ratios(r)["naive_to_this"]),
    f"{SDPA} ÷ ours": lambda a, r: _ratio(a.ratios(r)["sdpa_to_this"]),
    f"{DENSE} ÷ ours": lambda a, r: _ratio(a.ratios(r)["dense_to_this"]),
    "tokens/s": lambda _, r: plain(_per_second(r, r.tokens)),
    "GFLOP/s": lambda _, r: plain(_per_second(r, r.operations, 1e9)),
    "of peak": lambda a, r: _ratio(a.ratios(r)["share_of_large"]),
    "of MLP's": lambda a, r: _ratio(a.ratios(r)["share_of_own"]),
    "ours ÷ this": lambda a, r: _spread(timing.quartiles(a.ours(r), r)),
    "temp MiB": lambda _, r: _mib(r),
    f"{NAIVE} MiB": lambda a, r: _mib(_naive(a, r)),
    "compile s": lambda _, r: plain(r.compile_seconds or None, 2),
}


def _naive(timings: Timings, row: Row) -> Row | None:
    return timings.find(row.length, row.mode, row.scheme, NAIVE) if row.engine == OURS else None


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
    columns: list[list[str]] = []
    shown = [row for row in rows if row.seconds]
    for name, cell in COLUMNS.items():
        cells = [cell(timings, row) for row in shown]
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
    names = [name for name in COLUMNS if name != "of minima"]
    for (length, mode), rows in timings.groups().items():
        shown = [r for r in rows if r.seconds and r.engine not in (NAIVE, DENSE)]
        cells = [[COLUMNS[name](timings, row) for name in names] for row in shown]
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
