"""Encodings of configs/images.py on handwritten digits, at random places of 32 × 32 pixels.

    python -m experiments.images --config=configs/images_digits.py

The digits are those that scikit-learn ships (pe_jax/training/digits.py): ten classes, chance 0.1;
tests are of other writers. A wider view has more room around the digit, a finer one more pixels.
Without Swin's table, which no larger image has. Neighbours of the best rate are tried while it lies
at an edge of the grid, for two rounds. 41 minutes on 2 cores with AVX-512.

Written after the results (docs/results/digits.md), as no question was declared: 0.86 to 0.95 at 32
pixels; on finer views normalized positions keep most of that, on wider ones augmented positions and
`cpb` lose the least.
"""

import dataclasses

from configs import images
from experiments.running.configs.images import ImagesConfig

LEFT_OUT = "swin"


def get_config() -> ImagesConfig:
    config = images.get_config()
    encodings = tuple(name for name in config.encodings if not name.startswith(LEFT_OUT))
    workdir = "runs/images_digits"
    return dataclasses.replace(
        config, images="digits", encodings=encodings, rate_rounds=2, workdir=workdir
    )
