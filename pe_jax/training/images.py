"""Synthetic images whose label depends only on relative positions, drawn from a key.

Discs of one size on a grey ground: a red one, a blue one, and green distractors. The label is where
the blue disc is relative to the red one: right, below, left or above, and near or far. The eight
classes are equally likely and independent of the contents of any patch of 4 pixels: a model without
positions can only guess (`CHANCE`).

A larger image is one of two things, by `zoom`:

* a wider view, the same zoom: discs, "near" and "far" keep their sizes in pixels, and pairs can be
  further apart than any in a smaller image;
* a finer view, zoom in proportion to the side: the same scenes in more pixels. Everything keeps its
  size relative to the image.

Lengths are in units of `zoom` pixels. B images.
"""

import functools

import jax
import jax.numpy as jnp

from pe_jax.numerics.arrays import in_32_bits
from pe_jax.validation import ConfigError

CLASSES = 8  # right, below, left, above when near; the same when far
CHANCE = 1 / CLASSES
CHANNELS = 3
RADIUS = 2.0
MARGIN = 2.5  # of a disc's centre from the edge
NEAR = (9.5, 12.0)  # between centres: far enough that no patch of 4 units holds parts of both
FAR = 16.0
MAX_SPREAD = 0.7  # the furthest pair, relative to the side
MAX_ANGLE = jnp.pi / 5  # largest deviation from the direction of a class, to either side
GREEN_DISCS = 3
COLOURS = {"red": (2, -1, -1), "blue": (-1, -1, 2), "green": (-1, 2, -1)}
NOISE = 0.3
MIN_SIDE = 24


@in_32_bits
@functools.partial(jax.jit, static_argnames=("count", "side", "zoom", "split"))
def draw(
    key: jax.Array, count: int, side: int, zoom: float = 1.0, split: str = "train"
) -> tuple[jax.Array, jax.Array]:
    """Images and labels: float32 [B, side, side, 3], int32 [B] in [0, CLASSES).

    Args:
      key: the same key gives the same images.
      count: B.
      side: pixels.
      zoom: pixels per unit.
      split: accepted as by `pe_jax.training.digits` and unused: images depend on the key alone.

    Raises:
      ConfigError: a view too narrow for a far pair.
    """
    del split
    view = side / zoom
    if view < MIN_SIDE:
        raise ConfigError(f"side={side}, zoom={zoom}: pass side/zoom of at least {MIN_SIDE}")
    keys = jax.random.split(key, 7)
    label = jax.random.randint(keys[0], (count,), 0, CLASSES)
    direction, far = label % 4, label // 4
    distance = jnp.where(
        far == 1,
        jax.random.uniform(keys[1], (count,), minval=FAR, maxval=MAX_SPREAD * view),
        jax.random.uniform(keys[2], (count,), minval=NEAR[0], maxval=NEAR[1]),
    )
    angle = jax.random.uniform(keys[3], (count,), minval=-MAX_ANGLE, maxval=MAX_ANGLE)
    angle += direction * (jnp.pi / 2)
    offset = distance[:, None] * jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)  # row, column
    low = MARGIN + jnp.maximum(0, -offset)
    high = view - MARGIN - jnp.maximum(0, offset)
    red = low + (high - low) * jax.random.uniform(keys[4], (count, 2))
    shape = (GREEN_DISCS, count, 2)
    green = jax.random.uniform(keys[5], shape, minval=MARGIN, maxval=view - MARGIN)
    image = jnp.zeros((count, side, side, CHANNELS))
    discs = [("green", centre) for centre in green] + [("red", red), ("blue", red + offset)]
    for colour, centre in discs:
        inside = _disc(centre, side, zoom)[..., None]
        image = (1 - inside) * image + inside * jnp.asarray(COLOURS[colour], jnp.float32)
    return image + NOISE * jax.random.normal(keys[6], image.shape), label


def _disc(centre: jax.Array, side: int, zoom: float) -> jax.Array:
    """Approximate coverage of each pixel by a disc: [B, side, side] for centres [B, 2]."""
    pixels = (jnp.arange(side) + 0.5) / zoom
    row, column = (jnp.square(pixels - centre[:, axis, None]) for axis in (0, 1))
    distance = jnp.sqrt(row[:, :, None] + column[:, None, :])
    return jnp.clip((RADIUS - distance) * zoom + 0.5, 0, 1)
