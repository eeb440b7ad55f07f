"""Reads a run of `experiments.train` from its workdir: its configuration and its last state."""

import contextlib
import dataclasses
import glob
import json
import re
from collections.abc import Iterator
from pathlib import Path

import jax

from pe_jax.models.transformer import Transformer
from pe_jax.released import load as released
from pe_jax.released import start
from pe_jax.training import paths, sharding, tokenizer
from pe_jax.training.checkpoint import Checkpoints, abstract
from pe_jax.training.config import Config, MeshConfig, from_json
from pe_jax.training.step import State, Trainer
from pe_jax.validation import ConfigError

MISSING = "{}={!r} holds no {}; train a model there first"


def read(workdir: Path, field: str = "workdir") -> tuple[Config, dict]:
    """The configuration of a run, and all of `config.json`, with digests of its data.

    Relative paths of its data and its tokenizer are those of the folder where it was trained.

    Raises:
      ConfigError: there is no run, or there are many.
    """
    path = workdir / "config.json"
    if not path.exists():
        raise ConfigError(MISSING.format(field, str(workdir), "config.json"))
    saved = json.loads(path.read_text())
    if "encodings" in saved:  # of experiments.tasks, images or extend
        fix = "holds a sweep; pass the workdir of experiments.train, or of one of compare's runs"
        raise ConfigError(f"{field}={str(workdir)!r} {fix}")
    config = from_json(Config, saved)
    folder = Path(saved.get("folder", ""))
    sources = _from(folder, config.data), _from(folder, config.tokenizer)
    return dataclasses.replace(config, data=sources[0], tokenizer=sources[1]), saved


def _from(folder: Path, spec: str) -> str:
    """A spec of files, its relative path resolved from a folder if something exists there."""
    kinds = r"(?:passkeys:)?text:|(?:passkeys:)?tfds:[^:]+:|bpe:|checkpoint:"
    match = re.fullmatch(rf"({kinds})(?!~)(.+?)(#(?:column|separator)=.*)?", spec)
    path = folder / match[2] if match else folder
    there = match and (path.exists() or glob.glob(str(path)))
    return f"{match[1]}{path}{match[3] or ''}" if match and there else spec


def tokenizer_of(config: Config, saved: dict) -> tokenizer.Tokenizer:
    """The tokenizer of a run, from what `read` returns.

    Raises:
      ConfigError: it is not there, or not the one that the run was trained with.
    """
    tokens = tokenizer.get(config.tokenizer)
    if tokens.digest != saved.get("tokens", tokens.digest):
        raise ConfigError(
            f"tokenizer={config.tokenizer!r}: the run was trained with another (sha256"
            f" {saved['tokens'][:12]}, not {tokens.digest[:12]}); restore that file"
        )
    return tokens


@contextlib.contextmanager
def last(workdir: Path) -> Iterator[tuple[Checkpoints, int]]:
    """The checkpoints of a run, which may be writing more, and the last complete step.

    Raises:
      ConfigError: there is no checkpoint.
    """
    missing = ConfigError(MISSING.format("workdir", str(workdir), "checkpoint"))
    if not (workdir / "checkpoints").is_dir():
        raise missing
    with contextlib.closing(Checkpoints(workdir / "checkpoints", read_only=True)) as checkpoints:
        step = checkpoints.latest()
        if step is None:
            raise missing
        yield checkpoints, step


def restore(workdir: Path, trainer: Trainer) -> State:
    """The last state of a run, with the trainer's shardings.

    Raises:
      ConfigError: there is no checkpoint, or a file is damaged.
    """
    like = abstract(trainer.state_shapes, trainer.shardings)
    with last(workdir) as (checkpoints, step):
        return checkpoints.restore(step, like, None, None)


def load(workdir: Path) -> tuple[Transformer, Config]:
    """The model of the last checkpoint on one device, however many trained it, and its config.

    Raises:
      ConfigError: there is no run or checkpoint, or a file is damaged.
    """
    config, _ = read(workdir)
    mesh = sharding.make_mesh(MeshConfig(data=1), jax.devices()[:1])
    trainer = Trainer(config.model, config.optimizer, config.steps, mesh)
    return trainer.model(restore(workdir, trainer).params), config


def check_export(config: Config, folder: Path) -> None:
    """Checks before a run that its model could be written to a folder of the Hub, as `export` does.

    Raises:
      ConfigError: it starts from no checkpoint, several processes train it, or its encodings are
        none that the checkpoint's config could name.
      FileExistsError: the folder has something in it.
    """
    if not config.checkpoint:
        fix = "a run without checkpoint= has no family of transformers to be written in"
        raise ConfigError(f"--export={str(folder)!r}: {fix}")
    if jax.process_count() > 1:
        raise ConfigError("--export: several processes train; export the finished run in one")
    checkpoint = start.read(config.checkpoint)
    released.check_target(folder)
    released.written_config(config.model, checkpoint, released.scaling_of(config.model))


def export(config: Config, folder: Path) -> None:
    """Writes the model of a run's last checkpoint as a folder that transformers loads, in float32.

    Raises:
      ConfigError: as `check_export`; there is no checkpoint of the run, or a file is damaged.
      FileExistsError: the folder has something in it.
    """
    model, _ = load(paths.folder(config.workdir))
    checkpoint = start.read(config.checkpoint)
    released.write(model, folder, checkpoint, released.scaling_of(config.model))
