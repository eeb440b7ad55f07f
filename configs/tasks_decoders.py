"""Six encodings in decoders, on lookups and state tracking: trained to 16 symbols, tested to 48.

    python -m experiments.tasks --config=configs/tasks_decoders.py
    python -m experiments.tasks --config=configs/tasks_decoders.py:hybrids

Every key's value after all keys are listed (not MQAR: see configs/retrieval.py), one of several
needles, variables that stand for others, and copying what is not blank. State tracking: the order
of five objects after swaps (S5), and the last bit written. A causal mask tells a decoder without
positions what came before. As in configs/tasks.py, each learning rate is tried with the first seed,
and for encodings with parameters each with multiples. 240 runs: an hour and a quarter on two CPU
cores.

`hybrids`: two lookups and two tasks of state in four layers, of attention alone and of three gated
delta rules and one attention (configs/hybrids.py), also without the convolution of the recurrent
layers (taps=1). The lookups are those of configs/retrieval.py: nobody learned *recall all*. 164
runs, in under two hours on two busy cores. Questions, declared before the first run (2026-11-30),
on whole answers at 24 symbols, minus RoPE (five seeds, paired, Holm over the five of a task): Does
one layer of attention find values by their keys as well as four, and does it need positions for
that, which four layers of attention do (NoPE, MQAR)? Does a recurrence keep the last bit written
and the order after swaps where attention loses them? Without the convolution, which of this
remains?
"""

import dataclasses

from experiments.running.configs.tasks import TasksConfig
from pe_jax.models.config import ModelConfig

HYBRIDS = (
    "gated_delta*3,nope",
    "gated_delta*3,rope",
    "gated_delta*3,alibi",
    "gated_delta(taps=1)*3,nope",
)


def get_config(part: str = "attention") -> TasksConfig:
    return {"attention": attention, "hybrids": hybrids}[part]()


def hybrids() -> TasksConfig:
    return dataclasses.replace(
        attention(),
        workdir="runs/tasks_hybrids",
        measure="answers",
        primary=(24,),
        encodings=("nope", "rope", *HYBRIDS),
        tasks=("mqar", "needles_continued", "flip_flop", "permutations"),
        rates=(3e-3, 1e-2),
        rate_rounds=2,
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
