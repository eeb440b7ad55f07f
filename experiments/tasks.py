"""Encodings on tasks that isolate position: trained on short questions, tested on longer ones.

    python -m experiments.tasks --config=configs/tasks.py

Prints accuracies and writes results.json, tasks.csv and tasks.png into the workdir. Interrupted,
the same command goes on where it was, run by run.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh

from experiments import launch, plotting, solved
from experiments.provenance import save_json, together
from experiments.trials import Trials, finished
from pe_jax.training import placement, tasks
from pe_jax.training.step import PLACES, Trainer, token_losses
from pe_jax.training.sweeps import TasksConfig

BINDING = ("seed", "length", "lengths", "batch", "steps", "test", "model", "optimizer")
TOKENS = 2**14  # in a forward pass of the test


class Solver(Trainer):
    """Trains on the rows of any task; `answers` says what is right of the rows of a test."""

    def __init__(self, config: TasksConfig, spec: str, positions: str, mesh: Mesh):
        model = dataclasses.replace(config.model, encoding=spec, vocab=tasks.VOCAB)
        super().__init__(model, config.optimizer, config.steps, mesh, positions)
        self.answers = jax.jit(self._answers)

    def _logits(self, model, batch, places, key=None):
        model = model.at_length(batch["tokens"].shape[1])
        return model(batch["tokens"], segments=batch["segments"], positions=places, key=key)

    def loss(self, model, batch, key):
        """Mean cross entropy over the answers."""
        rows = batch["tokens"], batch["segments"]
        places = self.positions.train(jax.random.fold_in(key, PLACES), *rows)
        logits = self._logits(model, batch, places, key if self.dropout else None)
        scored = batch["weights"] > 0
        losses = jnp.where(scored, token_losses(logits, batch["targets"]), 0)
        return losses.sum() / scored.sum()

    def _answers(self, params, batch, key):
        places = self.positions.test(key, batch["tokens"], batch["segments"])
        logits = self._logits(self.model(params), batch, places)
        counts = batch["weights"] > 0
        finite = jnp.where(counts, jnp.isfinite(logits).all(-1), True).all()
        return (logits.argmax(-1) == batch["targets"]) | ~counts, finite

    def defined(self, task: tasks.Task, length: int) -> bool:
        """Whether the task has such questions, and their tokens positions that are defined."""
        limit, width = placement.limit(self.config.pattern), task.read(length, self.config.causal)
        return task.defined(length) and self.positions.fits(width, limit, testing=True)


TEST, OTHER = 0, 2  # streams of questions, beside those of training


def blocks(
    config: TasksConfig, task: tasks.Task, length: int, stream: int = TEST
) -> Iterator[dict]:
    """The questions to test on at a length, the same for all, in forward passes of one size."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), stream), length)
    rows = tasks.batch(task, key, config.test, length, length, config.model.causal)
    fits = max(1, TOKENS // task.read(length, config.model.causal))
    size = next(n for n in range(min(fits, config.test), 0, -1) if config.test % n == 0)
    for begin in range(0, config.test, size):
        yield {name: x[begin : begin + size] for name, x in rows.items()}


def accuracy(right: np.ndarray, weights: np.ndarray) -> list[float]:
    """[part of the tokens, part of the whole answers] that are right."""
    tokens = (right & (weights > 0)).sum() / (weights > 0).sum()
    return [float(tokens), float((right | (weights == 0)).all(1).mean())]


def score(config: TasksConfig, solver: Solver, task: tasks.Task, params: Any) -> dict:
    """By length: [token accuracy, exact match], or in words why there is none."""
    found: dict[str, list[float] | str] = {}
    for length in (config.length, *config.lengths):
        if not solver.defined(task, length):
            found[str(length)] = "not defined"
            continue
        right, weights, whole = [], [], True
        for number, rows in enumerate(blocks(config, task, length)):
            key = jax.random.fold_in(jax.random.key(config.seed), number)
            given, finite = jax.device_get(solver.answers(params, rows, key))
            right.append(given)
            weights.append(np.asarray(rows["weights"]))
            whole &= bool(finite)
        found[str(length)] = (
            accuracy(np.concatenate(right), np.concatenate(weights)) if whole else "not finite"
        )
    return found


def fixed(config: TasksConfig, task: tasks.Task) -> dict:
    """What knowing the task, but no question, would score: the likeliest token at each place.

    Of other questions than those that it is scored on, or it would have seen some of the answers.
    """
    found: dict[str, list[float] | str] = {}
    for length in (config.length, *config.lengths):
        if not task.defined(length):
            found[str(length)] = "not defined"
            continue
        targets, weights, place = _placed(blocks(config, task, length))
        seen, _, where = _placed(blocks(config, task, length, OTHER))
        right = np.zeros(place.shape, bool)
        for at in range(place.max() + 1):
            counts = np.bincount(seen[where == at], minlength=1)
            right |= (place == at) & (targets == counts.argmax())
        found[str(length)] = accuracy(right, weights)
    return found


def _placed(rows: Iterator[dict]) -> tuple[np.ndarray, ...]:
    """Targets, their weights, and the place of each in its answer, -1 where it is none."""
    listed = [jax.device_get(block) for block in rows]
    targets, weights = (np.concatenate([r[k] for r in listed]) for k in ("targets", "weights"))
    return targets, weights, np.where(weights > 0, weights.cumsum(1).astype(int) - 1, -1)


def one(config: TasksConfig, solver: Solver, task: tasks.Task, seed: int, stop) -> dict:
    """Trains once; scores by length. Empty if a signal came."""
    begin, keys = time.monotonic(), jax.random.fold_in(jax.random.key(seed), 1)
    state, loss = solver.init(seed), np.nan
    for step in range(1, config.steps + 1):
        key = jax.random.fold_in(keys, step)
        lengths = task.shortest, config.length
        batch = tasks.batch(task, key, config.batch, *lengths, config.model.causal)
        state, values = solver.step(state, batch, np.int32(seed))
        if step % config.log_every == 0 or step == config.steps:
            loss = float(values["loss"])
            what = solver.config.encoding, task.short, seed, step, loss
            logging.info("%s, %s, seed %d: step %d, loss %.4f", *what)
            if int(state.skipped[0]) > solver.skips:
                return {"status": "diverged", "step": step}
        if stop.signal is not None:
            return {}
    found = {"status": "ok", "loss": loss, "scores": score(config, solver, task, state.params)}
    return {**found, "seconds": time.monotonic() - begin}


def run(config: TasksConfig, entry: tuple[str, str], trials: Trials) -> dict:
    """Every run of an encoding with its positions: task → seed → what it gave."""
    solver = functools.cache(lambda: Solver(config, *entry, trials.mesh))
    found: dict[str, dict] = {name: {} for name in config.tasks}
    for seed in range(config.seed, config.seed + config.seeds):  # a seed of all tasks, first
        for name in config.tasks:
            found[name][seed] = trials.found(
                f"{name}/seed{seed}",
                lambda task=tasks.TASKS[name], seed=seed: one(
                    config, solver(), task, seed, trials.stop
                ),
            )
    return found


def digests(config: TasksConfig, saved: dict) -> dict:
    """Of the questions of each task, to be saved with those of tasks that ran before.

    Raises:
      ValueError: a task generates other questions than when the workdir was begun.
    """
    before = saved.get("digests", {})
    now = {name: tasks.TASKS[name].digest for name in config.tasks}
    for name, digest in now.items():
        if before.get(name, digest) != digest:
            raise ValueError(f"tasks: {name!r} has other questions now; use a new --config.workdir")
    return {"digests": before | now}


def main(config: TasksConfig) -> None:
    """Runs what is missing, then shows and writes what was found."""
    workdir = Path(config.workdir)
    names = {entry: entry for entry in config.entries()}
    work, also = functools.partial(run, config), functools.partial(digests, config)
    with finished(config, BINDING, names, work, also) as (now, runs):
        entries = solved.collect(config, runs, lambda name: fixed(config, tasks.TASKS[name]))
        found = solved.differences(config, entries)
        plotting.save(solved.figure(config, entries, solved.listed(entries)), workdir)
        about = together(x for e in runs.values() for task in e.values() for x in task.values())
        about |= {"config": now, "encodings": entries, "differences": found}
        save_json(workdir / "results.json", about)
    launch.show(solved.table(config, entries))
    print(*solved.lines(config, found), sep="\n")
    print(f"Results: {workdir / 'results.json'}, {workdir / 'tasks.png'}")


if __name__ == "__main__":
    launch.run(main, "configs/tasks.py", TasksConfig)
