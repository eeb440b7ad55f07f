"""Length extrapolation on novels, two hours on two CPU cores: trained at 128, tested to 2,048.

python -m experiments.compare --config=configs/extrapolation_novels.py --config.data=text:novels
"""

from pe_jax.models.config import ModelConfig
from pe_jax.training.config import CompareConfig, EvalConfig, OptimizerConfig


def get_config() -> CompareConfig:
    return CompareConfig(
        workdir="runs/extrapolation_novels",
        data="text:novels",
        encodings=("nope", "sinusoidal", "t5", "rope", "alibi", "kerple", "fire", "sandwich"),
        baseline="sinusoidal",
        seeds=5,
        length=128,
        batch=16,
        steps=1500,
        rates=(1e-3, 3e-3, 1e-2),
        rate_steps=300,
        log_every=100,
        model=ModelConfig(width=96, layers=3),
        optimizer=OptimizerConfig(warmup=100),
        eval=EvalConfig(lengths=(128, 256, 512, 1024, 2048), windows=24, stride=64, split="test"),
    )
