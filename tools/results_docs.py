"""Draws the figures of docs/results/ and README again, from the tables beside them.

    python -m tools.results_docs

No model is trained: docs/figures/*.csv have every seed. Of losses by position they have means only,
so that this figure is without intervals.
"""

import csv
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from experiments.reporting import (
    figures,
    images_report,
    plotting,
    series_figure,
    statistics,
    tasks_report,
)
from experiments.reporting.extension_report import Page
from experiments.reporting.results import Results, Run, Scheme
from experiments.running import config_files
from experiments.running.sweep_configs import (
    CompareConfig,
    ExtendConfig,
    ImagesConfig,
    TasksConfig,
)
from pe_jax.training.config import PROTOCOLS
from pe_jax.training.optimizer import schedule
from pe_jax.training.paths import local

REFERENCE = "rope"
TRAINED = {"novels": 128, "extrapolation": 64, "field_2026": 64}
TRAINED_TASKS = {"tasks": 12, "tasks_decoders": 16, "what_where": 16}  # symbols
SERIES = ("sizes", "steps")
IMAGES = {"images_accuracy": "discs", "images_digits": "digits"}
EXTENDED = 256  # what configs/extend.py trains at
EXTENSIONS = {"extend": "extend", "extend_4k": "4k"}  # table → part of the config
CONFIGS = Path(__file__).parents[1] / "configs"


def config_of(source: str, kind: type) -> Any:
    """The config that a section names: FILE or FILE:PART in configs/."""
    return config_files.final(config_files.load(f"{CONFIGS}/{source}", kind))


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def results(runs: dict[str, dict[int, Run]], trained: int, lengths: Iterable[int]) -> Results:
    """What the figures of a comparison need, from its runs by scheme and seed."""
    schemes = tuple(Scheme(n, n, k, by_seed) for k, (n, by_seed) in enumerate(runs.items()))
    about = {"reference": REFERENCE, "train_length": trained, "lengths": sorted({*lengths})}
    seeds = sorted({seed for by_seed in runs.values() for seed in by_seed})
    return Results(Path(), {**about, "seeds": seeds}, schemes, None)


def run(seed: int, evaluation: dict, metrics: tuple = ()) -> Run:
    """A finished run."""
    return Run(seed, "ok", "", evaluation, metrics)


def losses(path: Path, trained: int) -> Results:
    """A comparison from the loss of each seed at each length; a seed's mean is its one window."""
    found: dict[str, dict[int, dict]] = {}
    rows = rows_of(path)
    for row in rows:
        seeds = found.setdefault(row["encoding"], {})
        both = seeds.setdefault(int(row["seed"]), {p: {} for p in PROTOCOLS})
        both[row["protocol"]][row["length"]] = [float(row["loss"])] if row["loss"] else None
    runs = {n: {s: run(s, {"losses": x}) for s, x in seeds.items()} for n, seeds in found.items()}
    return results(runs, trained, (int(row["length"]) for row in rows))


def verdicts(path: Path, trained: int) -> Results:
    """A comparison from the paired differences of its verdicts: the reference has a loss of 0."""
    rows = rows_of(path)
    lengths = sorted({int(row["length"]) for row in rows})
    values = {
        (row["encoding"], int(row["length"])): [*map(float, row["each_seed"].split(";"))]
        for row in rows
        if row["each_seed"]
    }
    seeds = range(max(map(len, values.values())))

    def one(name: str, seed: int) -> Run:
        zero = [0.0] * len(seeds) if name == REFERENCE else None
        each = {n: values.get((name, n), zero) for n in lengths}
        losses = {str(n): x and [x[seed]] for n, x in each.items()}
        return run(seed, {"losses": {PROTOCOLS[0]: losses}})

    names = dict.fromkeys(row["encoding"] for row in rows)
    return results({n: {s: one(n, s) for s in seeds} for n in names}, trained, lengths)


