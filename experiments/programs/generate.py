"""Continues a prompt with the model of a trained run."""

from pathlib import Path

import jax
import numpy as np

from experiments.running import trained_run
from pe_jax.models.generate import generate
from pe_jax.training import sharding, tokenizer
from pe_jax.training.config import MeshConfig
from pe_jax.training.step import Trainer
from pe_jax.validation import ConfigError


def load(workdir: Path):
    """The model of the last checkpoint, and its tokenizer."""
    config, _ = trained_run.read(workdir)
    # one device, however many it was trained on
    mesh = sharding.make_mesh(MeshConfig(data=1), jax.devices()[:1])
    trainer = Trainer(config.model, config.optimizer, config.steps, mesh)
    return trainer.model(trained_run.restore(workdir, trainer).params), config


def text(workdir: Path, prompt: str, count: int, temperature: float, top_k: int, seed: int) -> str:
    """The prompt and `count` new tokens.

    Raises:
      ConfigError: there is no run, it is not of text, or the prompt is empty.
    """
    model, config = load(workdir.absolute())
    if config.data.startswith("synthetic:"):
        raise ConfigError(f"data={config.data!r} has no text to generate; use a text model")
    tokens = tokenizer.get(config.tokenizer)
    ids = tokens.encode(prompt.encode())
    if not len(ids):
        raise ConfigError("prompt='': pass at least one character")
    key = jax.random.key(seed)
    generated = generate(model, ids[None], count, key=key, temperature=temperature, top_k=top_k)
    return tokens.decode(np.asarray(generated[0]))
