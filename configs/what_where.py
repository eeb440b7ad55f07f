"""What against where (arXiv 2509.10534): letters indexed by place, by content, and by both.

    python -m experiments.tasks --config=configs/what_where.py

An encoder of three layers reads a string and what is asked for, and writes one letter: whole
answers right are the accuracy. It is trained on questions of up to 16 symbols and tested at 24 and
36. Each of two learning rates is tried with the first seed, for schemes with parameters each with
two multiples of it for these, and up to two rounds of neighbours of the best; five seeds, 245 runs.
Written after the results (docs/results/what_where.md): `index_content` is solved by all, NoPE
included, `index_place` by all but NoPE and, in some seeds, ALiBi, and `index_both`, which needs
both at once, by none.
"""

from experiments.running.configs.tasks import TasksConfig
from pe_jax.models.config import ModelConfig


def get_config() -> TasksConfig:
    return TasksConfig(
        workdir="runs/what_where",
        encodings=(
            "nope",
            "t5(bidirectional=True)",
            "rope",
            "alibi",
            "pope",
            "selective_rope",
            "fox",
            "wall",
        ),
        positions=("contiguous",),
        reference="rope",
        tasks=("index_place", "index_content", "index_both"),
        length=16,
        lengths=(24, 36),
        seeds=5,
        steps=1_500,
        rates=(1e-3, 3e-3),
        encoding_rates=(1.0, 10.0),
        rate_rounds=2,
        model=ModelConfig(causal=False, layers=3),
    )
