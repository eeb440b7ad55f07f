"""The plan from one chip to 1,024: sizes × contexts × slices compiled for an absent TPU.

    python -m tools.scale_docs --out=runs/scale

Each cell is one `compile_tpu` in a process of its own, and one folder: the same command again goes
on where it was. `--minutes` bounds a run: no cell is begun after that. Writes docs/scale.md from
the cells there are. What a figure means is said in compile_tpu.py.
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
from tools import hlo, tpu_slice

SIZES = ("100M", "1B", "7B")
CONTEXTS = (4096, 32768, 131072)
SLICES = {1: "v5p:1x1x1", 64: "v5p:4x4x4", 1024: "v5p:8x8x16"}
ROWS = 32768  # tokens per chip and step, where a row is not longer than that
# One of each kind: rotation, bias in place, table of distances, vectors of distances, state.
SCHEMES = ("rope", "alibi", "t5", "shaw", "deberta", "fox")


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
        """Of its folder."""
        return f"{self.program}-{self.size}-{self.encoding}-{self.context}-{self.chips}"

    @property
    def mesh(self) -> MeshConfig:
        """One row per chip, or one for several chips, which share its tokens by ring attention.

        Parameters are split over up to 64 chips, and copied beyond.
        """
        split = max(1, self.context // ROWS) if self.chips > 1 else 1
        fsdp = min(64, self.chips // split)
        return MeshConfig(data=self.chips // split // fsdp, fsdp=fsdp, seq=split)

    @property
    def batch(self) -> int:
        """Rows in a step over all chips."""
        return max(1, ROWS // self.context) * self.mesh.data * self.mesh.fsdp


def cells() -> list[Cell]:
    """All of the plan, what matters most first."""
    grid = [Cell(s, "rope", c, n) for s, c, n in itertools.product(SIZES, CONTEXTS, SLICES)]
    kinds = [Cell("1B", name, 32768, 64) for name in SCHEMES]
    decode = [Cell("1B", name, 32768, 64, "decode") for name in SCHEMES]
    return list(dict.fromkeys([*kinds, *grid, *decode]))


def compile_cell(cell: Cell, folder: Path, limit: float) -> None:
    """Runs one cell; leaves its compiled.json, with words instead of figures if it failed.

    Raises:
      OSError: it ended without one, and the compiler is not to blame.
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
    if process and process.returncode >= 0:  # our own fault, or the machine's: not the program's
        raise OSError(f"{cell.name}: exit status {process.returncode}: {last}")
    row = {"encoding": cell.encoding, "program": cell.program}
    row |= {"status": "does not compile", "why": why}
    save_json(folder / "compiled.json", {"chips": cell.chips, "programs": [row]})


def sweep(plan: list[Cell], folder: Path, minutes: float, limit: float) -> None:
    """Compiles what is missing, until the time is over."""
    begin = time.monotonic()
    for number, cell in enumerate(plan, 1):
        if (folder / cell.name / "compiled.json").exists():
            continue
        if time.monotonic() - begin > 60 * minutes:
            logging.info("Time is over: the same command goes on with cell %d", number)
            return
        logging.info("[%d/%d] %s", number, len(plan), cell.name)
        compile_cell(cell, folder / cell.name, limit)


def read(cell: Cell, folder: Path) -> dict | None:
    """What was found of a cell; None if nothing yet."""
    path = folder / cell.name / "compiled.json"
    if not path.exists():
        return None
    return json.loads(path.read_text())["programs"][0]


HEADER = (
    ("mesh", "GiB per chip", "step", "compute", "exchange", "TFLOP per chip", "of peak")
    + hlo.KINDS
)  # fmt: skip


def figures(cell: Cell, row: dict) -> list[str]:
    """The columns of HEADER, or words in the second."""
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


def lines(plan: list[Cell], folder: Path, lead: tuple[str, ...]) -> Iterator[str]:
    """A Markdown table with these fields of the cells before the figures."""
    yield "| " + " | ".join((*lead, *HEADER)) + " |"
    yield "|" + "---|" * (len(lead) + len(HEADER))
    for cell in plan:
        row = read(cell, folder)
        if row is None:
            continue
        fields = [getattr(cell, field) for field in lead]
        own = [f"{x:,}" if isinstance(x, int) else x for x in fields]
        columns = figures(cell, row)
        columns += [""] * (len(HEADER) - len(columns))
        yield "| " + " | ".join((*own, *columns)) + " |"