def by_position(path: Path, like: Results) -> Results:
    """One run per scheme, whose loss at a position is the mean of the bin in the table."""
    rows = [row for row in rows_of(path) if row["position"]]
    at = np.arange(1, like.longest + 1)
    runs = {}
    for name in dict.fromkeys(row["encoding"] for row in rows):
        points = [(float(r["position"]), float(r["loss"])) for r in rows if r["encoding"] == name]
        centre, loss = np.array(points).T
        nearest = np.abs(np.log(at[:, None] / centre)).argmin(1)
        windows = {PROTOCOLS[0]: {str(like.longest): [0.0] * 12}}
        runs[name] = {
            0: run(0, {"losses": windows, "by_position": {"loss": loss[nearest].tolist()}})
        }
    return results(runs, like.manifest["train_length"], like.manifest["lengths"])


def series(path: Path) -> list[series_figure.Point]:
    """The differences of a table that `experiments.report --series` wrote."""
    rows = rows_of(path)
    schemes = {row["encoding"]: Scheme(row["encoding"], row["encoding"], 0, {}) for row in rows}

    def point(row: dict[str, str]) -> series_figure.Point:
        parameters, steps, length = (int(row[x]) for x in ("parameters", "steps", "length"))
        values = statistics.estimate([*map(float, row["each_seed"].split(";"))])
        return series_figure.Point(schemes[row["encoding"]], parameters, steps, length, values)

    return [*map(point, rows)]


def by_step(path: Path, config: CompareConfig) -> Results:
    """Losses while training, with the learning rates of the config."""
    runs: dict[str, dict[int, list]] = {}
    rate = schedule(config.optimizer, config.steps)
    for row in rows_of(path):
        for part in row["seeds"].split(";"):
            seed, loss = part.split(":")
            step = int(row["step"])
            line = {
                "step": step,
                "eval_loss": float(loss),
                "learning_rate": np.asarray(rate(step)).item(),
            }
            runs.setdefault(row["encoding"], {}).setdefault(int(seed), []).append(line)
    done = {n: {s: run(s, {}, tuple(x)) for s, x in seeds.items()} for n, seeds in runs.items()}
    return results(done, config.length, config.eval.lengths)


def timed(found: Results, path: Path, config: CompareConfig) -> Results:
    """The same losses, with the time of a step from a table of losses by seconds."""
    took = {row["encoding"]: float(row["seconds"]) / int(row["step"]) for row in rows_of(path)}
    each = {name: {"train_ms": [1e3 * seconds]} for name, seconds in took.items()}
    about = {"length": config.length, "batch": config.batch}
    manifest = {**found.manifest, "batch": config.batch}
    return dataclasses.replace(found, manifest=manifest, speed={**about, "encodings": each})


def extension(folder: Path, stem: str, config: ExtendConfig) -> Page:
    """The extended models, from both tables."""
    entries: dict[str, dict] = {}
    text = rows_of(folder / f"{stem}_sliding.csv")
    parts = {"no fine-tune": "plain", f"after {config.steps} steps": "tuned"}

    def part(row: dict[str, str]) -> dict:
        name = row["encoding"]
        entry = entries.setdefault(name, {"name": name, "encoding": name, "seeds": {}})
        seed = entry["seeds"].setdefault(row["seed"], {})
        empty = {"status": "ok", "reason": "", "losses": {}, "passkeys": {}}
        return seed.setdefault(parts[row["fine-tune"]], empty)

    for row in text:
        by_length = part(row)["losses"].setdefault(row["protocol"], {})
        by_length[row["length"]] = [float(row["loss"])]
    for row in rows_of(folder / f"{stem}_passkeys.csv"):
        fields = part(row)["passkeys"].setdefault(row["length"], {"exact": [], "tokens": []})
        for field, values in fields.items():
            values.append(float(row[field]))
    return Page(config, EXTENDED, int(config.factor * EXTENDED), [*entries.values()])


