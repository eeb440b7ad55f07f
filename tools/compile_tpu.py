"""Compiles training and decoding for a TPU slice, on a machine without a TPU.

    python -m tools.compile_tpu --config=configs/train.py --topology=v5e:16x16 \
      --config.mesh.fsdp=16 --encodings=rope --encodings=alibi

The programs are the real ones: the step of `Trainer` with its shardings, and `decode_step` of
`generate` with a cache of `length` tokens. They are traced as on the slice, with the engine and
tiles that would be chosen there. Needs the extra `tpu` (libtpu). Prints a table and writes
compiled.json; the exit status is 1 if a program did not compile.

The figures are estimates. Memory is the compiler's own count. `optimal` is XLA's roofline, which
counts the body of a loop once and so underestimates by the number of layers and tiles; it is left
out if negative, as for loops of unknown length. `compute` adds the TPU compiler's cycles of every
operation times its executions; Pallas kernels have none, so their products count at the chip's
peak, an underestimate. `exchange` is the bytes that a chip sends over the published bandwidth of
all its links: faster than a real network, but without overlap with computation. Data input, the
host, and waiting for other chips are not counted. If the tiles that run depend on packed documents,
each row counts as one document.
"""

import dataclasses
import re
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import rich.table
from absl import flags, logging
from jax.sharding import NamedSharding, PartitionSpec

from experiments.measuring import flops
from experiments.measuring.hlo_trip_counts import Tiles, tiles
from experiments.measuring.timing import plain
from experiments.measuring.workloads import SPECS
from experiments.running.command import launch
from experiments.running.files.provenance import commit, save_json
from experiments.running.process.errors import one_line_errors
from pe_jax.encodings import ENCODINGS
from pe_jax.models import generate
from pe_jax.training import sharding, tokenizer
from pe_jax.training.config import Config
from pe_jax.training.paths import local
from pe_jax.training.step import Trainer
from tools import hlo, tpu_slice

COLUMNS = {  # of the table, per chip and step: title → its text in a row
    "GiB in": lambda r: f"{r['arguments'] / tpu_slice.GIB:.2f}",
    "between": lambda r: f"{r['temporaries'] / tpu_slice.GIB:.2f}",
    "in all": lambda r: f"{r['total'] / tpu_slice.GIB:.2f}",
    "fits": lambda r: "yes" if r["fits"] else "no",
    "TFLOP": lambda r: plain(r["flops"] / 1e12),
    "optimal ms": lambda r: plain(1e3 * r["optimal_seconds"]) if r["optimal_seconds"] else "–",
    "compute ms": lambda r: "≥ " * bool(r["unpriced"]) + plain(1e3 * r["compute_seconds"]),
    "exchange ms": lambda r: plain(1e3 * r["exchange_seconds"]),
}


def specs(encodings: list[str], config: Config) -> list[str]:
    """The encodings to compile; `all` means every encoding of one axis."""
    if "all" not in encodings:
        return encodings or [config.model.encoding]
    names = [name for name, scheme in ENCODINGS.items() if scheme().claims.axes == 1]
    return [SPECS.get(name, name).format(length=config.length) for name in names]


def decode_program(trainer: Trainer, config: Config) -> Any:
    """One token for each of `batch` rows, against a cache of `length` tokens, traced."""
    mesh, batch, length = trainer.mesh, config.batch, config.length

    def model(params):
        return trainer.model(params).at_length(length)

    cache = jax.eval_shape(lambda p: model(p).init_cache(batch, length), trainer.shapes)
    layout = sharding.cache_shardings(cache, mesh)

    def step(params, token, cache, key):
        return generate.decode_step(model(params), token, cache, key, 0.0, 0)

    rows, replicated = sharding.batch_sharding(mesh), NamedSharding(mesh, PartitionSpec())
    compiled = jax.jit(
        step,
        in_shardings=(trainer.shardings.params, rows, layout, replicated),
        out_shardings=(rows, layout),
        donate_argnums=2,
    )
    token = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return compiled.trace(trainer.shapes, token, cache, jax.eval_shape(jax.random.key, 0))


PROGRAMS = ("train", "decode")


def measure(config: Config, program: str, devices: list, chip: tpu_slice.Chip) -> dict:
    """The compiler's figures for one program of `config.model`, or why it was refused."""
    model = config.model
    row = {"encoding": model.encoding, "program": program}
    with tpu_slice.tracing_for(devices):
        mesh = sharding.make_mesh(config.mesh, devices)
        lengths = {"length": config.length} if program == "train" else None
        sharding.check_fits(model, config.batch, mesh, lengths, config.microbatches)
        schedule = config.optimizer, config.steps
        trainer = Trainer(model, *schedule, mesh, config.positions, config.microbatches)
        masked = Tiles()
        if program == "train":
            masked = tiles(model, config.batch, config.length, trainer.layout, mesh.size)
        with trainer.use_mesh():
            if program == "train":
                traced = trainer.step.trace(*trainer.arguments(config.batch, config.length))
            else:
                traced = decode_program(trainer, config)
        lowered = traced.lower()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return row | refused(str(error))
    row |= memory(compiled, chip) | work(compiled, traced.jaxpr, masked, len(devices), chip)
    return row | {"status": "ok"}


