"""Handwritten digits at random positions in an empty image: real pictures, from scikit-learn.

1,797 digits of 8 × 8 pixels in 16 greys (E. Alpaydin and C. Kaynak, the test part of "Optical
Recognition of Handwritten Digits", UCI Machine Learning Repository), in the order of the file, in
which writers follow each other: the first 1,200 for training, 197 for validation, 400 for tests.

A digit is 16 units wide, of `zoom` pixels. A larger image is a wider view, with more room around
the digit, or a finer one, as in `pe_jax.training.images`. B images.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.numerics.arrays import in_32_bits
from pe_jax.validation import ConfigError

CLASSES = 10
CHANCE = 1 / CLASSES
CHANNELS = 1
DIGIT = 16  # units
MIN_SIDE = 20
GREYS = 16
SPLITS = {"train": slice(1200), "validation": slice(1200, 1397), "test": slice(1397, None)}


@functools.cache
def load() -> tuple[np.ndarray, np.ndarray]:
    """All digits, float32 [1797, 8, 8] in [0, 1], and their labels, int32 [1797]."""
    from sklearn.datasets import load_digits  # seconds to import

    pixels, labels = load_digits(return_X_y=True)
    return np.asarray(pixels, np.float32).reshape(-1, 8, 8) / GREYS, np.asarray(labels, np.int32)


@in_32_bits
@functools.partial(jax.jit, static_argnames=("count", "side", "zoom", "split"))
def draw(
    key: jax.Array, count: int, side: int, zoom: float = 1.0, split: str = "train"
) -> tuple[jax.Array, jax.Array]:
    """Images and labels: float32 [B, side, side, 1], int32 [B] in [0, CLASSES).

    Args:
      key: the same key gives the same images.
      count: B; digits repeat.
      side: pixels.
      zoom: pixels per unit.
      split: "train", "validation" or "test".

    Raises:
      ConfigError: a view too narrow for the digit and some room.
    """
    if side / zoom < MIN_SIDE:
        raise ConfigError(f"side={side}, zoom={zoom}: pass side/zoom of at least {MIN_SIDE}")
    pictures, labels = (jnp.asarray(x[SPLITS[split]]) for x in load())
    keys, size = jax.random.split(key), round(DIGIT * zoom)
    which = jax.random.randint(keys[0], (count,), 0, len(labels))
    digits = jax.image.resize(pictures[which], (count, size, size), "linear")
    corners = jax.random.randint(keys[1], (count, 2), 0, side - size + 1)

    def put(digit, corner):
        return jax.lax.dynamic_update_slice(jnp.zeros((side, side)), digit, corner)

    return jax.vmap(put)(digits, corners)[..., None], labels[which]
