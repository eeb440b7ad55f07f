"""PoSE (arXiv 2309.10400): SmolLM2-135M made for 16,384 tokens on rows of 2,048.

    python -m experiments.train --config=configs/pose.py:cpu --config.data=text:DIR --export=FOLDER
    python -m experiments.extend --checkpoint=FOLDER       # loss, needles and facts by length

YaRN doubles the 8,192 tokens that the model was trained on, and positions of training rows skip
ahead to 16,384. `cpu`: 40 steps of one row; on two busy cores a row of half the length took 20 to
30 seconds. `gpu`: 300 steps of 16 rows in bfloat16, meant for 12 minutes of one GPU, where it has
not run yet.

Where the numbers come from: learning rate 2e-5, 10 steps of warm-up and rows of 2,048 in two
pieces are those of the paper's released script (which has 1,000 steps of 64 rows); AdamW with b2
0.95 and without weight decay is YaRN's fine-tune (arXiv 2309.00071). The number of steps is what
the machine affords. Another checkpoint has another trained length, in `model.encoding` and
`positions`: `python -m experiments.inspect --checkpoint=…` shows it.
"""

import dataclasses

from pe_jax.models.config import ModelConfig
from pe_jax.training.config import Config, EvalConfig, OptimizerConfig

TRAINED, FACTOR = 8192, 2
YARN = f"rope(scaling=yarn(factor={FACTOR},original_length={TRAINED}))"
CPU = Config(
    workdir="runs/pose",
    checkpoint="smollm2",
    data="text:novels",
    length=2048,
    positions=f"pose(maximum={FACTOR * TRAINED})",
    batch=1,
    steps=40,
    log_every=5,
    save_every=10,
    model=ModelConfig(encoding=YARN, remat=True),
    optimizer=OptimizerConfig(learning_rate=2e-5, warmup=10, weight_decay=0.0),
    eval=EvalConfig(lengths=(2048,), stride=2048, windows=8, batch_tokens=2048),
)
GPU = dataclasses.replace(
    CPU,
    workdir="runs/pose_gpu",
    batch=16,
    steps=300,
    log_every=10,
    save_every=100,
    model=ModelConfig(encoding=YARN, remat=True, dtype="bfloat16"),
    eval=EvalConfig(lengths=(2048, 16384), stride=2048, windows=8, batch_tokens=32768),
)


def get_config(part: str = "cpu") -> Config:
    return {"cpu": CPU, "gpu": GPU}[part]
