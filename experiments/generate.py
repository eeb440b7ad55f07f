"""Generates text from a trained run.

python -m experiments.generate --workdir=runs/train --prompt="def " --tokens=200
python -m experiments.generate --workdir=runs/compare/runs/alibi/seed0 --temperature=0
"""

from absl import flags

from experiments.running import launch
from pe_jax.training.paths import local

WORKDIR = flags.DEFINE_string("workdir", "runs/train", "of experiments.train, or of one run")
PROMPT = flags.DEFINE_string("prompt", "\n", "text to continue")
TOKENS = flags.DEFINE_integer("tokens", 200, "how many new tokens", lower_bound=0)
TEMPERATURE = flags.DEFINE_float("temperature", 0.8, "0 takes the likeliest", lower_bound=0)
TOP_K = flags.DEFINE_integer("top_k", 0, "draw among the k likeliest; 0: all", lower_bound=0)
SEED = flags.DEFINE_integer("seed", 0, "of the sampling", lower_bound=0, upper_bound=2**31 - 1)


def main() -> None:
    """Prints the prompt and its continuation."""
    from experiments.programs import generate

    values = PROMPT.value, TOKENS.value, TEMPERATURE.value, TOP_K.value, SEED.value
    print(generate.text(local("workdir", WORKDIR.value), *values))


if __name__ == "__main__":
    launch.run_flags(main)
