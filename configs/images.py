"""Eight encodings, some with several kinds of positions, on images larger than those trained on.

    make images
    python -m experiments.images --config=configs/images.py

The task (pe_jax/training/images.py): in which direction from the red disc is the blue one, and is
it near or far? Eight classes, chance 0.125. Larger images are a wider view of the same discs, or a
finer view of the same scenes. Each learning rate is tried with the first seed, on other images of
32 × 32 pixels, and for encodings with parameters each with three multiples for these.

An hour on 2 cores with AVX-512. Written after the results (docs/results/images.md), as no question
was declared: all but NoPE and ALiBi in two axes are above 0.98 at 32 pixels; on finer views of 64
RoPE of normalized positions keeps that, and RoPE by index falls below one half.
"""

from experiments.running.configs.images import ImagesConfig


def get_config() -> ImagesConfig:
    return ImagesConfig(
        reference="rope_2d", seeds=5, rates=(1e-3, 3e-3, 1e-2), encoding_rates=(1.0, 3.0, 10.0)
    )
