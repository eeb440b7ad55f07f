"""Six encodings in decoders, on lookups and state tracking: trained to 16 symbols, tested to 48.

    python -m experiments.tasks --config=configs/tasks_decoders.py
    python -m experiments.tasks --config=configs/tasks_decoders.py:hybrids

Every key's value after all keys are listed (not MQAR: see configs/retrieval.py), one of several
needles, variables that stand for others, and copying what is not blank. State tracking: the order
of five objects after swaps (S5), and the last bit written. A causal mask tells a decoder without
positions what came before. As in configs/tasks.py, each learning rate is tried with the first seed,
and for encodings with parameters each with multiples. 240 runs: an hour and a quarter on two CPU
cores.

`hybrids`: four of these tasks in four layers, of attention alone and of three gated delta rules and
one attention (configs/hybrids.py). 120 runs; not run. Questions, declared beforehand (2026-11-30):
beyond 16 symbols, does a recurrence keep state that four layers of attention lose (the order after
swaps, the last bit)? Does one layer of attention look up as well as four, and does it need
positions for that?
"""

import dataclasses

from experiments.running.configs.tasks import TasksConfig
from pe_jax.models.config import ModelConfig

HYBRIDS = ("gated_delta*3,nope", "gated_delta*3,rope", "gated_delta*3,alibi")


def get_config(part: str = "attention") -> TasksConfig:
    return {"attention": attention, "hybrids": hybrids}[part]()


def hybrids() -> TasksConfig:
    return dataclasses.replace(
        attention(),
        workdir="runs/tasks_hybrids",
        encodings=("nope", "rope", *HYBRIDS),
        tasks=("recall_all", "needles", "permutations", "flip_flop"),
        model=ModelConfig(causal=True, layers=4),
    )


def attention() -> TasksConfig:
    return TasksConfig(
        workdir="runs/tasks_decoders",
        reference="rope",
        encodings=("nope", "sinusoidal", "t5", "rope", "alibi", "fox"),
        positions=("contiguous",),
        tasks=(
            "recall_all",
            "needles",
            "variables",
            "selective_copying",
            "permutations",
            "flip_flop",
        ),
        length=16,
        lengths=(24, 32, 48),
        seeds=5,
        steps=1_500,
        rates=(1e-3, 3e-3),
        encoding_rates=(1.0, 10.0),
        model=ModelConfig(causal=True),
    )
