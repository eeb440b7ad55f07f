"""Times attention, decoding and a model with every encoding; writes tables and figures."""

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
from absl import logging

from experiments.measuring import timing, workloads
from experiments.measuring.benchmark_settings import Settings
from experiments.measuring.timing import DENSE, NAIVE, Row, Timings
from experiments.measuring.workloads import Planned, Program
from experiments.reporting import benchmark_report, plotting
from experiments.running import launch, signals
from experiments.running.errors import one_line_errors
from experiments.running.provenance import commit, processor, save_json

PACKAGES = ("pe_jax", "jax", "jaxlib", "flax", "numpy", "torch")


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
    """Compiles each program and calls it once; a failure is a row with the reason."""
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
    drawing = benchmark_report.figure(timings)
    plotting.write(drawing, out)
    (out / "benchmark.svg").write_text(plotting.vector(drawing), encoding="utf-8")
    print(f"Results: {out}")
    if stop.signal is not None:
        sys.exit(128 + stop.signal)
