"""Draws the figures of docs/results/ and README again, from the tables next to them.

    python -m tools.results_docs

No model is trained: docs/figures/*.csv have every seed. Of losses by position they have means only,
so that this figure is without intervals.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from experiments.reporting import images_report, plotting, statistics, tasks_report
from experiments.reporting.comparison import figures, series_figure
from experiments.reporting.extension_report import WORDS, Page
from experiments.reporting.released_report import ReleasedPage
from experiments.reporting.results import Results, Run, Scheme, of_table, told_apart
from experiments.running.command import config_files
from experiments.running.configs.compare import CompareConfig
from experiments.running.configs.extend import ExtendConfig
from experiments.running.configs.images import ImagesConfig
from experiments.running.configs.released import ReleasedConfig
from experiments.running.configs.tasks import TasksConfig
from experiments.running.files import table
from experiments.running.files.manifest import Manifest
from pe_jax.training.config import PROTOCOLS
from pe_jax.training.optimizer import schedule
from pe_jax.training.paths import local

REFERENCE = "rope"
TRAINED = {
    **{"novels": 128, "released": 128, "hybrids": 128, "larger": 512},
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
TRAINED_TASKS = {
    "tasks": 12,
    "tasks_decoders": 16,
    "retrieval_2": 16,
    "retrieval_4": 16,
    "tasks_hybrids": 16,
    "what_where": 16,
}  # symbols
SERIES = ("sizes", "steps")
IMAGES = {"images_accuracy": "discs", "images_digits": "digits"}
EXTENDED = 256  # what configs/extend.py trains at
EXTENSIONS = {"extend": "extend", "extend_4k": "4k"}  # table → part of the config
RELEASED = {  # table → part of the config, and the model's trained length
    "extend_smollm2": ("released_small", 8192),
    "extend_gemma3": ("gemma", 32768),
}
CONFIGS = Path(__file__).parents[1] / "configs"


def config_of(source: str, kind: type) -> Any:
    """The config that a section names: FILE or FILE:PART in configs/."""
    return config_files.final(config_files.load(f"{CONFIGS}/{source}", kind))


def comparison(schemes: Sequence[Scheme], trained: int, lengths: Iterable[int], **about) -> Results:
    """A comparison of these schemes, as far as figures ask about it."""
    seeds = sorted({seed for scheme in schemes for seed in scheme.runs})
    manifest = Manifest(REFERENCE, trained, sorted({*lengths}), seeds, **about)
    return Results(Path(), manifest, told_apart(schemes), None)


def losses(path: Path, trained: int) -> Results:
    """A comparison from the loss of each seed at each length, patterns by PATTERNS."""
    rows = [x._replace(scheme=PATTERNS.get(x.scheme, x.scheme)) for x in table.read(path)]
    return comparison(of_table(rows), trained, {row.length for row in rows})


def by_position(path: Path, like: Results) -> Results:
    """One run per scheme, whose loss at a position is the mean of the bin in the table."""
    bins: dict[str, dict[float, float]] = {}
    for row in table.read_csv(path):
        if row["position"]:
            bins.setdefault(row["encoding"], {})[float(row["position"])] = float(row["loss"])
    at, schemes = np.arange(1, like.longest + 1), []
    windows: Any = {(PROTOCOLS[0], like.longest): np.zeros(12)}
    for index, (name, points) in enumerate(bins.items()):
        distances = np.abs(np.log(at[:, None] / np.array([*points])))
        loss = np.array([*points.values()])[distances.argmin(1)]
        run = Run(0, numbers=windows, evaluation={"by_position": {"loss": loss.tolist()}})
        schemes.append(Scheme(name, name, index, {0: run}))
    return comparison(schemes, like.manifest.train_length, like.manifest.lengths)


def series(path: Path) -> list[series_figure.Point]:
    """The differences of a table that `experiments.report --series` wrote, of seeds from 0 on."""
    points = []
    for row in table.read_csv(path):
        parameters, steps, length = (int(row[x]) for x in ("parameters", "steps", "length"))
        values = statistics.estimate([*map(float, row["each_seed"].split(";"))])
        scheme = Scheme(row["encoding"], row["encoding"], 0, {})
        seeds = tuple(range(values.n))
        points.append(series_figure.Point(scheme, parameters, steps, length, values, seeds))
    return points


def by_step(path: Path, config: CompareConfig) -> Results:
    """Losses while training, with the learning rates of the config."""
    rate, curves = schedule(config.optimizer, config.steps), {}
    for row in table.read_csv(path):
        step = int(row["step"])
        fields = {"step": step, "learning_rate": np.asarray(rate(step)).item()}
        for seed, loss in (part.split(":") for part in row["seeds"].split(";")):
            by_seed = curves.setdefault(row["encoding"], {})
            by_seed.setdefault(int(seed), []).append({**fields, "eval_loss": float(loss)})
    schemes = [
        Scheme(name, name, k, {seed: Run(seed, metrics=tuple(x)) for seed, x in by_seed.items()})
        for k, (name, by_seed) in enumerate(curves.items())
    ]
    return comparison(schemes, config.length, config.eval.lengths, batch=config.batch)


def timed(found: Results, path: Path, config: CompareConfig) -> Results:
    """The same losses, with the time of a step from a table of losses by seconds."""
    rows = table.read_csv(path)
    times = {row["encoding"]: float(row["seconds"]) / int(row["step"]) for row in rows}
    encodings = {name: {"train_ms": [1e3 * seconds]} for name, seconds in times.items()}
    about = {"length": config.length, "batch": config.batch}
    return dataclasses.replace(found, speed={**about, "encodings": encodings})


def extension(folder: Path, stem: str, config: ExtendConfig) -> Page:
    """The extended models, from both tables."""
    rows = [
        x for part in ("sliding", "passkeys") for x in table.read(folder / f"{stem}_{part}.csv")
    ]
    parts = {part: of_table(x for x in rows if x.variant == part) for part in WORDS}
    return Page(config, EXTENDED, int(config.factor * EXTENDED), parts)


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
    for stem, (part, trained) in RELEASED.items():
        config = config_of(f"extend.py:{part}", ReleasedConfig)
        schemes = of_table(table.read(folder / f"{stem}.csv"))
        target = round(config.factor * trained)
        yield stem, ReleasedPage(config, trained, target, schemes, REFERENCE).losses()
    for stem, images in IMAGES.items():
        schemes = of_table(table.read(folder / f"{stem}.csv"))
        yield stem, images_report.figure(ImagesConfig(images=images), schemes)
    for stem, length in TRAINED_TASKS.items():
        rows = table.read(folder / f"{stem}.csv")
        names = tuple(dict.fromkeys(row.test.partition(":")[0] for row in rows))
        longer = tuple(sorted({row.length for row in rows if row.length > length}))
        config = TasksConfig(tasks=names, length=length, lengths=longer)
        yield stem, tasks_report.figure(config, of_table(rows))


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
