"""The training program as one of several processes, which also writes down the rows it read.

python -m tests.processes ROWS.json --config=tests/processes.py --config.workdir=… [--coordinator=…]
"""

import json
import pathlib
import sys

from experiments.running import launch, training_loop
from pe_jax.training.config import Config, EvalConfig, OptimizerConfig
from pe_jax.training.step import Trainer
from tests import tiny


def get_config() -> Config:
    return Config(
        data="synthetic:copy",
        length=tiny.L,
        batch=tiny.R,
        steps=2,
        log_every=1,
        model=tiny.config(vocab=0, kv_heads=4),
        optimizer=OptimizerConfig(warmup=0, final=1.0),  # the same whatever `steps` is
        eval=EvalConfig(lengths=(tiny.L,), windows=2, stride=tiny.L),
    )


def noted(found: list):
    """Makes trainers note the rows that this process reads, one list a step."""
    put = Trainer.put

    def noting(self, batch):
        found.append(batch["tokens"].tolist())
        return put(self, batch)

    return noting


if __name__ == "__main__":
    path, rows = pathlib.Path(sys.argv.pop(1)), []
    Trainer.put = noted(rows)

    def main(config):
        training_loop.run(config)
        path.write_text(json.dumps(rows))

    launch.run(main, "tests/processes.py", Config)
