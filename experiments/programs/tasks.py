"""Encodings on tasks: trains what is missing, shows and writes accuracies."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from experiments.reporting import outputs, tasks_report
from experiments.reporting.results import of_table
from experiments.running.configs.tasks import TasksConfig
from experiments.running.schedule.rate_search import Pair
from experiments.running.schedule.trials import Trials, completed
from experiments.running.schedule.work import Runs, Worker
from pe_jax import position_schemes
from pe_jax.training import tasks
from pe_jax.training.step import POSITION_FOLD, Trainer, token_losses
from pe_jax.validation import ConfigError

BINDING = ("length", "lengths", "measure", "primary")  # besides those of all trials
TOKENS = 2**14  # per forward pass in tests


class Solver(Trainer):
    """Trains on the rows of any task; `answers` scores test rows."""

    def __init__(
        self,
        config: TasksConfig,
        spec: str,
        positions: str,
        mesh: Mesh,
        vocab: int = tasks.VOCAB,
    ):
        model = dataclasses.replace(config.model, encoding=spec, vocab=vocab)
        super().__init__(model, config.optimizer, config.steps, mesh, positions)
        self.answers = jax.jit(self._answers)

    def _logits(self, model, batch, positions, key=None, testing=False):
        model = self.at_positions(model, positions, batch["tokens"].shape[1], testing)
        return model(batch["tokens"], segments=batch["segments"], positions=positions, key=key)

    def loss(self, model, batch, key):
        """Mean cross entropy over the answers."""
        rows = batch["tokens"], batch["segments"]
        positions = self.position_scheme.training_positions(
            jax.random.fold_in(key, POSITION_FOLD), *rows
        )
        logits = self._logits(model, batch, positions, key if self.dropout else None)
        return mean_loss(logits, batch)

    def _answers(self, params, batch, key):
        positions = self.position_scheme.test_positions(key, batch["tokens"], batch["segments"])
        logits = self._logits(self.model(params), batch, positions, testing=True)
        counts = batch["weights"] > 0
        finite = jnp.where(counts, jnp.isfinite(logits).all(-1), True).all()
        right = (logits.argmax(-1) == batch["targets"]) | ~counts
        return right, finite, mean_loss(logits, batch)

    def defined(self, task: tasks.Task, length: int) -> bool:
        """Whether the task has such questions and all positions of their tokens are defined."""
        limit = position_schemes.position_limit(self.config.pattern)
        width = task.read(length, self.config.causal)
        return task.defined(length) and self.position_scheme.fits(width, limit, testing=True)


def mean_loss(logits: jax.Array, batch: dict) -> jax.Array:
    """Mean cross entropy over the answers."""
    scored = batch["weights"] > 0
    losses = jnp.where(scored, token_losses(logits, batch["targets"]), 0)
    return losses.sum() / scored.sum()


TEST, OTHER, VALIDATION = 0, 2, 3  # streams of questions, separate from those of training


def blocks(
    config: TasksConfig,
    task: tasks.Task,
    length: int,
    stream: int = TEST,
    shortest: int | None = None,
) -> Iterator[dict]:
    """Batches of questions of a length, or from `shortest` on; the same for all encodings."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), stream), length)
    rows = tasks.batch(task, key, config.test, shortest or length, length, config.model.causal)
    fits = max(1, TOKENS // task.read(length, config.model.causal))
    size = next(n for n in range(min(fits, config.test), 0, -1) if config.test % n == 0)
    for begin in range(0, config.test, size):
        yield {name: x[begin : begin + size] for name, x in rows.items()}


class Answers(NamedTuple):
    """A model's answers to the rows of a forward pass.

    `right` is whether each token is, True where no answer is: bool [B, T]; `finite` whether the
    logits of all answers are; `loss` their mean cross entropy.
    """

    right: np.ndarray
    finite: bool
    loss: float


def answered(
    config: TasksConfig, solver: Solver, params: Any, questions: Iterator[dict]
) -> Iterator[tuple[dict, Answers]]:
    """Each of `blocks` with a model's answers."""
    for number, rows in enumerate(questions):
        key = jax.random.fold_in(jax.random.key(config.seed), number)
        yield rows, Answers(*jax.device_get(solver.answers(params, rows, key)))


def accuracy(right: np.ndarray, weights: np.ndarray) -> list[float]:
    """[fraction of tokens, fraction of whole answers] that are right."""
    tokens = (right & (weights > 0)).sum() / (weights > 0).sum()
    return [float(tokens), float((right | (weights == 0)).all(1).mean())]


def score(config: TasksConfig, solver: Solver, task: tasks.Task, params: Any) -> dict:
    """Length → [token accuracy, exact match], or why there is none."""
    return {
        str(length): _score_at(config, solver, task, params, length)
        for length in (config.length, *config.lengths)
    }


def _score_at(
    config: TasksConfig, solver: Solver, task: tasks.Task, params: Any, length: int
) -> list[float] | str:
    if not solver.defined(task, length):
        return "not defined"
    passes = list(answered(config, solver, params, blocks(config, task, length)))
    if not all(answers.finite for _, answers in passes):
        return "not finite"
    right = np.concatenate([answers.right for _, answers in passes])
    return accuracy(right, np.concatenate([np.asarray(rows["weights"]) for rows, _ in passes]))


def validation(config: TasksConfig, solver: Solver, task: tasks.Task, params: Any) -> float | None:
    """Mean loss on other questions of the trained lengths; None if it is not finite."""
    questions = blocks(config, task, config.length, VALIDATION, task.shortest)
    losses = [answers.loss for _, answers in answered(config, solver, params, questions)]
    return float(np.mean(losses)) if np.isfinite(losses).all() else None


def best_fixed_answers(config: TasksConfig, task: tasks.Task) -> dict:
    """The score without reading the questions: always the likeliest token at each place.

    These tokens come from other questions, so that no scored answer was seen.
    """
    by_length: dict[str, list[float] | str] = {}
    for length in (config.length, *config.lengths):
        if not task.defined(length):
            by_length[str(length)] = "not defined"
            continue
        targets, weights, place = _places_in_answers(blocks(config, task, length))
        other_targets, _, other_place = _places_in_answers(blocks(config, task, length, OTHER))
        right = np.zeros(place.shape, bool)
        for k in range(place.max() + 1):
            counts = np.bincount(other_targets[other_place == k], minlength=1)
            right |= (place == k) & (targets == counts.argmax())
        by_length[str(length)] = accuracy(right, weights)
    return by_length


def _places_in_answers(rows: Iterator[dict]) -> tuple[np.ndarray, ...]:
    """Targets, their weights, and the place of each in its answer, -1 outside of answers."""
    listed = [jax.device_get(block) for block in rows]
    targets, weights = (np.concatenate([r[k] for r in listed]) for k in ("targets", "weights"))
    return targets, weights, np.where(weights > 0, weights.cumsum(1).astype(int) - 1, -1)


def run(config: TasksConfig, entry: tuple[str, str], trials: Trials) -> Runs[dict]:
    """Every run of an encoding with its positions: task → seed → its result, with its rates."""

    @functools.cache
    def solver(mesh: Mesh, vocab: int) -> Solver:  # one program for all tasks of few symbols
        return Solver(config, *entry, mesh, vocab)

    def train(task: tasks.Task, pair: Pair, seed: int, worker: Worker) -> dict | None:
        trainer = solver(worker.mesh, max(tasks.VOCAB, task.vocab))

        def draw(key: jax.Array, step: int) -> tuple[dict, int]:
            lengths, key = (task.shortest, config.length), jax.random.fold_in(key, step)
            batch = tasks.batch(task, key, config.batch, *lengths, config.model.causal)
            return batch, batch["tokens"].size

        def scored(params: Any) -> dict:
            arguments = config, trainer, task, params
            return {"scores": score(*arguments), "validation_loss": validation(*arguments)}

        return trials.train(trainer, draw, scored, pair, seed, worker)

    by_task = {}
    for name in config.tasks:
        by_task[name] = yield from trials.every_seed(
            functools.partial(train, tasks.TASKS[name]), name
        )
    return by_task


def digests(config: TasksConfig, saved: dict) -> dict:
    """Digests of each task's questions, to be saved with those of tasks that ran before.

    Raises:
      ConfigError: a task generates other questions than at the first run in the workdir.
    """
    before = saved.get("digests", {})
    now = {name: tasks.TASKS[name].digest for name in config.tasks}
    for name, digest in now.items():
        if before.get(name, digest) != digest:
            raise ConfigError(
                f"tasks: {name!r} has other questions now; use a new --config.workdir"
            )
    return {"digests": before | now}


def main(config: TasksConfig) -> None:
    """Trains missing runs, then shows and writes the results."""
    workdir, config = Path(config.workdir), config.resolved()
    parts = {entry: entry for entry in config.entries()}
    train, also = functools.partial(run, config), functools.partial(digests, config)
    with completed(main, config, BINDING, parts, train, len(config.tasks), also) as (now, runs):
        fixed = {name: best_fixed_answers(config, tasks.TASKS[name]) for name in config.tasks}
        rows = [*tasks_report.rows(config, runs, fixed)]
        schemes = of_table(rows)
        differences = tasks_report.differences(config, schemes)
        outputs.write(
            workdir,
            "experiments.tasks",
            (x for e in runs.values() for task in e.values() for x in task.values()),
            {"config": now, "differences": differences},
            rows,
            [tasks_report.figure(config, schemes)],
            [tasks_report.table(config, schemes, rows)],
            tasks_report.lines(config, differences),
        )
