"""Sweeps of short trainings in a workdir: a file for each, so that nothing finished runs again."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from experiments.running import signals
from experiments.running.errors import one_line_errors
from experiments.running.lock import Lock
from experiments.running.parallel_runs import run_in_parallel, run_meshes
from experiments.running.provenance import environment, save_json
from experiments.running.run_names import slug
from experiments.running.sweep_configs import TrialsConfig
from pe_jax.training import sharding
from pe_jax.training.checkpoint import check_same


class Trials:
    """The runs of one entry: read from their files, or trained now.

    Attributes:
      entry: what it is, saved with each result.
      mesh: the devices of this entry.
      stop: tells whether a signal came.
    """

    def __init__(self, folder: Path, entry: list[str], mesh: Mesh, stop: signals.Stop):
        self.folder, self.entry, self.mesh, self.stop = folder, entry, mesh, stop

    def result(self, name: str, train: Callable[[], dict]) -> dict:
        """The saved result of the run, or that of `train()`; empty where a signal came first."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            result = {} if self.stop.signal is not None else train()
            if not result:
                return {}
            save_json(path, {"entry": self.entry, **environment(), **result})
        return json.loads(path.read_text())  # as JSON has it, now and later


def folders(entries: Mapping[Any, Iterable[str]]) -> dict[Any, str]:
    """A folder's name for each entry, of its parts.

    Raises:
      ValueError: two have the same.
    """
    names = {entry: "-".join(slug(x)[:60] for x in parts) for entry, parts in entries.items()}
    for entry, name in names.items():
        if [*names.values()].count(name) > 1:
            raise ValueError(f"encodings: {entry}: another one has the same name in a path, {name}")
    return names


def check_entry(folder: Path, parts: list[str]) -> None:
    """Raises ValueError if a folder holds runs of another entry: names are cut short."""
    for path in folder.rglob("*.json"):
        saved = json.loads(path.read_text()).get("entry")
        if saved != parts:
            raise ValueError(
                f"encodings: {path} is of {saved}, not of {parts}; use a new --config.workdir"
            )


def nothing_else(saved: dict) -> dict:
    """For sweeps whose workdir's config holds their configuration alone."""
    del saved
    return {}


@contextlib.contextmanager
def completed(
    config: TrialsConfig,
    binding: tuple[str, ...],
    entries: Mapping[Any, Iterable[str]],
    run: Callable[[Any, Trials], Any],
    also: Callable[[dict], dict] = nothing_else,
) -> Iterator[tuple[dict, dict]]:
    """Trains what is missing, and holds the workdir: yields the config as saved, and all results.

    Ends the program, on one line where the config or the workdir is wrong, before anything is
    written; or with the signal's status.

    Args:
      config: of the sweep.
      binding: fields in which the workdir's config must be the same.
      entries: what runs side by side, and of what parts its folder's name is made.
      run: all runs of an entry.
      also: what else the workdir's config holds, from what it held; may raise ValueError.
    """
    workdir = Path(config.workdir)
    path, now = workdir / "config.json", json.loads(json.dumps(dataclasses.asdict(config)))
    with one_line_errors():
        meshes = run_meshes(config)
        sharding.check_fits(config.model, config.batch, meshes[0])
        names = folders(entries)
        saved = json.loads(path.read_text()) if path.exists() else {}
        if saved:
            check_same(saved, now, binding)
        for entry, parts in entries.items():
            check_entry(workdir / "runs" / names[entry], [*parts])
        kept = now | also(saved)
        lock = Lock(workdir)
        save_json(path, kept)
    with contextlib.closing(lock), signals.Stop() as stop:

        def run_entry(entry: Any, mesh: Mesh) -> Any:
            folder = workdir / "runs" / names[entry]
            return run(entry, Trials(folder, [*entries[entry]], mesh, stop))

        with one_line_errors():
            results = run_in_parallel(run_entry, entries, meshes, stop)
        stop.leave()
        yield now, dict(zip(entries, results, strict=True))
