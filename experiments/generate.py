"""Generates text from a trained run.

python -m experiments.generate --workdir=runs/train --prompt="def " --tokens=200
"""

from pathlib import Path

import jax
import numpy as np
from absl import app, flags

from experiments.running import launch, trained_run
from experiments.running.errors import one_line_errors
from pe_jax.models.generate import generate
from pe_jax.training import sharding, tokenizer
from pe_jax.training.config import MeshConfig
from pe_jax.training.step import Trainer

WORKDIR = flags.DEFINE_string("workdir", "runs/train", "of experiments.train, or of one run")
PROMPT = flags.DEFINE_string("prompt", "\n", "text to continue")
TOKENS = flags.DEFINE_integer("tokens", 200, "how many new tokens", lower_bound=0)
TEMPERATURE = flags.DEFINE_float("temperature", 0.8, "0 takes the likeliest", lower_bound=0)
TOP_K = flags.DEFINE_integer("top_k", 0, "draw among the k likeliest; 0: all", lower_bound=0)
SEED = flags.DEFINE_integer("seed", 0, "of the sampling", lower_bound=0)


def load(workdir: Path):
    """The model of the last checkpoint, and its tokenizer."""
    config, _ = trained_run.read(workdir)
    # one device, however many it was trained on
    mesh = sharding.make_mesh(MeshConfig(data=1), jax.devices()[:1])
    trainer = Trainer(config.model, config.optimizer, config.steps, mesh)
    return trainer.model(trained_run.restore(workdir, trainer).params), config


def main(_: list[str]) -> None:
    """Prints the prompt and its continuation."""
    launch.quiet_libraries()
    with one_line_errors():
        model, config = load(Path(WORKDIR.value).absolute())
        if config.data.startswith("synthetic:"):
            raise ValueError(f"data={config.data!r} has no text to generate; use a text model")
        tokens = tokenizer.get(config.tokenizer)
        prompt = tokens.encode(PROMPT.value.encode())
        if not len(prompt):
            raise ValueError("prompt='': pass at least one character")
        generated = generate(
            model,
            prompt[None],
            TOKENS.value,
            key=jax.random.key(SEED.value),
            temperature=TEMPERATURE.value,
            top_k=TOP_K.value,
        )
    print(tokens.decode(np.asarray(generated[0])))


if __name__ == "__main__":
    app.run(main)
