"""The driver of a sweep: jobs in parallel, each a sequence of runs that are kept once finished."""

import contextlib
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from experiments.running import rate_search, signals
from experiments.running.configs.sweep import TrialsConfig
from experiments.running.errors import one_line_errors
from experiments.running.in_flight import InFlight
from experiments.running.lock import Lock
from experiments.running.parallel_runs import run_in_parallel, run_meshes
from experiments.running.provenance import environment, save_json
from experiments.running.rate_search import Pair
from experiments.running.run_names import folder, rates_name
from experiments.running.run_table import Reporter, RunTable
from pe_jax.training import sharding
from pe_jax.training.checkpoint import check_same
from pe_jax.training.step import Trainer

RATES = ("learning_rate", "encoding_rate")


class Job:
    """Runs that follow each other, for they share compiled programs.

    Attributes:
      name: a key of the jobs that `run_jobs` was given.
      mesh: the devices of this job.
      stop: whether a signal came.
      table: shows the runs.
    """

    def __init__(self, name: Any, mesh: Mesh, stop: signals.Stop, table: RunTable):
        self.name, self.mesh, self.stop, self.table = name, mesh, stop, table

    def run(self, label: str, files: Iterable[Path], train: Callable[[], object]) -> bool:
        """Whether the run is finished: now, by `train`, or before. A signal leaves it unfinished.

        Args:
          label: of the run, in the table.
          files: its results; it is finished when all are there.
          train: trains and writes them, unless a signal comes.
        """
        files = list(files)
        if all(path.exists() for path in files):
            self.table.skip(self.name, label)
            return True
        if self.stop.signal is not None:
            return False
        self.table.start(self.name, label)
        train()
        if not all(path.exists() for path in files):
            return False
        self.table.finish(label)
        return True

    def search(
        self, pairs: list[Pair], loss: Callable[[Pair], float], rounds: int, steps: int
    ) -> dict[Pair, float]:
        """Like `rate_search.search`, where each `loss` is a run of `steps` steps."""

        def planned_loss(pair: Pair) -> float:
            if pair not in pairs:
                self.table.add(self.name, steps)
            return loss(pair)

        return rate_search.search(pairs, planned_loss, rounds)


@contextlib.contextmanager
def locked(workdir: Path, name: str, description: dict) -> Iterator[None]:
    """Holds the lock of a workdir, and saves what its runs are; an OSError ends on one line."""
    with one_line_errors():
        lock = Lock(workdir)
    with contextlib.closing(lock):
        with one_line_errors():
            save_json(workdir / name, description)
        yield


def run_jobs(
    jobs: Mapping[Any, Sequence[int]], run: Callable[[Job], Any], meshes: list[Mesh]
) -> dict[Any, Any]:
    """Job → its result; exits with a signal's status if one came, on one line after a ConfigError.

    Args:
      jobs: name → the steps of each of its runs, in the order in which the jobs start.
      run: runs all of a job.
      meshes: the devices of each concurrent job.
    """
    with signals.Stop() as stop, one_line_errors(), RunTable(jobs, len(meshes)) as table:
        results = run_in_parallel(
            lambda name, mesh: run(Job(name, mesh, stop, table)), jobs, meshes, stop
        )
    stop.leave()
    return dict(zip(jobs, results, strict=True))


