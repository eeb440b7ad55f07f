"""Times attention, decoding, models and training steps; writes a CSV and prints tables."""

import dataclasses
import sys
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
from experiments.running.command import launch
from experiments.running.files.provenance import about, save_json
from experiments.running.process import signals

PACKAGES = ("pe_jax", "jax", "jaxlib", "flax", "numpy", "torch")


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
            program, row = None, dataclasses.replace(row, note=timing.reason(error))
            outcome = f"not run: {row.note}"
        logging.info("%s [%d/%d] %s, %s: %s", where, i + 1, len(planned), scheme, engine, outcome)
        yield row, program


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


def main(settings: Settings) -> Timings:
    """Measures and writes; returns the rows."""
    out, facts = Path(settings.out), about("experiments.benchmark", PACKAGES)
    save_json(out / "benchmark.json", {"flags": dataclasses.asdict(settings), **facts})
    with signals.Stop() as stop, stop.saving():  # the rows so far
        timings = run(settings, stop)
    print(f"Results: {out}")
    if stop.signal is not None:
        sys.exit(128 + stop.signal)
    return timings
