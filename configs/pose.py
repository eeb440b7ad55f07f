"""PoSE (arXiv 2309.10400): SmolLM2-135M made for longer texts on rows of 2,048 tokens.

    python -m experiments.train --config=configs/pose.py:cpu --config.data=text:DIR --export=FOLDER
    python -m experiments.extend --checkpoint=FOLDER       # loss, needles and facts by length

`cpu`: YaRN doubles the 8,192 tokens that the model was trained on, and positions of training rows
skip ahead to 16,384, in 40 steps of one row, 11 to 13 minutes of two busy cores; what came of it is
in docs/results/smollm2.md. `gpu_yarn`, `gpu_linear` and `gpu_llama3`: 32,768 tokens by YaRN, by
positions divided by four, and by Llama 3's frequencies, in 300 steps of 16 rows in bfloat16; `make
gpu-32k` trains and reads all three in twelve minutes of one GPU, where they have not run yet.

Where the numbers come from: learning rate 2e-5, 10 steps of warm-up and rows of 2,048 in two
pieces are those of the paper's released script (which has 1,000 steps of 64 rows); AdamW with b2
0.95 and without weight decay is YaRN's fine-tune (arXiv 2309.00071). The number of steps is what
the machine affords. Another checkpoint has another trained length, in `model.encoding` and
`positions`: `python -m experiments.inspect --checkpoint=…` shows it.
"""

import dataclasses

from pe_jax.models.config import ModelConfig
from pe_jax.training.config import Config, EvalConfig, OptimizerConfig

TRAINED = 8192
METHODS = {
    "yarn": "rope(scaling=yarn(factor={factor},original_length=8192))",
    "linear": "rope(scaling=linear(factor={factor}))",
    "llama3": "rope(scaling=llama3(factor={factor},original_length=8192))",
}
CPU = Config(
    workdir="runs/pose",
    checkpoint="smollm2",
    data="text:novels",
    length=2048,
    positions=f"pose(maximum={2 * TRAINED})",
    batch=1,
    steps=40,
    log_every=5,
    save_every=10,
    model=ModelConfig(encoding=METHODS["yarn"].format(factor=2), remat=True),
    optimizer=OptimizerConfig(learning_rate=2e-5, warmup=10, weight_decay=0.0),
    eval=EvalConfig(lengths=(2048,), stride=2048, windows=8, batch_tokens=2048),
)
GPU = dataclasses.replace(
    CPU,
    positions=f"pose(maximum={4 * TRAINED})",
    batch=16,
    steps=300,
    log_every=10,
    save_every=100,
    model=ModelConfig(remat=True, dtype="bfloat16"),
    eval=EvalConfig(lengths=(2048, 16384), stride=2048, windows=8, batch_tokens=32768),
)


def get_config(part: str = "cpu") -> Config:
    if part == "cpu":
        return CPU
    encoding = METHODS[part.removeprefix("gpu_")].format(factor=4)
    model = dataclasses.replace(GPU.model, encoding=encoding)
    return dataclasses.replace(GPU, workdir=f"runs/pose_{part}", model=model)
