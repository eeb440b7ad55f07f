"""The fifteen tasks of Ruoss et al. (arXiv 2305.16843), at their sizes: for accelerators.

    python -m experiments.tasks --config=configs/tasks_published.py --encodings=rope

Five layers of width 64 with 8 heads, batches of 128 questions of 1 to 40 symbols, tests up to 500,
randomized positions up to 2,048, the best of three learning rates. Blocks are this library's
(pre-norm), not theirs, and a run is not saved before its end: hours of an accelerator for each.
"""

from experiments.running.configs.tasks import TasksConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import OptimizerConfig


def get_config() -> TasksConfig:
    return TasksConfig(
        workdir="runs/tasks_published",
        reference="rope",
        encodings=(
            "nope",
            "sinusoidal",
            "transformer_xl",
            "t5(bidirectional=True)",
            "rope",
            "alibi",
        ),
        positions=("contiguous", "randomized(maximum=2048)"),
        tasks=(
            "even_pairs",
            "modular_arithmetic",
            "parity_check",
            "cycle_navigation",
            "stack_manipulation",
            "reverse_string",
            "modular_arithmetic_brackets",
            "solve_equation",
            "duplicate_string",
            "missing_duplicate",
            "odds_first",
            "binary_addition",
            "binary_multiplication",
            "compute_sqrt",
            "bucket_sort",
        ),
        length=40,
        lengths=tuple(range(50, 501, 50)),
        batch=128,
        steps=2_000_000,
        rates=(1e-4, 3e-4, 5e-4),
        test=512,
        log_every=10_000,
        model=ModelConfig(
            width=64,
            layers=5,
            heads=8,
            gated=False,
            activation="relu",
            norm="layer",
            bias=True,
            tied=False,
            dropout=0.1,
            causal=False,
        ),
        optimizer=OptimizerConfig(warmup=0, final=1.0, weight_decay=0.0, b2=0.999),
    )
