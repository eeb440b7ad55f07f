"""Does the order of encodings depend on the number of steps? Novels, trained at 128, to 1,024.

    for steps in 1000 4000; do
      python -m experiments.compare --config=configs/steps.py:$steps --config.data=text:DIR
    done
    python -m experiments.report --workdir=runs/steps --series=runs/steps_1000,runs/steps_4000

The byte model of 0.11M parameters of `configs/size.py` with eight schemes, for 2 or 8 million
tokens (18 or 72 per parameter). For each scheme and number of steps two learning rates, for schemes
with parameters each with two multiples for these, in runs of full length; three seeds. The grid is
the same for both numbers of steps, and all best rates lie at an edge of it. The question is the
first line's, written before the first results (2026-11-25); no answer was expected beforehand.
"""

import dataclasses

from configs.extrapolation_novels import EVALUATION
from experiments.running.configs.compare import CompareConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import OptimizerConfig

STEPS = {"1000": 1_000, "4000": 4_000}


def get_config(part: str = "4000") -> CompareConfig:
    steps = STEPS[part]
    return CompareConfig(
        workdir=f"runs/steps_{steps}",
        data="text:novels",
        encodings=(
            "nope",
            "sinusoidal",
            "t5",
            "rope",
            "alibi",
            "kerple",
            "fox",
            "inkling(extent={length})",
        ),
        baseline="nope",
        reference="rope",
        length=128,
        batch=16,
        steps=steps,
        rates=(3e-3, 1e-2),
        encoding_rates=(1.0, 20.0),
        rate_steps=steps,
        log_every=100,
        save_every=500,
        model=ModelConfig(width=64, layers=2, heads=4),
        optimizer=OptimizerConfig(warmup=100),
        eval=dataclasses.replace(EVALUATION, every=250),
    )
