"""Which of seven further tasks a small decoder learns: RULER's kinds, word problems, facts.

    python -m experiments.tasks --config=configs/tasks_trial.py

Counting words, needles with two keys asked for or with two values (RULER, arXiv 2404.06654), facts
among other words (BABILong, 2406.10149), and products of elements of A5 and S5 (2404.08819). One
seed and one learning rate: a trial of the tasks, not a comparison of the two encodings. 14 runs of
two to five minutes, two side by side on two CPU cores; docs/results/tasks.md has what they reached.
"""

from experiments.running.configs.tasks import TasksConfig
from pe_jax.models.config import ModelConfig


def get_config() -> TasksConfig:
    return TasksConfig(
        workdir="runs/tasks_trial",
        encodings=("rope", "alibi"),
        positions=("contiguous",),
        tasks=(
            "needles_queries",
            "needles_values",
            "facts",
            "common_words",
            "frequent_words",
            "a5",
            "s5",
        ),
        length=24,
        lengths=(36, 48),
        seeds=1,
        steps=2_000,
        rates=(3e-3,),
        model=ModelConfig(causal=True),
    )
