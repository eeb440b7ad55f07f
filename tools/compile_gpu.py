"""Compiles the kernels for NVIDIA GPUs to machine code, on a machine without one.

    make gpu-compile
    python -m tools.compile_gpu --encodings=shaw --widths=64 --archs=90

The kernels are those of `attention(implementation="fused")`, forward and backward, with the blocks,
warps and stages that it would launch on such a device. Triton (the extra `gpu-compile`) takes them
to machine code. Prints a table and writes kernels.csv, row by row: registers per thread, spills,
shared memory, instructions of tensor cores, blocks per multiprocessor, occupancy. The exit status
is 1 where a kernel spills more bytes than `--spills`, or needs what the device does not have.

Schemes whose kernels are the same to the letter (NoPE and RoPE) share a row. Nothing is timed.
"""

import contextlib
import csv
import dataclasses
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import rich.table
from absl import flags, logging

from experiments.running.command import launch
from pe_jax import encodings
from pe_jax.encodings.base import Dims, Encoding, adds_to_input
from pe_jax.engines.api import attention
from pe_jax.engines.kernels.gpu import engine, launches, passes, triton_call
from pe_jax.engines.kernels.gpu.launches import Launch
from pe_jax.engines.kernels.gpu.triton_source import Kernel
from pe_jax.training.paths import local
from pe_jax.validation import ConfigError
from tools import gpu_code
from tools.gpu_code import CHIPS, Job

HEADS = 8
SPECS = {name: name + "(length={length})" for name in ("learned", "tupe")}
# Timed on an H200 with Triton 3.6 (docs/performance.md), where they beat what compiles without
# spills: by architecture, kernel, what a tile reads, and width, in half precision. Those of
# formulas follow the others: ALiBi's kernels together take 2.31 ms with them, 3.40 without.
MEASURED = {
    (90, "forward", "scores", 64): Launch(64, 64, 4, 3),
    (90, "forward", "formulas", 64): Launch(64, 64, 4, 3),
    (90, "forward", "table", 64): Launch(64, 64, 4, 3),
    (90, "forward", "vectors", 64): Launch(64, 64, 4, 3),
    (90, "queries", "vectors", 64): Launch(64, 64, 4, 2),
    (90, "keys", "formulas", 64): Launch(64, 64, 4, 3),
    (90, "keys", "vectors", 64): Launch(64, 64, 4, 2),
}
FIELDS = (  # of kernels.csv
    *("arch", "dtype", "width", "kernel", *Launch._fields, "encodings", "status", "shared"),
    *("registers", "spill_stores", "spill_loads", "spills", "blocks", "occupancy"),
    *(*gpu_code.PRODUCTS, "seconds"),
)
COLUMNS = ("registers", "spills", "shared", "products", "blocks", "occupancy")


class Refused(Exception):
    """Says why the kernels do not run a scheme."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Attention of one scheme for one architecture, and the gradients of all that it reads."""

    spec: str
    width: int
    arch: int
    length: int
    dtype: str
    explicit: bool = False  # whether positions are passed, which may be any

    @property
    def encoding(self) -> Encoding:
        """The scheme."""
        spec = SPECS.get(self.spec, self.spec).format(length=self.length)
        return encodings.parse(spec)[0]

    @property
    def dims(self) -> Dims:
        """The sizes that it sees."""
        return Dims(HEADS * self.width, HEADS, HEADS, self.width)

    def kernels(self) -> list[tuple[str, Launch, Kernel]]:
        """Name, launch and source of each kernel.

        Raises:
          Refused: no kernel runs the scheme.
        """
        encoding, dims = self.encoding, self.dims
        rows = jax.ShapeDtypeStruct((1, self.length, HEADS, self.width), self.dtype)
        x = jax.ShapeDtypeStruct((1, self.length, dims.width), self.dtype)
        params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))
        positions = jax.ShapeDtypeStruct((1, self.length), jnp.int32) if self.explicit else None
        recorded = []

        def attend(*call):
            if reason := engine.refusal(*call):
                raise Refused(reason)
            return engine.attend(*call, arch=self.arch)

        def loss(params, q, k, v, x, positions):
            options: Any = dict(encoding=encoding, params=params, x=x, implementation=attend)
            options["q_positions"] = positions
            out = attention(q, k, v, embedded=adds_to_input(encoding, dims), **options)
            return jnp.sum(out.astype(jnp.float32) ** 2)

        def record(plan, name, call, args):
            kernel = name, plan.launch, triton_call.kernel_of(call, args, name)[0]
            if kernel not in recorded:  # `jax.checkpoint` traces the forward kernel twice
                recorded.append(kernel)
            shapes = jax.eval_shape(call, *args)
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        with mock.patch.object(passes, "run", record):
            operands = params, rows, rows, rows, x
            jax.eval_shape(jax.grad(loss, (0, 1, 2, 3, 4)), *operands, positions)
        return recorded


