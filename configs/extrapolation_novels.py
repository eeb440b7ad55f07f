"""Length extrapolation on novels, an hour or two on two CPU cores: trained at 128, tested to 1,024.

    python -m experiments.compare --config=configs/extrapolation_novels.py --config.data=text:DIR

Six schemes, five seeds, a 3-layer byte model of 0.36M parameters; the learning rate of each is
chosen from four, and for the parameters of T5 and KERPLE from four multiples of each of these, on
validation text; losses of the test split. 30 runs and 48 checks of the same length in 2 GB: with
12 windows a little over an hour on two idle CPU cores, with 192 more than an hour and a half by
the pace of seven pairs of runs (evaluated at 6.7 million bytes each, trained on 1.2 million).

Questions: the two of every comparison (docs/results.md); the grid was widened after the first
results (2026-11-22). Written after the results (docs/results/novels.md): T5's mean is the lowest,
RoPE leads ALiBi at 128 and is behind it by 512, and ALiBi's gain beyond 128 vanishes under the
sliding window.
"""

from experiments.running.configs.compare import CompareConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import EvalConfig, OptimizerConfig

# Of all comparisons on novels: two of the five test novels are kept for a last look.
EVALUATION = EvalConfig(
    lengths=(128, 256, 512, 1024),
    windows=192,
    stride=64,
    split="test",
    kept=("Kipling_Kim_1901.txt", "Ward_Milly_1881.txt"),
    every=100,
)


def get_config() -> CompareConfig:
    return CompareConfig(
        workdir="runs/extrapolation_novels",
        data="text:novels",
        encodings=("nope", "sinusoidal", "t5", "rope", "alibi", "kerple"),
        baseline="sinusoidal",
        reference="rope",
        seeds=5,
        length=128,
        batch=16,
        steps=600,
        rates=(1e-3, 3e-3, 1e-2, 3e-2),
        encoding_rates=(1.0, 3.0, 10.0, 30.0),
        rate_steps=600,
        log_every=100,
        model=ModelConfig(width=96, layers=3),
        optimizer=OptimizerConfig(warmup=60),
        eval=EVALUATION,
        timing_lengths=(128, 512, 1024),
    )
