"""Which encodings find a value by its key, and beyond the trained length? MQAR and needles.

    for layers in 2 4; do
      python -m experiments.tasks --config=configs/retrieval.py:$layers
    done

Decoders of 2 and 4 layers of width 64, trained to 16 symbols and tested to 48. MQAR (arXiv
2312.04927) asks at each repeated key for its value; the digits of a needle follow its name
directly. No separator lies between a key and its value, which would make each answer a search by
position first. Learning rates from 0.001 to 0.01 are tried with the first seed, for encodings with
parameters each with multiples from 1 to 30, and neighbours of the best where it lies at an edge.
158 runs with two layers, 155 with four: 35 and 80 minutes on two busy CPU cores.

Questions, declared before the first run (2026-11-28): for each task and depth, which encodings have
more or fewer whole answers right at 24 symbols than RoPE (primary metric: five seeds, paired, Holm
over the seven)? At 16, does the order of MQAR agree with the literature, in which attention with
positions solves it with two layers? With four layers, is what two cannot do learned?
"""

from experiments.running.configs.tasks import TasksConfig
from pe_jax.models.config import ModelConfig

WINDOWS = {"2": "rope@window=8,nope", "4": "rope@window=8*3,nope"}  # by number of layers


def get_config(layers: str = "2") -> TasksConfig:
    windows = WINDOWS[layers]
    return TasksConfig(
        workdir=f"runs/retrieval_{layers}",
        reference="rope",
        measure="answers",
        primary=(24,),
        encodings=(
            "t5",
            "fox",
            "kerple",
            "nope",
            "sinusoidal",
            "rope",
            "alibi",
            windows,
        ),
        positions=("contiguous",),
        tasks=("mqar", "needles_continued"),
        length=16,
        lengths=(24, 32, 48),
        seeds=5,
        steps=1_500,
        rates=(1e-3, 3e-3, 1e-2),
        encoding_rates=(1.0, 5.0, 30.0),
        rate_rounds=2,
        model=ModelConfig(causal=True, layers=int(layers)),
    )
