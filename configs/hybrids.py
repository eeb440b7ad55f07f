"""Does a model with recurrent layers need positions? Hybrids on novels, trained at 128.

    python -m experiments.compare --config=configs/hybrids.py --config.data=text:DIR

Three layers of the gated delta rule and one of attention with RoPE, as Qwen3-Next, with NoPE, as
Kimi Linear (whose decay by channel is `gated_delta(decay=channel)`), and with ALiBi, against four
layers of attention with RoPE and with NoPE: byte models of width 96, with 7% more parameters for
the hybrids. Data and steps are those of configs/extrapolation_novels.py, with
64 windows in place of 192; each scheme has the learning rate of three that is best with the first
seed, and a neighbour of it where that lies at an edge. 35 runs or a few more: two hours on one CPU
core, by the time of a step (0.10 s with attention, 0.21 s for a hybrid) and of an evaluation.

Questions, declared before the first result (2026-11-29), beside the two of every comparison
(docs/results.md), each a paired difference over five seeds in the sliding windows and without them:

1. At 1,024, eight times the trained length, which hybrids end below RoPE, and which below NoPE?
2. Among hybrids, is RoPE, NoPE or ALiBi in the one layer of attention shown to be better, at 128
   and at 1,024? If no interval excludes 0.01 nats either way, order comes from the recurrence.
3. Does the hybrid with NoPE keep its loss from 128 to 1,024, as ALiBi does alone?

The same schemes on state tracking and retrieval: configs/tasks_decoders.py:hybrids.
"""

import dataclasses

from configs import extrapolation_novels
from experiments.running.configs.compare import CompareConfig
from pe_jax.models.config import ModelConfig


def get_config() -> CompareConfig:
    return dataclasses.replace(
        extrapolation_novels.get_config(),
        workdir="runs/hybrids",
        encodings=(
            "nope",
            "rope",
            "gated_delta*3,nope",
            "gated_delta*3,rope",
            "gated_delta*3,alibi",
        ),
        baseline="rope",
        rates=(3e-3, 1e-2, 3e-2),
        rate_rounds=2,
        eval=dataclasses.replace(extrapolation_novels.EVALUATION, windows=64),
        model=ModelConfig(width=96, layers=4),
    )
