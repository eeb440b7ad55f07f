r"""Trains one model and evaluates it by length.

    python -m experiments.train --config=configs/train.py --encoding=alibi
    python -m experiments.train --config=configs/train.py --encoding='rope(base=5e5)*3,nope' \
      --config.data=text:DIR --config.workdir=runs/mine

Files in the workdir: metrics.jsonl, events/ (TensorBoard), checkpoints/, config.json,
evaluation.json. The same command again continues the run, or does nothing if it is finished.

It is one run, of one process or many, whose files may be in a bucket: there is no list of work to
drive, so that it calls the training loop itself.
"""

from absl import flags

from experiments.running.command import launch
from pe_jax.training.config import Config


def main(config: Config) -> None:
    """Imports the trainer, once the flags are right, and runs it."""
    from experiments.running.training import training_loop

    training_loop.run(config, flags.FLAGS.profile)


if __name__ == "__main__":
    flags.DEFINE_bool("profile", False, "trace a few steps after warm-up, into the workdir")
    launch.run(main, "configs/train.py", Config)
