"""One small byte model on the embedded text, 4 layers of width 128, to try the trainer with.

    python -m experiments.train --config=configs/train.py --encoding=alibi
    python -m experiments.generate --workdir=runs/train --prompt="def "

Measured: about 3.1 nats per byte after 100 steps and 2.8 after 150. A step takes about half a
second on two CPU hyperthreads: `--config.steps=300` is enough to see it work.
"""

from pe_jax.models.config import ModelConfig
from pe_jax.training.config import Config, EvalConfig


def get_config() -> Config:
    return Config(
        length=256,
        batch=16,
        steps=2000,
        save_every=500,
        model=ModelConfig(width=128, layers=4),
        eval=EvalConfig(lengths=(256, 512, 1024), windows=16),
    )