def compiled(
    cases: Iterable[Case],
    processes: int,
    done: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """A row for each kernel of each case; kernels that are the same share one.

    `done` is called with each row as it comes.
    """
    rows: dict[tuple[int, Job], dict] = {}
    for case in cases:
        try:
            for name, sizes, kernel in case.kernels():
                about = {"arch": case.arch, "dtype": case.dtype, "width": case.width}
                about |= {"kernel": name, **sizes._asdict(), "encodings": []}
                job = Job(kernel, sizes.warps, sizes.stages, case.arch)
                row = rows.setdefault((case.width, job), about)
                if case.spec not in row["encodings"]:
                    row["encodings"].append(case.spec)
        except Refused as reason:
            logging.info("%s: %s", case.spec, reason)
    answers = gpu_code.compile_all([job for _, job in rows], processes)
    for row, answer in zip(rows.values(), answers, strict=True):
        row |= answer
        row["spills"] = row.get("spill_stores", 0) + row.get("spill_loads", 0)
        where = f"sm_{row['arch']} {row['width']} {row['kernel']}"
        logging.info("%s, %s: %s", row["encodings"][0], where, row["status"])
        done(row)
    return list(rows.values())


def table(rows: list[dict[str, Any]]) -> rich.table.Table:
    """All kernels, with the reason for those that did not compile."""
    columns = ("encodings", "sm", "width", "kernel", "blocks of", "warps", "stages")
    figures = rich.table.Table(*columns, *COLUMNS, title="kernels as compiled for NVIDIA GPUs")
    for row in rows:
        kinds = [f"{row[kind]} {kind}" for kind in gpu_code.PRODUCTS if row.get(kind)]
        row = row | {"products": " ".join(kinds)}
        cells = [", ".join(row["encodings"]), row["arch"], row["width"], row["kernel"]]
        cells += [f"{row['own']} × {row['other']}", row["warps"], row["stages"]]
        ok = row["status"] == "ok"
        cells += [row.get(name, "") for name in COLUMNS] if ok else [row["status"]]
        figures.add_row(*map(str, cells))
    return figures


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes a row of a CSV file, which is there at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", buffering=1) as file:
        writer = csv.DictWriter(file, FIELDS, restval="")
        writer.writeheader()
        yield lambda row: writer.writerow(row | {"encodings": " ".join(row["encodings"])})


def wrong(rows: list[dict[str, Any]], spills: int) -> list[str]:
    """Lines about kernels that a chip would refuse, or that spill more than `spills` bytes.

    Measured launches may spill.
    """

    def fast(row) -> bool:
        sizes = tuple(row.get(name) for name in Launch._fields)
        keys = ((row["arch"], row["kernel"], reads, row["width"]) for reads in launches.READS)
        return any(MEASURED.get(key) == sizes for key in keys)

    return [
        f"{' '.join(r['encodings'])}, sm_{r['arch']}, width {r['width']}, {r['kernel']}: "
        + (f"{r['spills']} bytes of spills" if r["status"] == "ok" else r["status"])
        for r in rows
        if r["status"] != "ok" or (r["spills"] > spills and not fast(r))
    ]


def main() -> None:
    """Compiles what the flags select; prints and writes the figures."""
    options = flags.FLAGS
    archs, widths = (list(map(int, x)) for x in (options.archs, options.widths))
    if importlib.util.find_spec("triton") is None:
        raise ConfigError("triton is missing; pip install -e '.[gpu-compile]'")
    jax.config.update("jax_platforms", "cpu")
    if unknown := [a for a in archs if a not in CHIPS]:
        raise ConfigError(f"archs={unknown}: known are {[*CHIPS]}")
    of_one_axis = [n for n, scheme in encodings.ENCODINGS.items() if scheme().claims.axes == 1]
    names = of_one_axis if "all" in options.encodings else options.encodings
    cases = [
        Case(spec, width, arch, options.length, options.dtype, explicit=options.explicit)
        for arch, width, spec in itertools.product(archs, widths, names)
    ]
    with writing(local("out", options.out) / "kernels.csv") as write:
        rows = compiled(cases, options.processes, done=write)
    launch.show(table(rows))
    for line in (failures := wrong(rows, options.spills)):
        print(line, file=sys.stderr)
    sys.exit(bool(failures))


if __name__ == "__main__":
    flags.DEFINE_multi_string("encodings", ["all"], "schemes; `all` is every one of one axis")
    flags.DEFINE_list("widths", ["64", "128", "256"], "of a head")
    flags.DEFINE_list("archs", ["80", "90", "100"], "80 is A100, 89 L4, 90 H100, 100 B200")
    flags.DEFINE_string("dtype", "bfloat16", "of q, k and v")
    flags.DEFINE_integer("length", 4096, "tokens")
    flags.DEFINE_integer("spills", 0, "bytes that a kernel may spill")
    flags.DEFINE_integer("processes", os.cpu_count() or 1, "how many compile at a time")
    flags.DEFINE_bool("explicit", False, "at positions that are passed, whatever they are")
    flags.DEFINE_string("out", "runs/gpu", "folder of kernels.csv")
    launch.run_flags(main)
