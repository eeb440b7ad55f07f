"""Encodings on images: trains what is missing, shows and writes accuracies."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from experiments.reporting import images_report, outputs
from experiments.reporting.images_report import View, names, views
from experiments.reporting.results import of_table
from experiments.running.configs.images import IMAGES, ImagesConfig
from experiments.running.schedule.rate_search import Pair
from experiments.running.schedule.trials import Trials, completed
from experiments.running.schedule.work import Runs, Worker
from pe_jax import position_schemes
from pe_jax import positions as pos
from pe_jax.models.vit import ViT
from pe_jax.training.step import POSITION_FOLD, Trainer

BINDING = ("images", "sides", "patch")  # besides those of all trials
ROWS = 256  # images per forward pass in tests
VALIDATION = 2  # a stream of keys, separate from tests and training
RESCALE = 2.0  # DINOv3's, of augmented positions


class Classifier(Trainer):
    """Trains a ViT on images of one size; `logits` takes any size."""

    def __init__(
        self, config: ImagesConfig, spec: str, places: np.ndarray, mesh, augment: bool = False
    ):
        self.patch, self.places, self.augment = config.patch, places, augment
        self.images = IMAGES[config.images]
        model = dataclasses.replace(config.model, encoding=spec)
        super().__init__(model, config.optimizer, config.steps, mesh, positions=None)
        self.logits = jax.jit(lambda params, x, places: self.model(params)(x, positions=places))
        self.validation = jax.jit(self._validation)

    def build(self, rngs):
        """A ViT."""
        return ViT(self.config, self.patch, self.images.CHANNELS, self.images.CLASSES, rngs=rngs)

    def loss(self, model, batch, key):
        """Mean cross entropy."""
        drop, places = key if self.dropout else None, self.places
        if self.augment:
            position_key = jax.random.fold_in(key, POSITION_FOLD)
            places = pos.augmented(position_key, places, rescale=RESCALE)
        return mean_loss(model(batch["images"], positions=places, key=drop), batch["labels"])

    def _validation(self, params, x, labels):
        return mean_loss(self.model(params)(x, positions=self.places), labels)


def mean_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def places(trainer_axes: int, convention: str, side: int, trained: int) -> np.ndarray:
    """Positions of side × side patches; `trained` patches per side were trained on."""
    if trainer_axes == 1:
        return np.arange(side * side, dtype=np.int32)
    if convention == "resized":
        return np.asarray(pos.resized(side, side, (trained, trained)))
    return np.asarray(pos.grid(side, side, normalized=convention in ("normalized", "augmented")))


def accuracies(
    config: ImagesConfig, trainer: Classifier, convention: str, params, test: dict
) -> dict:
    """Accuracy by view; None where the encoding is not defined there."""
    by_view: dict[str, float | None] = {}
    pattern = trainer.config.pattern
    axes = max(e.claims.axes for e in pattern)
    limit = position_schemes.position_limit(pattern)
    for view, (pixels, labels) in test.items():
        side, trained = view.side // config.patch, config.sides[0] // config.patch
        furthest = side * side if axes == 1 else side
        if convention == "index" and limit is not None and furthest > limit:
            by_view[view.name] = None
            continue
        positions = places(axes, convention, side, trained)
        parts = [pixels[i : i + ROWS] for i in range(0, len(pixels), ROWS)]
        logits = np.concatenate([np.asarray(trainer.logits(params, x, positions)) for x in parts])
        if not np.isfinite(logits).all():
            raise FloatingPointError(f"{view.name}: logits are not finite")
        by_view[view.name] = float((logits.argmax(-1) == labels).mean())
    return by_view


def validation(config: ImagesConfig, trainer: Classifier, params) -> float | None:
    """Mean loss on other images of the trained size; None if it is not finite."""
    key = jax.random.fold_in(jax.random.key(config.seed), VALIDATION)
    draw = IMAGES[config.images].draw
    pixels, labels = draw(key, config.test, config.sides[0], split="validation")
    parts = [slice(begin, begin + ROWS) for begin in range(0, config.test, ROWS)]
    losses = [float(trainer.validation(params, pixels[part], labels[part])) for part in parts]
    return float(np.mean(losses)) if np.isfinite(losses).all() else None


def trained_with(convention: str) -> str:
    """The convention of positions in training; tables are resized in tests alone."""
    return "index" if convention == "resized" else convention


def grouped(config: ImagesConfig) -> dict[tuple[str, str], list[str]]:
    """(spec, convention of positions) of each training → the conventions it is tested with."""
    groups: dict[tuple[str, str], list[str]] = {}
    for spec, convention in config.entries:
        groups.setdefault((spec, trained_with(convention)), []).append(convention)
    return groups


def run(
    config: ImagesConfig, test: Callable[[], dict], item: tuple[str, str], trials: Trials
) -> Runs[dict]:
    """Every seed of an item of `grouped`: seed → its result, with its rates."""
    (spec, convention), conventions = item, grouped(config)[item]
    trained = config.sides[0] // config.patch
    axes = max(e.claims.axes for e in dataclasses.replace(config.model, encoding=spec).pattern)
    positions, augment = places(axes, convention, trained, trained), convention == "augmented"

    @functools.cache
    def classifier(mesh: Mesh) -> Classifier:
        return Classifier(config, spec, positions, mesh, augment)

    def draw(key: jax.Array, step: int) -> tuple[dict, int]:
        key = jax.random.fold_in(key, step - 1)
        pixels, labels = IMAGES[config.images].draw(key, count=config.batch, side=config.sides[0])
        return {"images": pixels, "labels": labels}, config.batch * trained**2

    def train(pair: Pair, seed: int, worker: Worker) -> dict | None:
        trainer = classifier(worker.mesh)

        def score(params) -> dict:
            accuracy = {c: accuracies(config, trainer, c, params, test()) for c in conventions}
            return {"accuracy": accuracy, "validation_loss": validation(config, trainer, params)}

        return trials.train(trainer, draw, score, pair, seed, worker)

    return trials.every_seed(train)


def draw_test_sets(config: ImagesConfig) -> dict[View, tuple[np.ndarray, np.ndarray]]:
    """(images, labels) to test on, the same for all."""
    by_view, draw = {}, IMAGES[config.images].draw
    for number, view in enumerate(views(config)):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), 0), number)
        pixels, labels = draw(key, config.test, view.side, view.zoom, split="test")
        by_view[view] = jax.device_get((pixels, labels))
    return by_view


def main(config: ImagesConfig) -> None:
    """Trains missing runs, then shows and writes the results."""
    workdir, config = Path(config.workdir), config.resolved()
    parts = {item: (item[0], *conventions) for item, conventions in grouped(config).items()}
    train = functools.partial(run, config, functools.cache(lambda: draw_test_sets(config)))
    with completed(main, config, BINDING, parts, train) as (now, runs):
        by_entry = {(spec, c): runs[spec, trained_with(c)] for spec, c in config.entries}
        rows = [*images_report.rows(config, by_entry)]
        specs = {name: spec for name, (spec, _) in zip(names(config), config.entries, strict=True)}
        schemes = of_table(rows, specs)
        compared = images_report.differences(config, schemes)
        chance = IMAGES[config.images].CHANCE
        outputs.write(
            workdir,
            "experiments.images",
            (x for e in runs.values() for x in e.values()),
            {"chance": chance, "config": now, "differences": compared},
            rows,
            [images_report.figure(config, schemes)],
            [images_report.table(config, schemes, rows)],
            images_report.lines(compared),
        )
