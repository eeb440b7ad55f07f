"""What released models do to RoPE, trained on novels at 128 and tested to 1,024.

    python -m experiments.compare --config=configs/released.py --config.data=text:DIR
    python -m experiments.compare --config=configs/released.py:key_offset --config.data=text:DIR
    python -m experiments.compare --config=configs/released.py:rope_pp --config.data=text:DIR

Thirteen patterns of position over the layers, ALiBi among them, five seeds, a 4-layer byte model of
0.5M parameters with heads of 40 channels, so that a tenth, a quarter and a half of them are pairs.
The learning rate of each is chosen on validation text. 65 runs and 39 checks of the same length,
more where the best rate lies at an edge of the grid.

Each stands for released models, at the sizes of this one (windows of a quarter of the length):

- `rope(fraction=0.25)`: GPT-NeoX, Pythia, StableLM; `0.5`: GLM, Nemotron; `0.1`: the least here.
- `rope(scaling=proportional(fraction=0.25))`: p-RoPE (arXiv 2410.06205), as in Gemma 4: all
  channels are pairs, the slow ones do not turn.
- `rope(base=1024,fraction=0.5)`: the half-truncated RoPE of modded-nanogpt.
- `rope(base=5e5)`: Llama 3.
- `rope*3,nope`: SmolLM3.
- `rope@window=32*3,nope`: RNoPE-SWA (arXiv 2501.18795), Cohere 2.
- `rope@window=32*3,nope+temperature(floor_scale=128)`: Llama 4, whose local layers see
  chunks rather than windows (`@chunk=32`, tried afterwards).
- `rope@window=32*3,rope(base=1e6)`: Gemma 3, five such layers to one there.
- `rope+sink@window=32,rope+sink`: gpt-oss.

Questions, declared before the first run (2026-11-27). At the trained length: does rotating a part
of each head cost anything (the differences of the three fractions and p-RoPE to RoPE, secondary
metric)? At eight times it: which pattern keeps its loss (primary metric)? Does a pattern of layers
do what a decaying bias does: is any of the four with windows or layers without positions within
0.01 nats of ALiBi there, or ahead of it?

`key_offset` and `rope_pp` ask about two proposals, with the same data, model and rates, in 64
windows in place of 192: 28 and 21 runs, which took 80 and 67 minutes on one CPU
core. Questions, declared before the first result (2026-11-30), each a paired difference over five
seeds:

- `key_offset`: with the channels that do not turn taken from the key before, in all layers or in
  every fourth (modded-nanogpt, marin), is the loss at 128 below that of RoPE on half of the
  channels without it? Is it with a quarter that turns? Does the offset change what a partial
  rotation loses against RoPE at 1,024 (0.683 nats for a half in the first comparison)?
- `rope_pp`: does RoPE++ with as many heads (half of the cache) keep RoPE's loss at 128, within 0.01
  nats? Is it with as large a cache (twice the heads) below RoPE there? Does either fail less than
  RoPE at 1,024, as its paper has it (arXiv 2512.07525) for longer contexts?
"""

import dataclasses

from configs.extrapolation_novels import EVALUATION
from experiments.running.configs.compare import CompareConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import OptimizerConfig

HALF = "rope(fraction=0.5)"
ENCODINGS = {
    "released": (
        "rope",
        "alibi",
        "rope(fraction=0.1)",
        "rope(fraction=0.25)",
        HALF,
        "rope(scaling=proportional(fraction=0.25))",
        "rope(base=1024,fraction=0.5)",
        "rope(base=5e5)",
        "rope*3,nope",
        "rope@window=32*3,nope",
        "rope@window=32*3,nope+temperature(floor_scale=128)",
        "rope@window=32*3,rope(base=1e6)",
        "rope+sink@window=32,rope+sink",
    ),
    "key_offset": (
        HALF,
        f"{HALF}+key_offset",
        f"{HALF}*3,{HALF}+key_offset",
        "rope(fraction=0.25)+key_offset(fraction=0.75)",
    ),
    "rope_pp": ("rope", "rope_pp", "rope_pp(equal=cache)"),
}


def get_config(part: str = "released") -> CompareConfig:
    windows = EVALUATION.windows if part == "released" else 64
    return CompareConfig(
        workdir="runs/released" + f"_{part}" * (part != "released"),
        data="text:novels",
        encodings=ENCODINGS[part],
        baseline=ENCODINGS[part][0],
        reference=ENCODINGS[part][0],
        seeds=5,
        length=128,
        batch=16,
        steps=600,
        rates=(3e-3, 1e-2, 3e-2),
        rate_rounds=1,
        rate_steps=600,
        log_every=100,
        model=ModelConfig(width=96, layers=4, heads=4, head_dim=40),
        optimizer=OptimizerConfig(warmup=60),
        eval=dataclasses.replace(EVALUATION, windows=windows),
    )
