"""Time and memory of attention with every encoding, compared with other implementations.

    python -m experiments.benchmark --lengths=4096,8192 --out=runs/benchmark
    python -m experiments.benchmark --modes=train --train_sizes=0.1M,10M --out=runs/train

For each length and mode, all programs are compiled, then timed in turn (see timing.py): the bare
matmuls, every scheme by our engines, by jax.nn.dot_product_attention with a materialised bias, and
by PyTorch's FlexAttention where torch is installed. Mode train times one training step, with RoPE,
by our trainer, in plain JAX and in PyTorch, in turn with two matrix products. Files in --out:
benchmark.csv, benchmark.json (versions, device, flags), benchmark.svg and benchmark.png. Ctrl-C
writes the results so far; `python -m tools.performance_docs` makes a page of it.
"""

import dataclasses
import importlib.metadata
import os
import platform
import shlex
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import jax
from absl import app, flags, logging

from experiments.measuring import timing, training_steps, workloads
from experiments.measuring.timing import DENSE, NAIVE, OURS, Row, Timings
from experiments.measuring.workloads import ENGINES, FLEX, MODES, SCHEMES, Planned, Program, Sizes
from experiments.reporting import benchmark_report, plotting
from experiments.running import launch, signals
from experiments.running.errors import one_line_errors
from experiments.running.provenance import commit, save_json
from pe_jax.engines import inputs
from pe_jax.validation import is_int, nearest, require

