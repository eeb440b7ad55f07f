"""Does anything retrieve beyond its trained length? Passkeys in text, trained at 256 bytes.

    python -m experiments.compare --config=configs/passkeys.py

The byte model and the data of configs/extend.py:train, trained from scratch with seven encodings,
five seeds: RoPE, T5, ALiBi, KERPLE, FoX, windows with a layer without positions, and, as the floor,
chunks of 64, which cannot see most passkeys. The learning rate is that of configs/extend.py:train
for all; for encodings with parameters the best of 1, 10, 30 and 90 times that for these is chosen
by the loss of validation text at 256. 47 runs, under two hours on two busy CPU cores.
`configs/extend.py:passkeys` then asks all of these models for passkeys, and
applies ReRoPE to the RoPE models.

Questions, declared before the first run (2026-11-28): which of these models find more or fewer
passkeys at 1,024 than the RoPE models of the same seeds with ReRoPE, untrained (primary metric:
whole keys, mean over depths; five seeds, paired, Holm over all seven)? Which find any: is
the interval of the passkeys found at 1,024 above that of the floor? The column of the trained
length is the baseline: who finds none there says nothing.
"""

from experiments.running.configs.compare import CompareConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import EvalConfig, OptimizerConfig


def get_config() -> CompareConfig:
    return CompareConfig(
        workdir="runs/passkeys",
        data="passkeys:embedded",
        encodings=(
            "rope",
            "t5",
            "alibi",
            "kerple",
            "fox",
            "rope@window=64*2,nope",
            "rope@chunk=64",
        ),
        baseline="rope",
        reference="rope",
        seeds=5,
        length=256,
        batch=16,
        steps=1_000,
        encoding_rates=(1.0, 10.0, 30.0, 90.0),
        rate_steps=1_000,
        log_every=100,
        save_every=500,
        model=ModelConfig(layers=3, heads=2),
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup=100),
        eval=EvalConfig(lengths=(256, 512, 1024), windows=48, stride=128, split="test"),
    )
