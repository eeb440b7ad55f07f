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
from experiments.running.parallel_runs import lanes, spread
from experiments.running.provenance import made, save_json
from experiments.running.run_names import slug
from experiments.running.sweep_configs import TrialsConfig
from pe_jax.training import sharding
from pe_jax.training.checkpoint import check_same


class Trials:
    """The runs of one entry: what was found before, or is found now.

    Attributes:
      entry: what it is, kept beside each result.
      mesh: the devices of this entry.
      stop: tells whether a signal came.
    """

    def __init__(self, folder: Path, entry: list[str], mesh: Mesh, stop: signals.Stop):
        self.folder, self.entry, self.mesh, self.stop = folder, entry, mesh, stop

    def found(self, name: str, train: Callable[[], dict]) -> dict:
        """What the run gave, or `train()` gives now; empty where a signal came first."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            given = {} if self.stop.signal is not None else train()
            if not given:
                return {}
            save_json(path, {"entry": self.entry, **made(), **given})
        return json.loads(path.read_text())  # as JSON has it, now and later


def folders(entries: Mapping[Any, Iterable[str]]) -> dict[Any, str]:
    """A folder's name for each entry, of its parts.

    Raises:
      ValueError: two have the same.
    """
    found = {entry: "-".join(slug(x)[:60] for x in parts) for entry, parts in entries.items()}
    for entry, name in found.items():
        if [*found.values()].count(name) > 1:
            raise ValueError(f"encodings: {entry}: another one has the same name in a path, {name}")
    return found


def check_entry(folder: Path, parts: list[str]) -> None:
    """Raises ValueError if a folder holds runs of another entry: names are cut short."""
    for path in folder.rglob("*.json"):
        before = json.loads(path.read_text()).get("entry")
        if before != parts:
            raise ValueError(
                f"encodings: {path} is of {before}, not of {parts}; use a new --config.workdir"
            )


@contextlib.contextmanager
def finished(
    config: TrialsConfig,
    binding: tuple[str, ...],
    entries: Mapping[Any, Iterable[str]],
    run: Callable[[Any, Trials], Any],
    also: Callable[[dict], dict] = lambda saved: {},
) -> Iterator[tuple[dict, dict]]:
    """Holds the workdir, in which all runs are done: gives the config as saved, and what they gave.

    Ends the program, on one line where the config or the workdir is wrong, before anything is
    written; or with the signal's status.

    Args:
      config: of the sweep.
      binding: fields in which the workdir's config must be the same.
      entries: what runs side by side, and of what parts its folder's name is made.
      run: all runs of an entry.
      also: what else the workdir's config holds, from what it held; may raise ValueError.
    """
    workdir, path = Path(config.workdir), Path(config.workdir) / "config.json"
    now = json.loads(json.dumps(dataclasses.asdict(config)))
    with one_line_errors():
        meshes = lanes(config)
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

        def each(entry, mesh: Mesh):
            return run(
                entry, Trials(workdir / "runs" / names[entry], [*entries[entry]], mesh, stop)
            )

        with one_line_errors():
            given = spread(each, entries, meshes, stop)
        stop.leave()
        yield now, dict(zip(entries, given, strict=True))
