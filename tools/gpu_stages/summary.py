"""The results of a session on a GPU as a page of tables."""

from collections.abc import Callable, Sequence

from tools.gpu_stages.results import Results, Row, key


def text(results: Results) -> str:
    """Markdown: what agreed and what did not, times of attention, times of training steps."""
    parts = [_agreement(results.of("agreement"))]
    timed = [row for row in results.of("benchmark") if "ms" in row]
    for mode in dict.fromkeys(row["mode"] for row in timed):
        rows = [row for row in timed if row["mode"] == mode]
        title = f"Attention, {mode}: ms (TFLOP/s, share of the peak)"
        parts.append(_table(title, rows, _speed))
    steps = [row for row in results.of("step") if "ms" in row]
    bare = {row["length"]: row["ms"] for row in steps if row["scheme"] == "nope"}

    def step(row: Row) -> str:
        ratio = f" ({row['ms'] / bare[row['length']]:.2f})" if row["length"] in bare else ""
        return f"{row['ms']:.4g}{ratio}"

    parts.append(_table("Training step: ms (÷ NoPE's)", steps, step))
    last = {key(row): row for row in results.rows}.values()  # of each
    not_run = [row for row in last if "note" in row and "ms" not in row]
    lines = [f"- {_name(row)}: {row['note']}" for row in not_run]
    parts.append("\n".join(["## Not run", "", *dict.fromkeys(lines)]) if lines else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def _agreement(rows: list[Row]) -> str:
    compared = [row for row in rows if "agrees" in row]
    if not compared:
        return ""
    wrong = [row for row in compared if not row["agrees"]]
    lines = ["## Kernels and the dense engine", "", f"{len(compared)} comparisons, "]
    lines[-1] += f"{len(wrong)} of which disagree." if wrong else "all of which agree."
    for dtype in dict.fromkeys(row["dtype"] for row in compared):
        measured = [row for row in compared if row["dtype"] == dtype and "error" in row]
        if measured:
            worst = max(measured, key=lambda row: row["error"])
            where = f"{_name(worst)}, {worst['of']}"
            lines.append(f"- {dtype}: at most {worst['error']:.2g} of the largest ({where})")
    for row in wrong:
        what = f"{row['of']} by {row['error']:.2g}" if "of" in row else row["note"]
        lines.append(f"- **{_name(row)}**: {what}")
    return "\n".join(lines)


def _speed(row: Row) -> str:
    share = f", {row['of_peak']:.0%}" if row.get("of_peak") else ""
    return f"{row['ms']:.4g} ({row['tflops']:.0f}{share})"


def _table(title: str, rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    """A line per scheme and engine, a column per length."""
    if not rows:
        return ""
    lengths = sorted({row["length"] for row in rows})
    lines = [f"## {title}", "", "| | " + " | ".join(f"{n:,}" for n in lengths) + " |"]
    lines.append("|---" * (1 + len(lengths)) + "|")
    by_name: dict[str, dict[int, str]] = {}
    for row in rows:
        engine = "" if row.get("engine") in (None, "ours") else f", {row['engine']}"
        by_name.setdefault(row["scheme"] + engine, {})[row["length"]] = cell(row)
    for name, cells in by_name.items():
        lines.append(f"| {name} | " + " | ".join(cells.get(n, "–") for n in lengths) + " |")
    return "\n".join(lines)


def _name(row: Row) -> str:
    fields = ("scheme", "engine", "dtype", "case", "length", "mode")
    parts = [str(row[name]) for name in fields if row.get(name) is not None]
    return ", ".join(parts) or row["stage"]