def refused(text: str) -> dict:
    """The reason of a compiler error: it does not fit, or the error's text."""
    for pattern in (
        r"Used ([\d.]+[KMGT]?) of ([\d.]+[KMGT]?) hbm",
        r"HLO temporaries \(([\d.]+[KMGT]?)\) exceeds available HBM \(([\d.]+[KMGT]?)\)",
    ):
        if match := re.search(pattern, text):
            return {"status": "does not fit", "why": f"needs {match[1]} of {match[2]} per chip"}
    return {"status": "does not compile", "why": " ".join(text.split())[:300]}


def memory(compiled: Any, chip: tpu_slice.Chip) -> dict:
    """Bytes per chip of arguments, of temporaries and of all; and whether they fit."""
    analysis = compiled.memory_analysis()
    total = analysis.output_size_in_bytes - analysis.alias_size_in_bytes  # outputs in arguments
    total += analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
    total += analysis.generated_code_size_in_bytes
    return {
        "arguments": analysis.argument_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
        "total": total,
        "fits": total <= chip.hbm,
    }


def work(compiled: Any, jaxpr: Any, masked: Tiles, chips: int, chip: tpu_slice.Chip) -> dict:
    """Operations, seconds and collectives, per chip and step."""
    cost, summary = compiled.cost_analysis(), hlo.summarize(compiled.as_text(), masked.turns)
    products = flops.count(jaxpr, *masked)
    return {
        "flops": products.total / chips,
        # Negative, and meaningless, if the compiler does not know a loop's bound.
        "optimal_seconds": cost["optimal_seconds"] if cost["optimal_seconds"] > 0 else None,
        "compute_seconds": summary.cycles / chip.clock + products.kernels / chips / chip.peak,
        "unpriced": summary.unpriced,
        "exchange_seconds": sum(c.moved for c in summary.collectives.values()) / chip.links,
        "collectives": {k: dataclasses.asdict(c) for k, c in sorted(summary.collectives.items())},
        "loops": {**masked._asdict(), "found": summary.loops, "counted_once": summary.unknown},
    }


def tables(rows: list[dict], title: str) -> Iterator[rich.table.Table]:
    """All programs, with the reason for those that did not compile; then their collectives."""
    table = rich.table.Table("encoding", "program", *COLUMNS, title=title)
    for row in rows:
        ok = row["status"] == "ok"
        cells = [f(row) for f in COLUMNS.values()] if ok else [f"{row['status']}: {row['why']}"]
        table.add_row(row["encoding"], row["program"], *cells)
    yield table
    table = rich.table.Table("encoding", "program", "collective", "per step", "MiB per chip")
    for row in rows:
        for kind, total in row.get("collectives", {}).items():
            size = plain(total["bytes"] / 2**20)
            table.add_row(row["encoding"], row["program"], kind, f"{total['count']:.0f}", size)
    yield table


def main(config: Config) -> None:
    """Compiles the programs that the flags select, and reports what they need."""
    options = flags.FLAGS
    with one_line_errors():
        chip = tpu_slice.check(options.topology)
        jax.config.update("jax_platforms", "cpu")
        devices = tpu_slice.devices(options.topology)
        vocab = config.model.vocab or tokenizer.get(config.tokenizer).vocab
        model = dataclasses.replace(config.model, vocab=vocab)
        models = [dataclasses.replace(model, encoding=s) for s in specs(options.encodings, config)]
        for model in models:
            model.check()
    rows = []
    for model in models:
        config = dataclasses.replace(config, model=model)
        for program in options.program:
            with one_line_errors():
                rows.append(measure(config, program, devices, chip))
            logging.info("%s, %s: %s", model.encoding, program, rows[-1]["status"])
    title = f"{options.topology}, {len(devices)} chips: estimates of the compiler"
    about = {"topology": options.topology, "chips": len(devices), "commit": commit()}
    about |= {"jax": jax.__version__, "config": dataclasses.asdict(config)}
    save_json(local("out", options.out) / "compiled.json", {**about, "programs": rows})
    launch.show(*tables(rows, title))
    sys.exit(any(row["status"] != "ok" for row in rows))


def define_flags() -> None:
    """Defines the flags of this program."""
    flags.DEFINE_string("topology", "v5e:2x2", "the slice, as v5e:16x16 or v5p:4x4x4")
    flags.DEFINE_multi_string("encodings", [], "instead of model.encoding; `all` is every one")
    flags.DEFINE_multi_enum("program", [*PROGRAMS], [*PROGRAMS], "what to compile")
    flags.DEFINE_string("out", "runs/compile", "folder of compiled.json")


if __name__ == "__main__":
    define_flags()
    launch.run(main, "configs/train.py", Config)