PACKAGES = ("pe_jax", "jax", "jaxlib", "flax", "numpy", "torch")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags; on the command line lists are separated by commas."""

    lengths: tuple[int, ...] = (512, 1024, 4096, 8192)
    model_lengths: tuple[int, ...] = (1024, 4096)
    train_sizes: tuple[str, ...] = tuple(training_steps.SIZES)
    schemes: tuple[str, ...] = SCHEMES
    modes: tuple[str, ...] = tuple(MODES)
    engines: tuple[str, ...] = (OURS, DENSE, NAIVE, FLEX, *training_steps.OTHERS)
    heads: int = 8
    head_dim: int = 64
    batch: int = 1
    dtype: str = "float32"
    causal: bool = True
    repeats: int = 5
    dense_limit: int = 1024
    naive_limit: int = 4096
    out: str = "runs/benchmark"

    @property
    def sizes(self) -> Sizes:
        """The sizes of all programs."""
        return Sizes(self.batch, self.heads, self.head_dim, self.dtype, self.causal)

    @property
    def groups(self) -> list[tuple[int, str]]:
        """Every (length, mode): the programs of each are timed in turn."""
        modes = [m for m in self.modes if m not in ("model", "train")]
        groups = [(n, title) for n in self.lengths for m in modes for title in MODES[m]]
        if "model" in self.modes:
            groups += [(n, title) for n in self.model_lengths for title in MODES["model"]]
        if "train" in self.modes:
            sizes = {name: training_steps.SIZES[name] for name in self.train_sizes}
            groups += [(size.length, training_steps.title(name)) for name, size in sizes.items()]
        return groups

    def check(self) -> None:
        """Raises ValueError, naming the flag, its value and the fix, before anything compiles."""
        choices = {"modes": MODES, "engines": ENGINES, "schemes": SCHEMES}
        choices |= {"train_sizes": training_steps.SIZES}
        for field, known in {**choices, "dtype": ("float32", "bfloat16")}.items():
            value = getattr(self, field)
            require(bool(value), field, value, f"choose from {', '.join(known)}")
            for name in (value,) if isinstance(value, str) else value:
                near = nearest(name, known)
                require(name in known, field, name, f"did you mean {near!r}? {', '.join(known)}")
        require("nope" in self.schemes, "schemes", self.schemes, "add nope: ratios are to it")
        for field in ("lengths", "model_lengths"):
            lengths = getattr(self, field)
            fine = bool(lengths) and all(is_int(n, 2) for n in lengths)
            require(fine, field, lengths, "pass integers of at least 2")
            require(len({*lengths}) == len(lengths), field, lengths, "pass each length once")
        for field, low in {"heads": 1, "head_dim": 1, "batch": 1, "repeats": 5}.items():
            value = getattr(self, field)
            require(is_int(value, low), field, value, f"pass an integer of at least {low}")
        decodes = self.causal or "decode" not in self.modes
        require(decodes, "causal", self.causal, "decoding is causal: take it out of --modes")
        for name in self.schemes:
            try:
                encoding = workloads.scheme(name, self.lengths[0])
                encoding.check(self.sizes.dims)
                inputs.causal(encoding, self.causal)
            except ValueError as error:
                raise ValueError(f"schemes={name!r}: {error}") from error
        for name in ("benchmark.csv", "benchmark.json"):
            there = (Path(self.out) / name).exists()
            require(not there, "out", self.out, f"it has a {name} already; choose another folder")


def processor() -> str:
    """The CPU's name, if the system reports it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def about(settings: Settings) -> dict:
    """The machine, versions and command of the results."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "command": shlex.join(["python", "-m", "experiments.benchmark", *sys.argv[1:]]),
        "flags": dataclasses.asdict(settings),
        "versions": {"python": platform.python_version(), **versions},
        "commit": commit(),
        "backend": jax.default_backend(),
        "device": f"{len(jax.devices())} × {jax.devices()[0].device_kind}",
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
    }


def build(
    planned: list[Planned], length: int, mode: str, stop: signals.Stop
) -> Iterator[tuple[Row, Program | None]]:
    """Compiles each program and calls it once; what fails is a row with the reason."""
    where = f"{length} tokens, {mode}"
    for i, (scheme, engine, compile_row) in enumerate(planned):
        if stop.signal is not None:
            return
        row, program = Row(length, mode, scheme, engine), None
        try:
            program = compile_row()
            jax.block_until_ready(program.run())
            row = dataclasses.replace(row, **{f: getattr(program, f) for f in program._fields[1:]})
            outcome = f"compiled in {program.compile_seconds:.1f} s"
        except Exception as error:  # a compiler or an allocator may raise anything
            program, row = None, dataclasses.replace(row, note=_reason(error))
            outcome = f"not run: {row.note}"
        logging.info("%s [%d/%d] %s, %s: %s", where, i + 1, len(planned), scheme, engine, outcome)
        yield row, program


def _reason(error: Exception) -> str:
    kind = "" if isinstance(error, workloads.Refused) else f"{type(error).__name__}: "
    return textwrap.shorten(f"{kind}{error}", 160, placeholder=" …")


def measure(settings: Settings, length: int, mode: str, stop: signals.Stop) -> list[Row]:
    """The rows of one length and mode."""
    limits = {DENSE: settings.dense_limit, NAIVE: settings.naive_limit}
    names = settings.schemes, settings.engines
    planned = list(workloads.plan(settings.sizes, length, mode, *names, limits))
    built = list(build(planned, length, mode, stop))
    programs = {row.key: program.run for row, program in built if program}
    begin, logged = time.monotonic(), -1

    def proceed(done: int) -> bool:
        nonlocal logged
        if done > logged:
            spent, text = time.monotonic() - begin, "%d tokens, %s: round %d of %d, after %.0f s"
            logging.info(text, length, mode, done + 1, settings.repeats, spent)
            logged = done
        return stop.signal is None

    times = timing.interleave(programs, settings.repeats, proceed=proceed)
    rows = []
    for row, program in built:
        seconds = tuple(times.get(row.key, ()))
        note = row.note if seconds or not program else "stopped before it was timed"
        rows.append(dataclasses.replace(row, seconds=seconds, note=note))
    return rows


def run(settings: Settings, stop: signals.Stop) -> Timings:
    """Measures all, and writes the rows after each length and mode."""
    timings = Timings(())
    for length, mode in settings.groups:
        timings = Timings((*timings.rows, *measure(settings, length, mode, stop)))
        path = Path(settings.out) / "benchmark.csv"
        plotting.write_csv(path, timing.CSV_HEADER, timings.csv_rows())
        launch.show(*benchmark_report.terminal(timings, length, mode))
        if stop.signal is not None:
            break
    return timings


def main(settings: Settings) -> None:
    """Checks, measures, writes."""
    out = Path(settings.out)
    with one_line_errors():
        settings.check()
        save_json(out / "benchmark.json", about(settings))
    with signals.Stop() as stop:
        timings = run(settings, stop)
    launch.show(benchmark_report.growth_table(timings))
    svg = plotting.save(benchmark_report.figure(timings), out)
    (out / "benchmark.svg").write_text(svg, encoding="utf-8")
    print(f"Results: {out}")
    if stop.signal is not None:
        sys.exit(128 + stop.signal)


HELP = {
    "lengths": "tokens, for all modes but model",
    "model_lengths": "tokens, for mode model",
    "train_sizes": f"models, for mode train: {', '.join(training_steps.SIZES)}",
    "schemes": "encodings; alibi_plain skips no tiles, shaw_keys adds no vectors at the values",
    "modes": f"what is timed: {', '.join(MODES)}",
    "engines": f"what computes it: {', '.join(ENGINES)}; {OURS} is pe_jax with its default engine",
    "heads": "of attention",
    "head_dim": "width of a head",
    "batch": "sequences per call",
    "dtype": "of q, k and v: float32 or bfloat16",
    "causal": "whether later tokens are hidden",
    "repeats": "rounds of timing",
    "dense_limit": f"the greatest length for engine {DENSE}",
    "naive_limit": f"the greatest length for engine {NAIVE}, which needs gigabytes beyond it",
    "out": "folder of the results",
}


def define() -> None:
    """A flag for every field of Settings, with its default."""
    kinds = {int: flags.DEFINE_integer, bool: flags.DEFINE_bool, tuple: flags.DEFINE_list}
    for field in dataclasses.fields(Settings):
        default = field.default
        kind = kinds.get(type(default), flags.DEFINE_string)
        shown = [str(x) for x in default] if isinstance(default, tuple) else default
        kind(field.name, shown, HELP[field.name])


def parse(argv: list[str]) -> Settings:
    """The settings of a command line; an invalid one exits with one line and status 2."""
    with one_line_errors():
        try:
            rest = flags.FLAGS(argv)
        except flags.Error as error:
            raise ValueError(str(error)) from error
        if rest[1:]:
            raise ValueError(f"{rest[1]!r} is not a flag; write --FLAG=VALUE")
        values = {f.name: getattr(flags.FLAGS, f.name) for f in dataclasses.fields(Settings)}
        for field in ("lengths", "model_lengths"):
            words = values[field]
            fine = all(word.strip().isdecimal() for word in words)
            require(fine, field, ",".join(words), "pass integers of at least 2, as 512,1024")
            values[field] = tuple(map(int, words))
        for field in ("schemes", "modes", "engines", "train_sizes"):
            values[field] = tuple(dict.fromkeys(word.strip() for word in values[field]))
        return Settings(**values)


if __name__ == "__main__":
    define()
    launch.quiet_libraries()
    app.run(main, flags_parser=parse)
