"""The plan from one chip to 1,024: sizes × contexts × slices compiled for an absent TPU.

    python -m tools.scale_docs --out=runs/scale

Each cell is one `compile_tpu` in a separate process, with a folder: the same command continues with
the missing ones. No cell starts after `--minutes`. Writes docs/scale.md from all finished cells;
`compile_tpu` explains the figures.
"""

import dataclasses
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from absl import app, flags, logging

from experiments.measuring.timing import plain
from experiments.running.errors import one_line_errors
from experiments.running.provenance import save_json
from pe_jax.training.config import MeshConfig
from pe_jax.training.paths import local
from tools import hlo, tpu_slice

SIZES = ("100M", "1B", "7B")
CONTEXTS = (4096, 32768, 131072)
SLICES = {1: "v5p:1x1x1", 64: "v5p:4x4x4", 1024: "v5p:8x8x16"}
ROWS = 32768  # tokens per chip and step, unless a row is longer
# One of each kind: rotation, bias in place, table of distances, vectors of distances with a horizon
# and without, state, bias of pairs.
SCHEMES = ("rope", "alibi", "t5", "shaw", "deberta", "transformer_xl", "fox", "fire")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One program: which model, at what length, on what slice."""

    size: str
    encoding: str
    context: int
    chips: int
    program: str = "train"

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.program}-{self.size}-{self.encoding}-{self.context}-{self.chips}"

    @property
    def mesh(self) -> MeshConfig:
        """Whole rows on each chip, or one row shared by several chips with ring attention.

        Parameters are sharded over up to 64 chips, and replicated beyond.
        """
        split = max(1, self.context // ROWS) if self.chips > 1 else 1
        fsdp = min(64, self.chips // split)
        return MeshConfig(data=self.chips // split // fsdp, fsdp=fsdp, seq=split)

    @property
    def batch(self) -> int:
        """Rows in a step over all chips."""
        return max(1, ROWS // self.context) * self.mesh.data * self.mesh.fsdp


def cells() -> list[Cell]:
    """The whole plan, the most important cells first."""
    grid = [Cell(s, "rope", c, n) for s, c, n in itertools.product(SIZES, CONTEXTS, SLICES)]
    kinds = [Cell("1B", name, 32768, 64) for name in SCHEMES]
    decode = [Cell("1B", name, 32768, 64, "decode") for name in SCHEMES]
    return list(dict.fromkeys([*kinds, *grid, *decode]))


def compile_cell(cell: Cell, folder: Path, limit: float) -> None:
    """Runs one cell; writes its compiled.json, with a reason instead of figures if it failed.

    Raises:
      OSError: it ended without one, for a reason other than a failure of the compiler.
    """
    fields = {
        "length": cell.context,
        "batch": cell.batch,
        **{f"mesh.{axis}": n for axis, n in dataclasses.asdict(cell.mesh).items()},
        "model.encoding": cell.encoding,
    }
    command = [sys.executable, "-m", "tools.compile_tpu"]
    command += [f"--config=configs/scale.py:{cell.size}", f"--topology={SLICES[cell.chips]}"]
    command += [f"--program={cell.program}", f"--out={folder}"]
    command += [f"--config.{field}={value}" for field, value in fields.items()]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        why = f"the compiler died (signal {-process.returncode})"
        last = " ".join(process.stderr.splitlines()[-1:])[:300]
    except subprocess.TimeoutExpired:
        process, why, last = None, f"took longer than {limit:.0f} s", ""
    if (folder / "compiled.json").exists():
        return
    if process and process.returncode >= 0:  # an error of ours or of the machine
        raise OSError(f"{cell.name}: exit status {process.returncode}: {last}")
    row = {"encoding": cell.encoding, "program": cell.program}
    row |= {"status": "does not compile", "why": why}
    save_json(folder / "compiled.json", {"chips": cell.chips, "programs": [row]})


def sweep(plan: list[Cell], folder: Path, minutes: float, limit: float) -> None:
    """Compiles missing cells, until the time is over."""
    begin = time.monotonic()
    for number, cell in enumerate(plan, 1):
        if (folder / cell.name / "compiled.json").exists():
            continue
        if time.monotonic() - begin > 60 * minutes:
            logging.info("Time is over: the same command continues with cell %d", number)
            return
        logging.info("[%d/%d] %s", number, len(plan), cell.name)
        compile_cell(cell, folder / cell.name, limit)


def read(cell: Cell, folder: Path) -> dict | None:
    """The figures of a cell; None if it is not compiled yet."""
    path = folder / cell.name / "compiled.json"
    if not path.exists():
        return None
    return json.loads(path.read_text())["programs"][0]


HEADER = (
    ("mesh", "GiB per chip", "step", "compute", "exchange", "TFLOP per chip", "of peak")
    + hlo.KINDS
)  # fmt: skip


def figures(cell: Cell, row: dict) -> list[str]:
    """The columns of HEADER, or the mesh and a reason."""
    mesh = " × ".join(str(n) for n in dataclasses.asdict(cell.mesh).values())
    if row["status"] != "ok":
        return [mesh, f"{row['status']}: {row['why']}"]
    chip = tpu_slice.CHIPS[SLICES[cell.chips].partition(":")[0]]
    step = row["compute_seconds"] + row["exchange_seconds"]
    share = row["flops"] / chip.peak / step
    least = "≥ " if row["unpriced"] else ""
    sizes = [row["collectives"].get(kind, {"bytes": 0})["bytes"] for kind in hlo.KINDS]
    return [
        mesh,
        f"{row['total'] / tpu_slice.GIB:.1f}" + ("" if row["fits"] else " (does not fit)"),
        f"{least}{seconds(step)}",
        f"{least}{seconds(row['compute_seconds'])}",
        f"{seconds(row['exchange_seconds'])}",
        plain(row["flops"] / 1e12),
        f"{'≤ ' * bool(least)}{100 * share:.0f} %",
        *(plain(size / tpu_slice.GIB, 2) if size else "–" for size in sizes),
    ]


def seconds(x: float) -> str:
    """A time in seconds or milliseconds."""
    return f"{plain(x, 2)} s" if x >= 1 else f"{plain(1e3 * x)} ms"


def lines(
    plan: list[Cell], folder: Path, lead: tuple[str, ...], before: dict[tuple[str, ...], str]
) -> Iterator[str]:
    """A Markdown table: the fields `lead` of the cells, the figures, the steps of another page."""
    header = (*lead, *HEADER, *(("step before",) if before else ()))
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for cell in plan:
        row = read(cell, folder)
        if row is None:
            continue
        fields = [getattr(cell, field) for field in lead]
        first = [f"{x:,}" if isinstance(x, int) else x for x in fields]
        columns = figures(cell, row)
        columns += [""] * (len(HEADER) - len(columns))
        columns += [before.get(tuple(first), "–")] if before else []
        yield "| " + " | ".join((*first, *columns)) + " |"


def steps(page: str) -> list[dict[tuple[str, ...], str]]:
    """The step of each line of each table of a page, by the fields before its mesh."""
    tables = []
    for line in page.splitlines():
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        if "mesh" in cells:
            lead, step = cells.index("mesh"), cells.index("step")
            tables.append({})
        elif tables and line.startswith("| "):
            tables[-1][cells[:lead]] = cells[step]  # pyright: ignore[reportPossiblyUnboundVariable]
    return tables


TEXT = """\
# From one chip to 1,024

