"""Sweeps of short trainings in a workdir: one file per run, so that finished runs are kept."""

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from experiments.running import rate_search, signals
from experiments.running.errors import one_line_errors
from experiments.running.lock import Lock
from experiments.running.parallel_runs import run_in_parallel, run_meshes
from experiments.running.provenance import environment, save_json
from experiments.running.rate_search import Pair
from experiments.running.run_names import folder, rates_name
from experiments.running.run_table import Reporter, RunTable
from experiments.running.sweep_configs import TrialsConfig
from pe_jax.training import sharding
from pe_jax.training.checkpoint import check_same

RATES = ("learning_rate", "encoding_rate")


class Trials:
    """The runs of one entry: read from their files, or trained now.

    Attributes:
      entry: its description, saved with each result.
      mesh: the devices of this entry.
      stop: whether a signal came.
      table: shows the runs; the folder is their job.
    """

    def __init__(
        self, folder: Path, entry: list[str], mesh: Mesh, stop: signals.Stop, table: RunTable
    ):
        self.folder, self.entry, self.mesh, self.stop = folder, entry, mesh, stop
        self.table = table

    def result(self, name: str, train: Callable[[Reporter], dict]) -> dict:
        """The saved result of the run, or that of `train`; empty if a signal came first."""
        path, label = self.folder / f"{name}.json", f"{' '.join(self.entry)} {name}"
        if path.exists():
            self.table.skip(self.folder, label)
        elif self.stop.signal is not None:
            return {}
        else:
            self.table.start(self.folder, label)
            result = train(Reporter(self.table.report, label))
            if not result:
                return {}
            save_json(path, {"entry": self.entry, **environment(), **result})
            self.table.finish(label)
        return json.loads(path.read_text())  # new results as JSON too: keys become strings

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
          spec: the encoding, whose parameters may have rates of their own.
          train: (rates, seed, …) → result with its `validation_loss`, None if that is not finite.
          name: of these runs, before their rates and seeds, if the entry has others.
        """
        first, *others = range(config.seed, config.seed + config.seeds)
        pairs, found = rate_search.grid(config, spec), {}

        def run(pair: Pair, seed: int) -> dict:
            path = Path(name, rates_name(*pair), f"seed{seed}")
            result = self.result(str(path), functools.partial(train, pair, seed))
            return {**result, **dict(zip(RATES, pair, strict=True))}

        def loss(pair: Pair) -> float:
            if pair not in pairs:
                self.table.add(self.folder, config.steps)
            found[pair] = run(pair, first)
            loss = found[pair].get("validation_loss")
            return math.inf if loss is None else loss

        used = rate_search.best(rate_search.search(pairs, loss, config.rate_rounds))
        return {first: found[used]} | {seed: run(used, seed) for seed in others}


def count_runs(config: TrialsConfig, spec: str) -> int:
    """How many runs `Trials.every_seed` has, before any further rounds."""
    return len(rate_search.grid(config, spec)) + config.seeds - 1


def nothing_else(saved: dict) -> dict:
    """Adds nothing to the saved config."""
    del saved
    return {}


@contextlib.contextmanager
def completed(
    config: TrialsConfig,
    binding: tuple[str, ...],
    entries: Mapping[Any, Iterable[str]],
    runs: Callable[[Any], int],
    run: Callable[[Any, Trials], Any],
    also: Callable[[dict], dict] = nothing_else,
) -> Iterator[tuple[dict, dict]]:
    """Locks the workdir and trains missing runs; yields the config as saved, and all results.

    Exits on one line if the config or the workdir is invalid, before anything is written; or with
    the signal's status.

    Args:
      config: of the sweep.
      binding: fields that must equal those of the workdir's config.
      entries: what runs in parallel → the parts of its folder's name.
      runs: how many an entry has.
      run: trains all runs of an entry.
      also: saved config → more fields to save; may raise ConfigError.
    """
    workdir = Path(config.workdir)
    path, now = workdir / "config.json", json.loads(json.dumps(dataclasses.asdict(config)))
    with one_line_errors():
        meshes = run_meshes(config)
        sharding.check_fits(config.model, config.batch, meshes[0])
        names = {entry: folder(*parts) for entry, parts in entries.items()}
        saved = json.loads(path.read_text()) if path.exists() else {}
        if saved:
            check_same(saved, now, binding)
        kept = now | also(saved)
        lock = Lock(workdir)
        save_json(path, kept)
    jobs = {workdir / "runs" / names[entry]: [config.steps] * runs(entry) for entry in entries}
    table = RunTable(jobs, len(meshes))
    with contextlib.closing(lock), signals.Stop() as stop:

        def run_entry(entry: Any, mesh: Mesh) -> Any:
            path = workdir / "runs" / names[entry]
            return run(entry, Trials(path, [*entries[entry]], mesh, stop, table))

        with one_line_errors(), table:
            results = run_in_parallel(run_entry, entries, meshes, stop)
        stop.leave()
        yield now, dict(zip(entries, results, strict=True))
