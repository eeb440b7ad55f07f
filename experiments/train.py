"""Trains one model and evaluates it by length.

    python -m experiments.train --config=configs/train.py --encoding=alibi

Files in the workdir: metrics.jsonl, events/ (TensorBoard), checkpoints/, config.json,
evaluation.json. The same command again continues the run, or does nothing if it is finished.
"""

from absl import flags

from experiments.running import launch, training_loop
from pe_jax.training.config import Config


def main(config: Config) -> None:
    """Trains and evaluates one model."""
    training_loop.run(config, flags.FLAGS.profile)


if __name__ == "__main__":
    flags.DEFINE_bool("profile", False, "trace a few steps after warm-up, into the workdir")
    launch.run(main, "configs/train.py", Config)
