"""Continues a prompt with the model of a trained run."""

from pathlib import Path

import jax
import numpy as np

from experiments.running import trained_run
from pe_jax.models.generate import generate
from pe_jax.validation import ConfigError


def text(workdir: Path, prompt: str, count: int, temperature: float, top_k: int, seed: int) -> str:
    """The prompt and `count` new tokens.

    Raises:
      ConfigError: there is no run, it is not of text, its tokenizer is gone or replaced, or the
        prompt is empty.
    """
    config, saved = trained_run.read(workdir.absolute())
    if config.data.startswith("synthetic:"):
        raise ConfigError(f"data={config.data!r} has no text to generate; use a text model")
    tokens = trained_run.tokenizer_of(config, saved)
    ids = tokens.encode(prompt.encode("utf-8", "surrogateescape"))
    if not len(ids):
        raise ConfigError("prompt='': pass at least one character")
    model, _ = trained_run.load(workdir.absolute())
    key = jax.random.key(seed)
    generated = generate(model, ids[None], count, key=key, temperature=temperature, top_k=top_k)
    return tokens.decode(np.asarray(generated[0]))