Estimates of the TPU compiler (libtpu), made on a machine without a TPU: no figure here was
measured on one. Made by

    python -m tools.scale_docs --out=runs/scale

which compiles the real training and decoding steps of whole models for slices of TPU v5p
({hbm:.0f} GiB and {peak:.0f} TFLOP/s per chip), one program per line, and writes this page.
{done} of its {all} programs are shown; the same command continues with the missing ones.

How to read it:

- **mesh**: {axes}. A step holds {rows:,} tokens per chip, or one row if a row is
  longer; then several chips share its tokens by ring attention (the axis `seq`).
- **GiB per chip**: parameters, Adam's moments, the batch and the temporaries, by the compiler's own
  count, exact for the program. "does not fit" is also the compiler's result.
- **compute**: the compiler's cycles of each operation times its executions, over the clock;
  products of Pallas kernels count at the chip's peak, an underestimate; "≥" if some operation has
  no estimate. **exchange**: bytes that a chip sends, over the published bandwidth of all its links.
  **step**: their sum, without overlap. Not included: the network's latency and congestion, data
  input, the host, waiting for the slowest chip.
- **of peak**: matrix products, including those of recomputed blocks, over what the chip could do in
  that step.
- **all-gather** … **collective-permute**: GiB of the arrays that each kind of collective makes, per
  chip and step. The compiler writes gathers of small parts as all-reduces of zero-padded arrays.
- Attention runs in the TPU's kernels, also in the ring; a hop counts as the mean of all.{earlier}

## RoPE: sizes, contexts, slices

{grid}

## Schemes: 1B parameters, 32,768 tokens, 64 chips

A training step.

{kinds}

A decoding step: one token for each row, caches of 32,768 tokens.

{decode}
"""

BEFORE = """
- **step before**: that of an earlier version of this page (`--before`)."""


def page(plan: list[Cell], folder: Path, before: str = "") -> str:
    """The text of docs/scale.md; with the steps of an earlier page, if there is one."""
    earlier = iter(steps(before))
    chip, fields = tpu_slice.CHIPS["v5p"], dataclasses.fields(MeshConfig)
    grid = [c for c in plan if c.encoding == "rope" and c.program == "train"]
    grid.sort(key=lambda c: (SIZES.index(c.size), c.context, c.chips))
    kinds = [c for c in plan if (c.size, c.context, c.chips) == ("1B", 32768, 64)]

    def table(cells: list[Cell], *lead: str) -> str:
        return "\n".join(lines(cells, folder, lead, next(earlier, {})))

    return TEXT.format(
        hbm=chip.hbm / tpu_slice.GIB,
        peak=chip.peak / 1e12,
        done=sum(read(cell, folder) is not None for cell in plan),
        all=len(plan),
        axes=" × ".join(field.name for field in fields),
        rows=ROWS,
        earlier=BEFORE if before else "",
        grid=table(grid, "size", "context", "chips"),
        kinds=table([c for c in kinds if c.program == "train"], "encoding"),
        decode=table([c for c in kinds if c.program == "decode"], "encoding"),
    )


def main(_: list[str]) -> None:
    """Compiles missing cells and writes the page."""
    options, plan = flags.FLAGS, cells()
    with one_line_errors():
        for topology in SLICES.values():
            tpu_slice.check(topology)
        out, target = local("out", options.out), local("page", options.page)
        before = local("before", options.before).read_text() if options.before else ""
        sweep(plan, out, options.minutes, options.limit)
    target.write_text(page(plan, out, before))
    print(f"Plan: {target}")


if __name__ == "__main__":
    flags.DEFINE_string("out", "runs/scale", "folder of the cells")
    flags.DEFINE_string("page", "docs/scale.md", "the page to write")
    flags.DEFINE_string("before", "", "an earlier page, whose steps are shown too")
    flags.DEFINE_float("minutes", 20, "no cell starts after this time")
    flags.DEFINE_float("limit", 600, "seconds after which a cell is aborted")
    app.run(main)
