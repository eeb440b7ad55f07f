"""The encodings of configs/images.py on handwritten digits, at random places of 32 × 32 pixels.

    python -m experiments.images --config=configs/images_digits.py

The digits are those that scikit-learn ships (pe_jax/training/digits.py): ten classes, chance 0.1;
tests are of other writers. A wider view has more room around the digit, a finer one more pixels.
"""

import dataclasses

from configs import images
from experiments.running.sweep_configs import ImagesConfig


def get_config() -> ImagesConfig:
    return dataclasses.replace(images.get_config(), images="digits", workdir="runs/images_digits")