def accuracies(path: Path) -> list[dict]:
    """The entries of the comparison on images."""
    entries: dict[str, dict] = {}
    for row in rows_of(path):
        name = row["encoding"]
        empty = {"name": name, "spec": name, "positions": row["positions"], "accuracy": {}}
        views = entries.setdefault(name, empty)["accuracy"]
        seeds = views.setdefault(f"{row['view']} {row['side']}", {})
        seeds[row["seed"]] = float(row["accuracy"]) if row["accuracy"] else None
    return [*entries.values()]


def scores(path: Path) -> list[dict]:
    """The entries of the comparison on tasks."""
    entries: dict[str, dict] = {}
    for row in rows_of(path):
        entry = entries.setdefault(row["encoding"], {"name": row["encoding"], "scores": {}})
        lengths = entry["scores"].setdefault(row["task"], {})
        numbers = [float(row[x]) for x in ("token_accuracy", "exact_match") if row[x]]
        lengths.setdefault(row["length"], {})[row["seed"]] = numbers or row["note"]
    return [*entries.values()]


def draw(folder: Path) -> Iterable[tuple[str, plotting.Drawing | None]]:
    """(name of the file, figure) of each figure that has its table in `folder`."""
    for stem, trained in TRAINED.items():
        found = losses(folder / f"{stem}.csv", trained)
        yield f"{stem}_differences", figures.differences_by_length(found, PROTOCOLS[0])
        for protocol in PROTOCOLS:
            name = f"{stem}_{protocol.replace('-', '_')}"
            yield name, figures.loss_by_length(found, protocol)
    positions = by_position(folder / "novels_by_position.csv", losses(folder / "novels.csv", 128))
    yield "novels_by_position", figures.differences_by_position(positions)
    compared = config_of("compare.py", CompareConfig)
    decided = verdicts(folder / "compare_verdicts.csv", compared.length)
    yield "compare_differences", figures.differences_by_length(decided, PROTOCOLS[0])
    yield "loss_by_step", figures.loss_by_step(by_step(folder / "loss_by_step.csv", compared))
    trained_on = config_of("steps.py:4000", CompareConfig)
    longer = by_step(folder / "steps_4000_by_step.csv", trained_on)
    yield "steps_4000_by_step", figures.loss_by_step(longer)
    in_time = timed(longer, folder / "steps_4000_by_seconds.csv", trained_on)
    yield "steps_4000_by_seconds", figures.loss_by_seconds(in_time)
    reference = Scheme(REFERENCE, REFERENCE, 0, {})
    for stem in SERIES:
        yield stem, series_figure.differences(series(folder / f"{stem}.csv"), reference)
    for stem, part in EXTENSIONS.items():
        extended = extension(folder, stem, config_of(f"extend.py:{part}", ExtendConfig))
        yield f"{stem}_sliding", extended.losses(PROTOCOLS[1])
        yield f"{stem}_passkeys", extended.map()
    for stem, images in IMAGES.items():
        seen = accuracies(folder / f"{stem}.csv")
        yield stem, images_report.figure(ImagesConfig(images=images), seen, [])
    for stem, length in TRAINED_TASKS.items():
        found = scores(folder / f"{stem}.csv")
        names, longer = list(found[0]["scores"]), map(int, [*found[0]["scores"].values()][0])
        lengths = tuple(n for n in longer if n > length)
        config = TasksConfig(tasks=tuple(names), length=length, lengths=lengths)
        yield stem, tasks_report.figure(config, found, [])


def main(_: list[str]) -> None:
    """Draws all figures."""
    folder = local("figures", flags.FLAGS.figures)
    for name, drawing in draw(folder):
        assert drawing is not None, name
        path = folder / f"{name}.png"
        plotting.picture(drawing, path)
        print(path)


if __name__ == "__main__":
    flags.DEFINE_string("figures", "docs/figures", "folder of the tables and figures")
    app.run(main)
