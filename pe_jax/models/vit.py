"""A vision Transformer (arXiv 2010.11929) that takes any encoding: the layers of `transformer`.

Patches are projected and attend to each other; the outputs are normalised, averaged and projected
to classes; there is no class token (arXiv 2205.01580 finds it unnecessary).
B batch, H and W sides of an image in pixels, C channels, p side of a patch, T patches, D width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from pe_jax.models.config import DTYPES, ModelConfig
from pe_jax.models.transformer import Stack
from pe_jax.validation import is_int, require


def patches(images: jax.Array, side: int) -> jax.Array:
    """The patches of images, row by row: [B, H/p·W/p, p·p·C] for [B, H, W, C].

    Raises:
      ValueError: a side is not a multiple of the patch's.
    """
    batch, height, width, channels = images.shape
    if height % side or width % side:
        raise ValueError(f"images of {height} × {width}: the sides must be multiples of {side}")
    cut = images.reshape(batch, height // side, side, width // side, side, channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, side * side * channels)


class ViT(Stack):
    """Images to class logits. Make it with `ViT(config, patch, channels, classes, rngs=…)`.

    `config.vocab` and `config.tied` are not read; `config.causal` must be False.

    Raises:
      ValueError: a field of `config` or a size is out of range; raised before anything compiles.
    """

    def __init__(
        self, config: ModelConfig, patch: int, channels: int, classes: int, *, rngs: nnx.Rngs
    ):
        config.check()
        fix = "pass False, every patch sees all others"
        require(not config.causal, "model.causal", config.causal, fix)
        for name, size in {"patch": patch, "channels": channels, "classes": classes}.items():
            require(is_int(size, 1), name, size, "pass an integer of at least 1")
        weights, self.patch = rngs.params(), patch
        super().__init__(config, weights, rngs.encoding())
        first, last = (jax.random.fold_in(weights, n) for n in (0, 1))
        self.embed = self._project(patch * patch * channels, config.width, first)
        self.head = self._project(config.width, classes, last)

    def __call__(self, images, *, positions, key=None):
        """Logits of each class.

        Args:
          images: float [B, H, W, C], pixels of about unit variance.
          positions: of the patches, the same for all images [T], or [T, A] where the encoding has A
            axes, as `pe_jax.positions.grid` gives them; or per image, [B, T] or [B, T, A].
          key: PRNG key of dropout; None disables it.

        Returns:
          float32 [B, classes].
        """
        x = self.embed(patches(images, self.patch).astype(DTYPES[self.config.dtype]))
        x = self._add_positions(x, positions)
        x, _ = self._layers(x, nnx.as_pure(self.shared), positions, None, None, key)
        return self.head(self.final_norm(x).mean(1)).astype(jnp.float32)
