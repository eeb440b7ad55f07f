"""A fixed target: which encoding has the lowest loss at 64 bytes and at 512, for the same budget?

    python -m experiments.compare --config=configs/speedrun.py
    python -m experiments.compare --config=configs/speedrun.py --encodings=rope --encodings=t5 \
      --config.workdir=runs/mine
    python -m tools.speedrun add --workdir=runs/mine

docs/speedrun.md has the rules and the table. The model of `make compare`, 2 layers of width 64 that
read the embedded source code as bytes, trained for 1,000 steps of 16 × 64 bytes with three seeds;
each encoding's learning rate is the best of three on validation text, with two multiples of each
for the parameters of encodings. The twelve took 50 minutes on two cores that were busy. The table
ranks: no question was declared.
"""

from experiments.running.configs.compare import CompareConfig
from pe_jax.training.config import EvalConfig


def get_config() -> CompareConfig:
    return CompareConfig(
        workdir="runs/speedrun",
        encodings=(
            "rope",
            "nope",
            "sinusoidal",
            "alibi",
            "t5",
            "kerple",
            "shaw",
            "transformer_xl",
            "fox",
            "pope",
            "inkling(extent={length})",
            "rope,nope",
        ),
        baseline="rope",
        reference="rope",
        batch=16,
        steps=1000,
        rates=(5e-3, 1e-2, 2e-2),
        encoding_rates=(1.0, 10.0),
        rate_steps=1000,
        eval=EvalConfig(windows=12, split="test", every=100),
    )
