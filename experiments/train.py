"""Trains one model and evaluates it by length.

    python -m experiments.train --config=configs/train.py --encoding=alibi

Files in the workdir: metrics.jsonl, events/ (TensorBoard), checkpoints/, config.json,
evaluation.json. The same command again continues the run, or does nothing if it is finished.
"""

from experiments.running import launch, training_loop
from pe_jax.training.config import Config

if __name__ == "__main__":
    launch.run(training_loop.run, "configs/train.py", Config)
