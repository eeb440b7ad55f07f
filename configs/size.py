"""Does the order of encodings depend on the size of the model? Novels, trained at 128, to 1,024.

    for size in 0.1M 0.4M 1M 3M; do
      python -m experiments.compare --config=configs/size.py:$size --config.data=text:DIR
    done
    python -m experiments.report --workdir=runs/sizes \
      --series=runs/size_0.1M,runs/size_0.4M,runs/size_1M,runs/size_3M

Byte models of 0.11M, 0.36M, 1.0M and 3.2M parameters, the same steps of the same text in the same
order; for each size and scheme two learning rates, for T5 each with two multiples for its table, in
runs of full length, and neighbours of the best while it lies at an edge. Five seeds, of 3M three.
On two CPU cores with AVX-512 a quarter of an hour, half an hour, an hour, and for 3M three, in
several sittings if need be: the same command continues.

The question is the first line's. Written after the results of the smaller sizes (2026-11-25) and
before those of 3M: the means at 128 are in the order T5, RoPE, ALiBi, NoPE; at 1,024 RoPE is behind
ALiBi, and in the two smallest models behind NoPE (docs/results/size.md).
"""

from configs.extrapolation_novels import EVALUATION
from experiments.running.configs.compare import CompareConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import OptimizerConfig

SIZES = {
    "0.1M": ModelConfig(width=64, layers=2, heads=4),
    "0.4M": ModelConfig(width=96, layers=3, heads=4),
    "1M": ModelConfig(width=128, layers=5, heads=4),
    "3M": ModelConfig(width=256, layers=4, heads=8),
}
STEPS = 1_000


def get_config(size: str = "0.4M") -> CompareConfig:
    return CompareConfig(
        workdir=f"runs/size_{size}",
        data="text:novels",
        encodings=("nope", "t5", "rope", "alibi"),
        baseline="nope",
        reference="rope",
        seeds=3 if size == "3M" else 5,
        length=128,
        batch=16,
        steps=STEPS,
        rates=(3e-3, 1e-2),
        encoding_rates=(10.0, 30.0),
        rate_rounds=3,
        rate_steps=STEPS,
        log_every=100,
        save_every=250,
        model=SIZES[size],
        optimizer=OptimizerConfig(warmup=100),
        eval=EVALUATION,
    )
