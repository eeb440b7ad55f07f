"""Draws the figures of docs/results/ and README again, from the tables next to them.

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
from experiments.reporting.results import Results, Scheme, finished, nested, of_runs, of_table
from experiments.running import config_files
from experiments.running.configs.compare import CompareConfig
from experiments.running.configs.extend import ExtendConfig
from experiments.running.configs.images import ImagesConfig
from experiments.running.configs.tasks import TasksConfig
from pe_jax.training.config import PROTOCOLS
from pe_jax.training.optimizer import schedule
from pe_jax.training.paths import local

REFERENCE = "rope"
TRAINED = {
    **{"novels": 128, "released": 128, "larger": 512},
    **{"extrapolation": 64, "field_2026": 64, "compare": 64},
}
PATTERNS = {  # too long for a figure → who has them
    "rope base 1024 fraction 0.5": "modded-nanogpt",
    "rope*3,nope": "SmolLM3",
    "rope@window=128*3,nope": "RNoPE-SWA",
    "rope@window=32*3,nope": "RNoPE-SWA",
    "rope@window=32*3,nope+temperature(floor_scale=128)": "Llama 4 with windows",
    "rope@window=32*3,rope(base=1e6)": "Gemma 3",
    "rope+sink@window=32,rope+sink": "gpt-oss",
}
BY_LENGTH = ("novels", "extrapolation", "field_2026")  # drawn as losses too
TRAINED_TASKS = {"tasks": 12, "tasks_decoders": 16, "retrieval_2": 16, "what_where": 16}  # symbols
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


def losses(path: Path, trained: int) -> Results:
    """A comparison from the loss of each seed at each length, patterns by PATTERNS."""
    rows = [{**x, "encoding": PATTERNS.get(x["encoding"], x["encoding"])} for x in rows_of(path)]
    return of_table(rows, REFERENCE, trained)


def by_position(path: Path, like: Results) -> Results:
    """One run per scheme, whose loss at a position is the mean of the bin in the table."""
    rows = [row for row in rows_of(path) if row["position"]]
    bins = nested(rows, ("encoding", "position"), lambda row: float(row["loss"]))
    at, runs = np.arange(1, like.longest + 1), {}
    windows = {PROTOCOLS[0]: {str(like.longest): [0.0] * 12}}
    for name, points in bins.items():
        centre = np.array([*map(float, points)])
        loss = np.array([*points.values()])[np.abs(np.log(at[:, None] / centre)).argmin(1)]
        runs[name] = {0: finished({"losses": windows, "by_position": {"loss": loss.tolist()}})}
    trained, lengths = like.manifest["train_length"], like.manifest["lengths"]
    return of_runs(runs, REFERENCE, trained, lengths)


def series(path: Path) -> list[series_figure.Point]:
    """The differences of a table that `experiments.report --series` wrote, of seeds from 0 on."""
    points = []
    for row in rows_of(path):
        parameters, steps, length = (int(row[x]) for x in ("parameters", "steps", "length"))
        values = statistics.estimate([*map(float, row["each_seed"].split(";"))])
        scheme = Scheme(row["encoding"], row["encoding"], 0, {})
        seeds = tuple(range(values.n))
        points.append(series_figure.Point(scheme, parameters, steps, length, values, seeds))
    return points


def by_step(path: Path, config: CompareConfig) -> Results:
    """Losses while training, with the learning rates of the config."""
    rate = schedule(config.optimizer, config.steps)

    def line(row: dict) -> dict:
        step = int(row["step"])
        fields = {"step": step, "learning_rate": np.asarray(rate(step)).item()}
        return {**fields, "eval_loss": float(row["loss"])}

    rows = (
        {**row, **dict(zip(("seed", "loss"), part.split(":"), strict=True))}
        for row in rows_of(path)
        for part in row["seeds"].split(";")
    )
    curves = nested(rows, ("encoding", "seed", "step"), line)
    runs = {n: {s: finished({}, [*x.values()]) for s, x in by.items()} for n, by in curves.items()}
    lengths = config.eval.lengths
    return of_runs(runs, REFERENCE, config.length, lengths, batch=config.batch)


def timed(found: Results, path: Path, config: CompareConfig) -> Results:
    """The same losses, with the time of a step from a table of losses by seconds."""
    times = {row["encoding"]: float(row["seconds"]) / int(row["step"]) for row in rows_of(path)}
    encodings = {name: {"train_ms": [1e3 * seconds]} for name, seconds in times.items()}
    about = {"length": config.length, "batch": config.batch}
    return dataclasses.replace(found, speed={**about, "encodings": encodings})


def extension(folder: Path, stem: str, config: ExtendConfig) -> Page:
    """The extended models, from both tables."""
    parts = {"no fine-tune": "plain", f"after {config.steps} steps": "tuned"}
    tables = [
        [{**row, "part": parts[row["fine-tune"]]} for row in rows_of(folder / f"{stem}_{x}.csv")]
        for x in ("sliding", "passkeys")
    ]
    keys = ("encoding", "seed", "part")
    text = nested(tables[0], (*keys, "protocol", "length"), lambda row: [float(row["loss"])])
    answers = nested(tables[1], (*keys, "length", "depth"), lambda row: row)

    def part(losses: dict, by_length: dict) -> dict:
        passkeys = {
            n: {x: [float(row[x]) for row in by_depth.values()] for x in ("exact", "tokens")}
            for n, by_depth in by_length.items()
        }
        return {"status": "ok", "reason": "", "losses": losses, "passkeys": passkeys}

    entries = []
    for name, seeds in text.items():
        by_seed = {
            seed: {x: part(losses, answers[name][seed][x]) for x, losses in by_part.items()}
            for seed, by_part in seeds.items()
        }
        entries.append({"name": name, "encoding": name, "seeds": by_seed})
    return Page(config, EXTENDED, int(config.factor * EXTENDED), entries)


def accuracies(path: Path) -> list[dict]:
    """The entries of the comparison on images."""
    rows = [{**row, "name": f"{row['view']} {row['side']}"} for row in rows_of(path)]
    keys = ("encoding", "name", "seed")
    by_scheme = nested(rows, keys, lambda row: float(row["accuracy"]) if row["accuracy"] else None)
    return [{"name": name, "spec": name, "accuracy": views} for name, views in by_scheme.items()]


def scores(path: Path) -> list[dict]:
    """The entries of the comparison on tasks."""

    def score(row: dict) -> list[float] | str:
        return [float(row[x]) for x in ("token_accuracy", "exact_match") if row[x]] or row["note"]

    by_scheme = nested(rows_of(path), ("encoding", "task", "length", "seed"), score)
    return [{"name": name, "scores": tasks} for name, tasks in by_scheme.items()]


def draw(folder: Path) -> Iterable[tuple[str, plotting.Drawing | None]]:
    """(name of the file, figure) of each figure that has its table in `folder`."""
    for stem, trained in TRAINED.items():
        results = losses(folder / f"{stem}.csv", trained)
        drawn = figures.differences_by_length(results, PROTOCOLS[0], closely=True)
        yield f"{stem}_differences", drawn
        for protocol in PROTOCOLS if stem in BY_LENGTH else ():
            name = f"{stem}_{protocol.replace('-', '_')}"
            yield name, figures.loss_by_length(results, protocol)
    positions = by_position(folder / "novels_by_position.csv", losses(folder / "novels.csv", 128))
    yield "novels_by_position", figures.differences_by_position(positions)
    compared = config_of("compare.py", CompareConfig)
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
        entries = accuracies(folder / f"{stem}.csv")
        yield stem, images_report.figure(ImagesConfig(images=images), entries, [])
    for stem, length in TRAINED_TASKS.items():
        entries = scores(folder / f"{stem}.csv")
        names, longer = list(entries[0]["scores"]), map(int, [*entries[0]["scores"].values()][0])
        lengths = tuple(n for n in longer if n > length)
        config = TasksConfig(tasks=tuple(names), length=length, lengths=lengths)
        yield stem, tasks_report.figure(config, entries, [])


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
