"""A training run that starts from a released checkpoint: what the checkpoint decides of its config.

    model = start.model_config("smollm2", ModelConfig(encoding="rope*3,nope"))
    start.digests(start.read("smollm2"))         # part of the run's identity

`pe_jax.training.config.Config` has the field, `experiments.train` the run.
"""

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any

from pe_jax.models import surgery
from pe_jax.models.config import ModelConfig
from pe_jax.released import families, files, tokenizer_files
from pe_jax.released.checkpoint import Checkpoint
from pe_jax.validation import ConfigError, refuse

FREE = ("encoding", "dtype", "remat", "attention", "dropout")  # fields that configs do not decide
END = "<|endoftext|>"  # between documents; instruction models end a turn with another token


@functools.lru_cache(2)
def read(source: str) -> Checkpoint:
    """`files.read`, once per process: a vocabulary of 262,144 takes seconds."""
    return files.read(source)


def model_config(source: str, given: ModelConfig) -> ModelConfig:
    """The config of a checkpoint's model, with what a run may set.

    Args:
      source: as for `files.read`.
      given: of the run: its encoding takes the place of the checkpoint's as in `surgery.over`, and
        the fields in `FREE` are its. The others are the default or the checkpoint's.

    Raises:
      ValueError: what `files.read` and `families.read` raise; another field is set to something
        else, which the line names.
    """
    try:
        _, released = families.read(read(source).config)
    except ValueError as error:  # of a file, which it names, or of a key of its config
        raise ConfigError(f"checkpoint={source!r}: {error}") from None
    default = ModelConfig()
    for field in dataclasses.fields(given):
        value, theirs = getattr(given, field.name), getattr(released, field.name)
        if field.name not in FREE and value not in (getattr(default, field.name), theirs):
            fix = f"checkpoint {source!r} has {theirs!r}; leave out sizes, as configs/surgery.py"
            refuse(f"model.{field.name}", value, fix)
    free: dict[str, Any] = {name: getattr(given, name) for name in FREE}
    own = given.encoding == default.encoding  # of a model without RoPE too
    free["encoding"] = released.encoding if own else surgery.over(released, given.encoding)
    return dataclasses.replace(released, **free)


def digests(checkpoint: Checkpoint) -> tuple[str, str]:
    """SHA-256 of the files with a checkpoint's config and weights, and of those of its tokenizer.

    A GGUF file has all of them; its tokenizer may be in another file of the folder.
    """
    path = checkpoint.path
    if path.is_dir():
        weights = [path / "config.json", *sorted(path.glob("*.safetensors"))]
        return _sha256(*weights), _sha256(path / "tokenizer.json")
    return _sha256(path), _sha256(path, path.with_name("tokenizer.json"))


@functools.lru_cache(4)
def _sha256(*paths: Path) -> str:
    whole = hashlib.sha256()
    for path in paths:
        if path.is_file():
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def ends(checkpoint: Checkpoint) -> tuple[int | None, int]:
    """The ids that begin and end a document: None where the tokenizer puts none before a text.

    Raises:
      ConfigError: the checkpoint has no tokenizer, or none of its tokens ends a document.
    """
    model = checkpoint.tokenizer
    if model is None:
        fix = "add tokenizer.json, or pass tokenizer=bpe:PATH"
        raise ConfigError(f"{checkpoint.path}: no tokenizer that is read; {fix}")
    begin = tokenizer_files.first(model)
    named = [model.token_to_id(x) for x in (END, checkpoint.extra.get("eos_token")) if x]
    known = [token for token in named if token is not None] + checkpoint.extra.get("stop", [])
    if not known:
        fix = "name eos_token in tokenizer_config.json"
        raise ConfigError(f"{checkpoint.path}: no token ends a document; {fix}")
    return (begin[0] if begin else None), known[0]
