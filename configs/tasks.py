"""Five encodings, each also with randomized positions, on ten tasks that isolate position.

    make tasks
    python -m experiments.tasks --config=configs/tasks.py --config.tasks="('reverse_string',)"

An encoder of two layers reads a question and writes the answer into empty slots; it is trained on
questions of up to 16 symbols and tested at 24, 32 and 48 (pe_jax/training/tasks: 29 tasks).
"""

from pe_jax.training.config import TasksConfig


def get_config() -> TasksConfig:
    return TasksConfig()
