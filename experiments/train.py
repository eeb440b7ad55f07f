r"""Trains one model and evaluates it by length.

    python -m experiments.train --config=configs/train.py --encoding=alibi
    python -m experiments.train --config=configs/train.py --encoding='rope(base=5e5)*3,nope' \
      --config.data=text:DIR --config.workdir=runs/mine

    python -m experiments.train --config=configs/pose.py:cpu --config.data=text:DIR \
      --export=FOLDER

Files in the workdir: metrics.jsonl, events/ (TensorBoard), checkpoints/, config.json,
evaluation.json. The same command again continues the run, or does nothing if it is finished.

It is one run, of one process or many, whose files may be in a bucket: there is no list of work to
drive, so that it calls the training loop itself.
"""

from absl import flags

from experiments.running.command import launch
from pe_jax.training.config import Config
from pe_jax.training.paths import local


def main(config: Config) -> None:
    """Imports the trainer, once the flags are right, and runs it; then exports the model."""
    from experiments.running.training import trained_run, training_loop

    folder = flags.FLAGS.export and local("--export", flags.FLAGS.export)
    if folder:
        trained_run.check_export(config, folder)
    training_loop.run(config, flags.FLAGS.profile)
    if folder:
        trained_run.export(config, folder)


def define_flags() -> None:
    """Those beside the config."""
    flags.DEFINE_bool("profile", False, "trace a few steps after warm-up, into the workdir")
    flags.DEFINE_string(
        "export", None, "the trained model as a folder of the Hub; for runs with a checkpoint"
    )


if __name__ == "__main__":
    define_flags()
    launch.run(main, "configs/train.py", Config)
