"""Nine encodings on images: trained at 32 × 32 pixels, tested there and on larger ones.

    make images
    python -m experiments.images --config=configs/images.py

The task (pe_jax/training/images.py): in which direction from the red disc is the blue one, and is
it near or far? Eight classes, chance 0.125. Larger images are a wider view of the same discs, or a
finer view of the same scenes.
"""

from experiments.running.sweep_configs import ImagesConfig


def get_config() -> ImagesConfig:
    return ImagesConfig()
