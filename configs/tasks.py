"""Five encodings, each also with randomized positions, on eight tasks that isolate position.

    make tasks
    python -m experiments.tasks --config=configs/tasks.py --config.tasks="('reverse_string',)"

An encoder of two layers reads a question and writes the answer into empty slots; it is trained on
questions of up to 12 symbols and tested at 18, 24 and 36. 216 runs of 15 to 40 ms a step: about an
hour and a half on two CPU cores that do nothing else. There are 29 tasks (pe_jax/training/tasks).
"""

from pe_jax.training.sweeps import TasksConfig


def get_config() -> TasksConfig:
    return TasksConfig()
