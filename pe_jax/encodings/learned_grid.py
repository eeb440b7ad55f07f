"""A learned vector for each patch: Dosovitskiy et al., "ViT", arXiv 2010.11929, §3.1, eq. 1.

    x ← x + table[r, c],      for the k-th token before the patches:  x ← x + front[n - k]

Models call it `pos_embed` (timm), `position_embeddings` (Hugging Face) or `posemb="learn"` (Big
Vision). An image of another size needs the table resized to its patches (ViT, §3.2), as the
model was trained: bicubic (ViT, DINOv2, arXiv 2304.07193, SigLIP), bicubic with
antialiasing (DINOv2 with registers, arXiv 2309.16588) or bilinear with antialiasing (SigLIP 2,
arXiv 2502.14786). `resize` does each as PyTorch does.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import flag_field, int_field, one_of_field, stddev_field
from pe_jax.encodings.base import Claims, Encoding, Params
from pe_jax.encodings.terms import Input
from pe_jax.numerics import resampling
from pe_jax.numerics.arrays import take
from pe_jax.numerics.position_arrays import as_positions, check_axes, concrete
from pe_jax.numerics.products import einsum
from pe_jax.validation import require

METHODS = resampling.METHODS


def resize(
    table: jax.Array,
    height: int,
    width: int,
    method: str = "bicubic",
    antialias: bool = False,
    offset: float = 0.0,
) -> jax.Array:
    """A table [h, w, *n] for a grid of another size: [height, width, *n], the table's dtype.

    Equals `torch.nn.functional.interpolate(…, mode=method, antialias=antialias)`: two products with
    constant weights, computed in float32. `jax.image.resize` differs (see
    `pe_jax.numerics.resampling`).

    Args:
      table: vectors of rows and columns; axes after the first two are channels.
      height: rows of the new grid.
      width: its columns.
      method: "bicubic" or "bilinear".
      antialias: whether a smaller grid averages over all entries that a new one replaces.
      offset: added to `height` and `width` in the ratios alone. The released code of DINOv2 has
        0.1, and leaves a table of the right size as it is.

    Raises:
      ValueError: a table of fewer than two axes, a size below 1, an unknown method.
    """
    table = jnp.asarray(table)
    require(table.ndim >= 2, "table", table.shape, "pass [rows, columns, …]")
    sides = zip(table.shape, (height, width), strict=False)
    rows, columns = (
        jnp.asarray(resampling.weights(size, to, method, antialias, offset), jnp.float32)
        for size, to in sides
    )
    resized = einsum("yr,rc...->yc...", rows, table.astype(jnp.float32))
    return einsum("xc,yc...->yx...", columns, resized).astype(table.dtype)


def lookup(table: jax.Array, positions, front: jax.Array | None = None) -> jax.Array:
    """`table[row, column]`: [..., D] for a table [h, w, D] and integer positions [..., 2].

    Args:
      table: a vector for each patch.
      positions: (row, column) of patches; (-k, -k) is the k-th token before the patches, as
        `positions.grid(…, prefix=n, numbered=True)` has them.
      front: the vectors [n, D] of such tokens, in their order.

    Raises:
      ValueError: a known position that is not in the grid (under a trace such rows are NaN);
        another number of axes.
      TypeError: positions that are not integers.
    """
    positions, table = as_positions(positions), jnp.asarray(table)
    check_axes(positions, 2)
    height, width, channels = table.shape
    count = 0 if front is None else len(front)
    values = concrete(positions)
    if values is not None and (outside := values[~_inside(values, height, width, count)]).size:
        before = f", tokens in front from {(-count, -count)} to (-1, -1)" * (count > 0)
        raise ValueError(
            f"positions: {outside[0].tolist()} is outside the {height} × {width} table{before};"
            " keep rows and columns inside, or resize the table (learned_grid.resize)"
        )
    row, column = positions[..., 0], positions[..., 1]
    index = jnp.clip(row, 0, height - 1) * width + jnp.clip(column, 0, width - 1)
    rows = table.reshape(-1, channels)
    if front is not None:
        rows = jnp.concatenate([rows, jnp.asarray(front, table.dtype)])
        index = jnp.where(row < 0, jnp.clip(len(rows) + row, 0, len(rows) - 1), index)
    inside = _inside(positions, height, width, count)
    return jnp.where(inside[..., None], take(rows, index, mode="promise_in_bounds"), jnp.nan)


def _inside(positions, height: int, width: int, count: int):
    """Whether each of the positions [..., 2] has a vector: bool [...]."""
    row, column = positions[..., 0], positions[..., 1]
    patch = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return patch | ((row == column) & (row < 0) & (row >= -count))


@dataclasses.dataclass(frozen=True)
class LearnedGrid(Encoding):
    """Adds `table[row, column]`, a learned vector for each of `height` × `width` patches.

    `prefix` tokens before the patches (CLS, distillation) have vectors as well: give them the
    positions of `positions.grid(height, width, prefix=prefix, numbered=True)`. Do not call
    `embed` for tokens without a vector (DINOv2's registers). `method` and `antialias` say how
    `resized` fits the table to another grid.
    """

    height: int = int_field(14, 1)
    width: int = int_field(14, 1)
    prefix: int = int_field(0, 0)
    method: str = one_of_field("bicubic", METHODS)
    antialias: bool = flag_field(False)
    stddev: float = stddev_field()

    claims = Claims(axes=2)

    def init_shared(self, key, dims):
        """Table [height, width, D] and, with a prefix, front [prefix, D]."""
        keys = jax.random.split(key)
        shapes = {"table": (self.height, self.width, dims.width)}
        shapes |= {"front": (self.prefix, dims.width)} if self.prefix else {}
        return {
            name: self.stddev * jax.random.normal(k, shape, jnp.float32)
            for k, (name, shape) in zip(keys, shapes.items(), strict=False)
        }

    def inputs(self, shared):
        return (Input(vectors, shared),)

    def limit(self):
        return min(self.height, self.width)

    def resized(self, params: Params, height: int, width: int) -> tuple["LearnedGrid", Params]:
        """The scheme and its parameters for images of height × width patches.

        Differentiable in the parameters: a model that trains on images of several sizes calls this
        for each size and keeps one table. Vectors of the prefix stay.

        Raises:
          ValueError: a size below 1.
        """
        table = resize(params.shared["table"], height, width, self.method, self.antialias)
        scheme = dataclasses.replace(self, height=height, width=width)
        return scheme, params._replace(shared={**params.shared, "table": table})


def vectors(shared, positions, width):
    """`lookup` as the function of an `Input`."""
    return lookup(shared["table"], positions, shared.get("front"))
