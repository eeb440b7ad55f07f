"""Encodings of 2024–2026 beside RoPE, T5 and NoPE: five seeds, every scheme with its own rates.

    python -m experiments.compare --config=configs/field_2026.py
    python -m experiments.compare --config=configs/field_2026.py --config.data=text:DIR

The model and the data are those of configs/compare.py: 2 layers of width 64 that read the embedded
source code as bytes, trained at 64 and tested to 512. For each scheme three learning rates are
tried in runs of full length, for the eight with parameters each with three multiples of it for
these; the best on validation text at 64 is kept, and its run is the first seed's: 81 checks, of
which 11 go on, and 44 more runs.

Expect (docs/results.md) T5 and Inkling ahead of RoPE at 64, GRAPE-AP, ALiBi and NoPE behind; at 512
RoPE, PoPE, Selective RoPE and RoPE with sinks fail, as no distance beyond 64 was trained, and FoX,
Wall, GRAPE-AP and ALiBi, which forget, stay flat.
"""

from experiments.running.sweep_configs import CompareConfig
from pe_jax.training.config import EvalConfig


def get_config() -> CompareConfig:
    return CompareConfig(
        workdir="runs/field_2026",
        encodings=(
            "nope",
            "t5",
            "rope",
            "alibi",
            "rope+sink",
            "pope",
            "selective_rope",
            "inkling(extent={length})",
            "fox",
            "grape_ap",
            "wall",
        ),
        baseline="nope",
        reference="rope",
        seeds=5,
        batch=16,
        steps=500,
        rates=(5e-3, 1e-2, 2e-2),
        encoding_rates=(1.0, 5.0, 25.0),
        rate_steps=500,
        eval=EvalConfig(windows=12, split="test", every=50),
    )