TEXT = """\
# From one chip to 1,024

Estimates of the TPU compiler (libtpu), made on a machine without a TPU: no figure here was
measured on one. Made by

    python -m tools.scale_docs --out=runs/scale

which compiles the real training step and the real decoding step, whole models, for slices of TPU
v5p ({hbm:.0f} GiB and {peak:.0f} TFLOP/s per chip), one program per line, and writes this page.
{done} of its {all} programs are shown; the same command goes on with what is missing.

How to read it.

- **mesh**: {axes}. A step holds {rows:,} tokens per chip, or one row where a row is
  longer; then several chips share its tokens by ring attention (the axis `seq`).
- **GiB per chip**: parameters, Adam's moments, the batch and the temporaries, as the compiler lays
  them out: its own count, exact for the program. "does not fit" is the compiler's word too.
- **compute**: cycles that the compiler expects of each operation, times how often it runs, over the
  clock; the products of Pallas kernels at the chip's peak, too little; "≥" where it expects nothing
  of some operation. **exchange**: bytes that a chip sends, over the published bandwidth of all its
  links. **step** is their sum: as if nothing of the exchange ran beside the computation. Left out:
  the network's latency and its crossings, the input of data, the host, waiting for the slowest.
- **of peak**: matrix products, those of recomputed blocks too, over what the chip could do in that
  step.
- **all-gather** … **collective-permute**: GiB of the arrays that each kind of collective makes, per
  chip and step. The compiler writes gathers of small parts as all-reduces of arrays that are 0
  elsewhere.
- Attention runs in the TPU's kernels where the scheme has one and the chip has whole rows, else in
  tiles of XLA (Shaw, DeBERTa, FoX; rings), which this compiler serves badly: "of peak" shows it.

## RoPE: sizes, contexts, slices

{grid}

## Schemes: 1B parameters, 32,768 tokens, 64 chips

A training step.

{kinds}

A decoding step: one token for each row, caches of 32,768 tokens.

{decode}
"""


def page(plan: list[Cell], folder: Path) -> str:
    """docs/scale.md."""
    chip, fields = tpu_slice.CHIPS["v5p"], dataclasses.fields(MeshConfig)
    grid = [c for c in plan if c.encoding == "rope" and c.program == "train"]
    grid.sort(key=lambda c: (SIZES.index(c.size), c.context, c.chips))
    kinds = [c for c in plan if (c.size, c.context, c.chips) == ("1B", 32768, 64)]

    def table(cells: list[Cell], *lead: str) -> str:
        return "\n".join(lines(cells, folder, lead))

    return TEXT.format(
        hbm=chip.hbm / tpu_slice.GIB,
        peak=chip.peak / 1e12,
        done=sum(read(cell, folder) is not None for cell in plan),
        all=len(plan),
        axes=" × ".join(field.name for field in fields),
        rows=ROWS,
        grid=table(grid, "size", "context", "chips"),
        kinds=table([c for c in kinds if c.program == "train"], "encoding"),
        decode=table([c for c in kinds if c.program == "decode"], "encoding"),
    )


def main(_: list[str]) -> None:
    """Compiles what is missing and writes the page."""
    given, plan = flags.FLAGS, cells()
    with one_line_errors():
        for topology in SLICES.values():
            tpu_slice.check(topology)
        sweep(plan, Path(given.out), given.minutes, given.limit)
    Path(given.page).write_text(page(plan, Path(given.out)))
    print(f"Plan: {given.page}")


if __name__ == "__main__":
    flags.DEFINE_string("out", "runs/scale", "folder of the cells")
    flags.DEFINE_string("page", "docs/scale.md", "the page to write")
    flags.DEFINE_float("minutes", 20, "begin no cell after so long")
    flags.DEFINE_float("limit", 600, "seconds after which a cell is given up")
    app.run(main)
