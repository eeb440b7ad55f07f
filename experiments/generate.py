"""Generates text from a trained run.

python -m experiments.generate --workdir=runs/train --prompt="def " --tokens=200
python -m experiments.generate --workdir=runs/compare/runs/alibi/seed0 --temperature=0
"""

from pathlib import Path

from absl import flags

from experiments.running.command import launch
from pe_jax.training.paths import local
from pe_jax.validation import ConfigError


def main() -> None:
    """Prints the prompt and its continuation."""
    values = flags.FLAGS
    options = values.tokens, values.temperature, values.top_k, values.seed
    print(text(local("workdir", values.workdir), values.prompt, *options))


def text(workdir: Path, prompt: str, count: int, temperature: float, top_k: int, seed: int) -> str:
    """The prompt and `count` new tokens.

    Raises:
      ConfigError: there is no run, it is not of text, its tokenizer is gone or replaced, or the
        prompt is empty.
    """
    import jax  # imports that --help and typos skip
    import numpy as np

    from experiments.running.training import trained_run
    from pe_jax.models.generate import generate

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


if __name__ == "__main__":
    flags.DEFINE_string("workdir", "runs/train", "of experiments.train, or of one run")
    flags.DEFINE_string("prompt", "\n", "text to continue")
    flags.DEFINE_integer("tokens", 200, "how many new tokens", lower_bound=0)
    flags.DEFINE_float("temperature", 0.8, "0 takes the likeliest", lower_bound=0)
    flags.DEFINE_integer("top_k", 0, "draw among the k likeliest; 0: all", lower_bound=0)
    flags.DEFINE_integer("seed", 0, "of the sampling", lower_bound=0, upper_bound=2**31 - 1)
    launch.run_flags(main)
