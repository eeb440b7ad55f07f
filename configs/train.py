"""One small byte model on the embedded text: minutes on a laptop core.

    python -m experiments.train --config=configs/train.py --encoding=alibi
    python -m experiments.generate --workdir=runs/train --prompt="def "

Expect a loss near 1.6 nats a byte after 2,000 steps.
"""

from pe_jax.models.transformer import ModelConfig
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
