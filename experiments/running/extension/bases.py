"""The trained runs that are extended: plain RoPE on text, different only in their seed."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from experiments.running import trained_run
from pe_jax.encodings import Encoding
from pe_jax.encodings.rope import RoPE
from pe_jax.training import manifest
from pe_jax.training.checkpoint import BINDING
from pe_jax.training.config import Config
from pe_jax.validation import ConfigError

SHARED = (*(field for field in BINDING if field != "seed"), "steps")  # the same in all runs


class Base(NamedTuple):
    """A trained run; `digest` is that of its last checkpoint, `saved` its config.json."""

    folder: Path
    config: Config
    saved: dict
    digest: str


def read_base(folder: Path) -> Base:
    """Reads a finished run of a RoPE model on text.

    Raises:
      ConfigError: the folder does not hold one.
    """
    config, saved = trained_run.read(folder, "runs")
    with trained_run.last(folder) as (checkpoints, step):
        digest = hashlib.sha256((checkpoints.path(step) / manifest.NAME).read_bytes()).hexdigest()
    where = f"runs={str(folder)!r}"
    if step != config.steps:
        raise ConfigError(f"{where}: is at step {step} of {config.steps}; finish it first")
    if config.data.startswith("synthetic:") or config.positions != "contiguous":
        what = f"data={config.data!r}, positions={config.positions!r}"
        raise ConfigError(f"{where}: {what}; use a run on text at contiguous positions")
    kinds = {type(encoding) for encoding in config.model.pattern}
    scaled = any(getattr(encoding, "scaling", None) for encoding in config.model.pattern)
    if RoPE not in kinds or not kinds <= {RoPE, Encoding} or scaled:
        what = f"model.encoding={config.model.encoding!r}"
        raise ConfigError(f"{where}: {what} is not plain RoPE; train with rope, or rope and nope")
    return Base(folder, config, saved, digest)


def check_comparable(bases: list[Base]) -> None:
    """Raises ConfigError unless the runs differ in their seed only."""
    first = bases[0]
    for other in bases[1:]:
        for field in SHARED:
            ours, theirs = first.saved.get(field), other.saved.get(field)
            if ours != theirs:
                raise ConfigError(
                    f"runs: {other.folder} has {field}={theirs!r}, {first.folder} {ours!r}; compare"
                    " runs that differ in their seed only"
                )
    seeds = [base.config.seed for base in bases]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"runs: their seeds are {seeds}; pass each once")
