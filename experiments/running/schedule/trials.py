"""Trials, short trainings without checkpoints: runs of tasks and images, a JSON file for each."""

import contextlib
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.running.configs.sweep import TrialsConfig
from experiments.running.files import own_code
from experiments.running.files.run_names import folder, rates_name
from experiments.running.process.devices import run_meshes
from experiments.running.process.errors import one_line_errors
from experiments.running.schedule import driver, rate_search
from experiments.running.schedule.rate_search import RATES, Pair
from experiments.running.schedule.work import Run, Runs, Work, Worker
from experiments.running.training.training_loop import InFlight
from pe_jax.training import sharding
from pe_jax.training.checkpoint import check_same
from pe_jax.training.metrics import Progress
from pe_jax.training.step import Trainer

# What all results of a workdir share; the question is declared before any of them.
BINDING = ("seed", "batch", "steps", "test", "model", "optimizer", "reference", "code")
Train = Callable[[Pair, int, Worker], dict | None]  # (rates, seed, …) → result; None if stopped


class Trials:
    """The trials of an entry.

    `entry` begins with the encoding and is saved with each result.
    """

    def __init__(self, config: TrialsConfig, folder: Path, entry: list[str]):
        self.config, self.folder, self.entry = config, folder, entry
        self.pairs = rate_search.grid(config, entry[0])

    def every_seed(self, train: Train, name: str = "") -> Runs[dict[int, dict]]:
        """Seed → its result, with the rates that the first seed chose.

        Results of `train` have a `validation_loss`, None if it is not finite; `name` tells these
        runs from others of the entry.
        """
        config = self.config
        first, *others = config.every_seed

        def run(pair: Pair, seed: int) -> Run:
            path = str(Path(name, rates_name(*pair), f"seed{seed}"))
            label, file = f"{' '.join(self.entry)} {path}", self.folder / f"{path}.json"
            return Run(label, file, config.steps, functools.partial(train, pair, seed))

        tried: dict[Pair, dict] = {}

        def losses_of(pairs: list[Pair]) -> Runs[list[float]]:
            results = yield [run(pair, first) for pair in pairs]
            tried.update(zip(pairs, results, strict=True))
            found = [result.get("validation_loss") for result in results]
            return [math.inf if loss is None else loss for loss in found]

        losses = yield from rate_search.search(self.pairs, losses_of, config.rate_rounds)
        used = rate_search.best(losses)
        results = yield [run(used, seed) for seed in others]
        rates = dict(zip(RATES, used, strict=True))
        by_seed = zip(config.every_seed, [tried[used], *results], strict=True)
        return {seed: {**result, **rates} for seed, result in by_seed}

    def train(
        self,
        trainer: Trainer,
        draw: Callable[[jax.Array, int], tuple[dict, int]],
        score: Callable[[Any], dict],
        pair: Pair,
        seed: int,
        worker: Worker,
    ) -> dict | None:
        """Trains at a pair of rates, and returns the result; None if a signal came.

        Args:
          trainer: of the entry.
          draw: (PRNG key of the seed, step from 1 on) → a batch, and its number of tokens.
          score: parameters → more fields of the result.
          pair: the learning rate, and the multiple of it for parameters of encodings.
          seed: of the parameters and the batches.
          worker: hears of the loss every `log_every` steps and after the last.
        """
        config, rates = self.config, dict(zip(RATES, pair, strict=True))
        state = trainer.init(seed, dataclasses.replace(config.optimizer, **rates))
        key = jax.random.fold_in(jax.random.key(seed), 1)
        loss, in_flight, reported = math.nan, InFlight(), (time.monotonic(), 0)
        for step in range(1, config.steps + 1):
            batch, tokens = draw(key, step)
            state, metrics = trainer.step(state, batch, np.int32(seed))
            in_flight.add(metrics.loss)
            if step % config.log_every == 0 or step == config.steps:
                loss = float(metrics.loss)
                (before, first), reported = reported, (time.monotonic(), step)
                speed = (step - first) * tokens / max(reported[0] - before, 1e-9)
                worker.report(Progress(worker.label, step, config.steps, loss, speed))
                if int(state.skipped[0]) > trainer.skips:
                    return {"entry": self.entry, "status": "diverged", "step": step}
            if worker.stop.signal is not None:
                return None
        return {"entry": self.entry, "status": "ok", "loss": loss, **score(state.params)}


@contextlib.contextmanager
def completed(
    program: Callable[[Any], Any],
    config: TrialsConfig,
    binding: tuple[str, ...],
    entries: Mapping[tuple[str, str], Iterable[str]],
    run: Callable[[tuple[str, str], Trials], Runs[Any]],
    searches: int = 1,
    also: Callable[[dict], dict] = lambda saved: {},
) -> Iterator[tuple[dict, dict]]:
    """Locks the workdir and trains missing trials; yields the config as saved, and all results.

    Exits on one line if the config or the workdir is invalid, before anything is written.

    Args:
      program: which calls this.
      config: of the sweep.
      binding: further fields that must equal those of the workdir's config.
      entries: what runs in parallel, an encoding first → the parts of its folder's name.
      run: all runs of an entry.
      searches: how often it calls `Trials.every_seed`.
      also: saved config → more fields to save; may raise ConfigError.
    """
    workdir = Path(config.workdir)
    path, now = workdir / "config.json", json.loads(json.dumps(dataclasses.asdict(config)))
    now["code"] = own_code.digests(config.encodings)
    with one_line_errors():
        meshes = run_meshes(config)
        sharding.check_fits(config.model, config.batch, meshes[0])
        saved = json.loads(path.read_text()) if path.exists() else {}
        if saved:
            check_same(saved, now, (*BINDING, *binding))
        manifest = now | also(saved)
    works = []
    for entry, parts in entries.items():
        parts = [*parts]
        trials = Trials(config, workdir / "runs" / folder(*parts), parts)
        count = searches * (len(trials.pairs) + config.seeds - 1)
        works.append(Work(entry, [config.steps] * count, run(entry, trials)))
    with driver.opened(program, config, path, manifest, meshes) as runs:
        yield now, runs.run(works)
