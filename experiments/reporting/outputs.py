"""What a program of runs leaves: results.json, results.csv, figures, and tables on the terminal."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rich.table

from experiments.reporting import plotting
from experiments.running.command import launch
from experiments.running.files import table
from experiments.running.files.provenance import command, environments, save_json
from experiments.running.files.table import Row


def write(
    workdir: Path,
    program: str,
    runs: Iterable[dict],
    fields: dict[str, Any],
    rows: Iterable[Row],
    drawings: Iterable[plotting.Drawing],
    tables: Iterable[rich.table.Table],
    lines: Iterable[str] = (),
) -> None:
    """Writes the results of a program, and shows them.

    `fields` go to results.json, with the command and the environments of `runs`; each drawing is a
    file STEM.png; `lines` are printed below the tables.
    """
    about = {"command": command(program), **environments(runs)}
    save_json(workdir / "results.json", {**about, **fields})
    table.write(workdir / "results.csv", rows)
    names = ["results.json", "results.csv"]
    for drawing in drawings:
        plotting.write(drawing, workdir)
        names.append(f"{drawing.stem}.png")
    launch.show(*tables)
    print(*lines, f"Results: {', '.join(str(workdir / name) for name in names)}", sep="\n")
