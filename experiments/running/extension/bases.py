"""The trained runs: of plain RoPE, which are extended, and of other encodings, which are not."""

import hashlib
import itertools
import json
from pathlib import Path
from typing import NamedTuple

from experiments.running.configs.extend import ExtendConfig
from experiments.running.extension.methods import Trained, names
from experiments.running.files import manifest as manifests
from experiments.running.schedule.rate_search import RATES
from experiments.running.training import trained_run
from pe_jax.encodings import Encoding
from pe_jax.encodings.rope import RoPE
from pe_jax.training import manifest
from pe_jax.training.checkpoint import BINDING, difference
from pe_jax.training.config import Config
from pe_jax.training.paths import local
from pe_jax.validation import ConfigError

SHARED = (*(field for field in BINDING if field != "seed"), "steps")  # the same in all runs


class Base(NamedTuple):
    """A trained run.

    `saved` is its config.json, `digest` that of its last checkpoint; `diverged` says why it has no
    model.
    """

    folder: Path
    config: Config
    saved: dict
    digest: str
    diverged: str = ""

    def trained(self, factor: float) -> Trained:
        """What methods are applied to, with a target of `factor` times the trained length."""
        return Trained(self.config.model, self.config.length, factor)


def read_runs(config: ExtendConfig) -> tuple[list[Base], dict[str, list[Base]]]:
    """The runs that are extended; and those of other encodings in `trained`, by name.

    Raises:
      ConfigError: a run is not finished or cannot be extended, or `trained` has none of RoPE.
    """
    if not config.trained:
        return [read_base(local("runs", folder).absolute()) for folder in config.runs], {}
    workdir = local("trained", config.trained).absolute()
    where = f"trained={config.trained!r}"
    if not (workdir / manifests.NAME).exists():
        raise ConfigError(f"{where} holds no manifest.json; pass a workdir of experiments.compare")
    comparison = manifests.read(workdir)
    folders = {
        entry["spec"]: [workdir / "runs" / entry["folder"] / f"seed{n}" for n in comparison.seeds]
        for entry in comparison.encodings
    }
    if "rope" not in folders:
        raise ConfigError(f"{where} compares {', '.join(folders)}; the methods need runs of rope")
    bases, methods = [read_base(folder, "trained") for folder in folders.pop("rope")], names(config)
    others = {}
    for entry in comparison.encodings:
        if entry["spec"] in folders:
            name = entry["spec"] if entry["name"] in methods else entry["name"]
            others[name] = [read_run(folder, "trained") for folder in folders[entry["spec"]]]
    return bases, others


def read_run(folder: Path, field: str) -> Base:
    """Reads a run on text that is finished, or that diverged in a comparison.

    Raises:
      ConfigError: the folder does not hold one.
    """
    config, saved = trained_run.read(folder, field)
    where = f"{field}={str(folder)!r}"
    if config.data.startswith("synthetic:") or config.positions != "contiguous":
        what = f"data={config.data!r}, positions={config.positions!r}"
        raise ConfigError(f"{where}: {what}; use a run on text at contiguous positions")
    path = folder / "evaluation.json"
    evaluation = json.loads(path.read_text()) if path.exists() else {}
    if evaluation.get("status") == "diverged":
        return Base(folder, config, saved, "", evaluation["reason"])
    with trained_run.last(folder) as (checkpoints, step):
        digest = hashlib.sha256((checkpoints.path(step) / manifest.NAME).read_bytes()).hexdigest()
    if step != config.steps:
        raise ConfigError(f"{where}: is at step {step} of {config.steps}; finish it first")
    return Base(folder, config, saved, digest)


def read_base(folder: Path, field: str = "runs") -> Base:
    """Reads a finished run of a RoPE model on text.

    Raises:
      ConfigError: the folder does not hold one.
    """
    base = read_run(folder, field)
    config, where = base.config, f"{field}={str(folder)!r}"
    if base.diverged:
        raise ConfigError(f"{where}: diverged ({base.diverged}); there is no model to extend")
    kinds = {type(encoding) for encoding in config.model.pattern}
    scaled = any(getattr(encoding, "scaling", None) for encoding in config.model.pattern)
    if RoPE not in kinds or not kinds <= {RoPE, Encoding} or scaled:
        what = f"model.encoding={config.model.encoding!r}"
        raise ConfigError(f"{where}: {what} is not plain RoPE; train with rope, or rope and nope")
    return base


def check_comparable(bases: list[Base], others: dict[str, list[Base]]) -> None:
    """Raises ConfigError unless runs differ in their seed only, others in encoding and rates too.

    Each of the others has the seeds of the bases.
    """
    first, seeds = bases[0], [base.config.seed for base in bases]
    scheme = "model.encoding", *(f"optimizer.{name}" for name in RATES)
    for run in (*bases[1:], *itertools.chain(*others.values())):
        words, may_differ = ("seed", ()) if run in bases else ("seed, encoding and rates", scheme)
        if found := difference(first.saved, run.saved, SHARED, may_differ):
            name, ours, theirs = found
            raise ConfigError(
                f"runs: {run.folder} has {name}={theirs!r}, {first.folder} {ours!r}; compare runs"
                f" that differ in their {words} only"
            )
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"runs: their seeds are {seeds}; pass each once")
    for name, runs in others.items():
        theirs = [run.config.seed for run in runs]
        if theirs != seeds:
            raise ConfigError(f"trained: {name} has seeds {theirs}, rope {seeds}; train them all")
