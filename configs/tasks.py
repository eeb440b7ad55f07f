"""Five encodings, each also with randomized positions, on six tasks that isolate position.

    make tasks
    python -m experiments.tasks --config=configs/tasks.py --tasks=recall

An encoder of two layers reads a question and writes the answer into empty slots; it is trained on
questions of up to 12 symbols and tested at 18, 24 and 36. Each of two learning rates is tried with
the first seed, on other questions of the lengths trained on, and for T5 each of them with three
multiples for its table. 372 runs of 15 to 40 ms per step: more than an hour on two CPU cores that
do nothing else. There are 38 tasks (pe_jax/training/tasks). No question was declared: the metric is
the default of `TasksConfig.reference`.
"""

from experiments.running.configs.tasks import TasksConfig


def get_config() -> TasksConfig:
    return TasksConfig(
        reference="rope",
        tasks=(
            "even_pairs",
            "stack_manipulation",
            "reverse_string",
            "duplicate_string",
            "bucket_sort",
            "passkey",
        ),
        seeds=5,
        steps=1_000,
        rates=(1e-3, 3e-3),
        encoding_rates=(1.0, 10.0, 30.0),
    )
