"""The driver of a sweep: jobs in parallel, each a sequence of runs that are kept once finished."""

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from experiments.running import rate_search, signals
from experiments.running.configs.sweep import TrialsConfig
from experiments.running.errors import one_line_errors
from experiments.running.lock import Lock
from experiments.running.parallel_runs import run_in_parallel, run_meshes
from experiments.running.provenance import environment, save_json
from experiments.running.rate_search import Pair
from experiments.running.run_names import folder, rates_name
from experiments.running.run_table import Reporter, RunTable
from pe_jax.training import sharding
from pe_jax.training.checkpoint import check_same

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
      folder: of the files.
      entry: what the job trains, saved with each result.
      job: runs them.
    """

    def __init__(self, folder: Path, entry: list[str], job: Job):
        self.folder, self.entry, self.job = folder, entry, job

    def result(self, name: str, train: Callable[[Reporter], dict]) -> dict:
        """The saved result of the run, or that of `train`; empty if a signal came first."""
        path, label = self.folder / f"{name}.json", f"{' '.join(self.entry)} {name}"

        def train_and_save() -> None:
            if result := train(Reporter(self.job.table.report, label)):
                save_json(path, {"entry": self.entry, **environment(), **result})

        finished = self.job.run(label, [path], train_and_save)
        return json.loads(path.read_text()) if finished else {}  # new ones too: keys are strings

    def every_seed(
        self,
        config: TrialsConfig,
        spec: str,
        train: Callable[[Pair, int, Reporter], dict],
        name: str = "",
    ) -> dict[int, dict]:
        """Seed → its result, with the rates that the first seed chose.

        Args:
          config: of the sweep.
          spec: the encoding, whose parameters may have separate rates.
          train: (rates, seed, …) → result with its `validation_loss`, None if that is not finite.
          name: of these runs, before their rates and seeds, if the entry has others.
        """
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

        pairs = rate_search.grid(config, spec)
        used = rate_search.best(self.job.search(pairs, loss, config.rate_rounds, config.steps))
        return {first: tried[used]} | {seed: run(used, seed) for seed in others}


def count_runs(config: TrialsConfig, spec: str) -> int:
    """How many runs `Trials.every_seed` has, before any further rounds."""
    return len(rate_search.grid(config, spec)) + config.seeds - 1


@contextlib.contextmanager
def completed(
    config: TrialsConfig,
    binding: tuple[str, ...],
    entries: Mapping[Any, Iterable[str]],
    runs: Callable[[Any], int],
    run: Callable[[Any, Trials], Any],
    also: Callable[[dict], dict] = lambda saved: {},
) -> Iterator[tuple[dict, dict]]:
    """Locks the workdir and trains missing trials; yields the config as saved, and all results.

    Exits on one line if the config or the workdir is invalid, before anything is written.

    Args:
      config: of the sweep.
      binding: fields that must equal those of the workdir's config.
      entries: what runs in parallel → the parts of its folder's name.
      runs: the number of runs of an entry.
      run: trains all runs of an entry.
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
        return run(job.name, Trials(folders[job.name], [*entries[job.name]], job))

    with locked(workdir, path.name, description):
        jobs = {entry: [config.steps] * runs(entry) for entry in entries}
        yield now, run_jobs(jobs, run_entry, meshes)
