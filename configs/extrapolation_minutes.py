"""Length extrapolation in minutes: trained at 64, tested to 1,024.

    python -m experiments.compare --config=configs/extrapolation_minutes.py

Six schemes, five seeds, a 2-layer byte model on the embedded text (source code); the learning rate
of each is chosen from four, and for the parameters of T5 and KERPLE from six multiples of each of
these. 94 runs, half an hour on two CPU cores that also ran tests.

Questions: the two of every comparison (docs/results.md); the grid was widened after the first
results (2026-11-22). Written after the results (docs/results/source_text.md): T5 leads at 64; RoPE
falls behind T5, ALiBi and KERPLE from 256 on.
"""

from experiments.running.configs.compare import CompareConfig
from pe_jax.training.config import EvalConfig


def get_config() -> CompareConfig:
    return CompareConfig(
        workdir="runs/extrapolation_minutes",
        encodings=("nope", "sinusoidal", "t5", "rope", "alibi", "kerple"),
        baseline="sinusoidal",
        reference="rope",
        seeds=5,
        batch=16,
        steps=400,
        rates=(3e-3, 1e-2, 3e-2, 1e-1),
        encoding_rates=(0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        rate_steps=400,
        eval=EvalConfig(lengths=(64, 128, 256, 512, 1024), windows=12, split="test", every=50),
    )