class Trials:
    """Short runs of a job, one file each.

    Attributes:
      config: of the sweep.
      folder: of the files.
      entry: what the job trains, its encoding first; saved with each result.
      job: runs them.
    """

    def __init__(self, config: TrialsConfig, folder: Path, entry: list[str], job: Job):
        self.config, self.folder, self.entry, self.job = config, folder, entry, job

    def every_seed(
        self, train: Callable[[Pair, int, Reporter], dict], name: str = ""
    ) -> dict[int, dict]:
        """Seed → its result, with the rates that the first seed chose.

        Args:
          train: (rates, seed, …) → result with its `validation_loss`, None if that is not finite.
          name: of these runs, before their rates and seeds, if the entry has others.
        """
        config = self.config
        first, *others = range(config.seed, config.seed + config.seeds)
        tried = {}

        def run(pair: Pair, seed: int) -> dict:
            path = Path(name, rates_name(*pair), f"seed{seed}")
            result = self.result(str(path), functools.partial(train, pair, seed))
            return {**result, **dict(zip(RATES, pair, strict=True))}

        def loss(pair: Pair) -> float:
            tried[pair] = run(pair, first)
            loss = tried[pair].get("validation_loss")
            return math.inf if loss is None else loss

        pairs = rate_search.grid(config, self.entry[0])
        used = rate_search.best(self.job.search(pairs, loss, config.rate_rounds, config.steps))
        return {first: tried[used]} | {seed: run(used, seed) for seed in others}

    def result(self, name: str, train: Callable[[Reporter], dict]) -> dict:
        """The saved result of the run, or that of `train`; empty if a signal came first."""
        path, label = self.folder / f"{name}.json", f"{' '.join(self.entry)} {name}"

        def train_and_save() -> None:
            if result := train(Reporter(self.job.table.report, label)):
                save_json(path, {"entry": self.entry, **environment(), **result})

        finished = self.job.run(label, [path], train_and_save)
        return json.loads(path.read_text()) if finished else {}  # new ones too: keys are strings

    def train(
        self,
        make_trainer: Callable[[], Trainer],
        draw: Callable[[jax.Array, int], tuple[dict, int]],
        score: Callable[[Any], dict],
        pair: Pair,
        seed: int,
        report: Reporter,
    ) -> dict:
        """Trains at a pair of rates, and returns the result; empty if a signal came.

        Args:
          make_trainer: called once; a function, so that finished runs need none.
          draw: (PRNG key of the seed, step from 1 on) → a batch, and its number of tokens.
          score: parameters → more fields of the result.
          pair: the learning rate, and the multiple of it for parameters of encodings.
          seed: of the parameters and the batches.
          report: called every `log_every` steps and after the last.
        """
        begin, config, trainer = time.monotonic(), self.config, make_trainer()
        rates = dict(zip(RATES, pair, strict=True))
        state = trainer.init(seed, dataclasses.replace(config.optimizer, **rates))
        key = jax.random.fold_in(jax.random.key(seed), 1)
        loss, in_flight = math.nan, InFlight()
        for step in range(1, config.steps + 1):
            batch, tokens = draw(key, step)
            state, metrics = trainer.step(state, batch, np.int32(seed))
            in_flight.add(metrics.loss)
            if step % config.log_every == 0 or step == config.steps:
                loss = float(metrics.loss)
                report(step, config.steps, loss, tokens)
                if int(state.skipped[0]) > trainer.skips:
                    return {"status": "diverged", "step": step}
            if self.job.stop.signal is not None:
                return {}
        result = {"status": "ok", "loss": loss, **score(state.params)}
        return {**result, "seconds": time.monotonic() - begin}


@contextlib.contextmanager
def completed(
    config: TrialsConfig,
    binding: tuple[str, ...],
    entries: Mapping[tuple[str, str], Iterable[str]],
    run: Callable[[tuple[str, str], Trials], Any],
    searches: int = 1,
    also: Callable[[dict], dict] = lambda saved: {},
) -> Iterator[tuple[dict, dict]]:
    """Locks the workdir and trains missing trials; yields the config as saved, and all results.

    Exits on one line if the config or the workdir is invalid, before anything is written.

    Args:
      config: of the sweep.
      binding: fields that must equal those of the workdir's config.
      entries: what runs in parallel, an encoding first → the parts of its folder's name.
      run: trains all runs of an entry.
      searches: how often it calls `Trials.every_seed`.
      also: saved config → more fields to save; may raise ConfigError.
    """
    workdir = Path(config.workdir)
    path, now = workdir / "config.json", json.loads(json.dumps(dataclasses.asdict(config)))
    with one_line_errors():
        meshes = run_meshes(config)
        sharding.check_fits(config.model, config.batch, meshes[0])
        folders = {entry: workdir / "runs" / folder(*parts) for entry, parts in entries.items()}
        saved = json.loads(path.read_text()) if path.exists() else {}
        if saved:
            check_same(saved, now, binding)
        description = now | also(saved)

    def run_entry(job: Job) -> Any:
        return run(job.name, Trials(config, folders[job.name], [*entries[job.name]], job))

    with locked(workdir, path.name, description):
        grids = {entry: len(rate_search.grid(config, entry[0])) for entry in entries}
        counts = {entry: searches * (size + config.seeds - 1) for entry, size in grids.items()}
        jobs = {entry: [config.steps] * count for entry, count in counts.items()}
        yield now, run_jobs(jobs, run_entry, meshes)
