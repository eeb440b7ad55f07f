"""Swin's relative position bias: Liu et al., "Swin Transformer", arXiv 2103.14030, §3.2, eq. 4.

    score = q·k/sqrt(E) + table[h, index(dr, dc)]

    index = (dr + H - 1)(2W - 1) + dc + W - 1,      |dr| < H,  |dc| < W

for a window of H × W patches. The released code also takes distances as query - key, so that its
tables are ours, transposed: `table.T`.

BEiT (Bao et al., arXiv 2106.08254) has the image as its window, and a class token with three more
entries at the end of the table: the class token's query with a patch's key, a patch's query with
its key, and its query with its own key.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import flag_field, int_field, stddev_field
from pe_jax.encodings import learned_grid
from pe_jax.encodings.base import Claims, Params, Shareable
from pe_jax.encodings.terms import DistanceBias, PairBias
from pe_jax.numerics.arrays import align, require_array, take
from pe_jax.numerics.position_arrays import as_positions, check_axes, concrete
from pe_jax.validation import is_int, python_ints, require

CLASS = -1  # row and column of the class token
CLASS_ENTRIES = 3  # class → patch, patch → class, class → class


@python_ints
def lookup(table: jax.Array, distance, height: int, width: int) -> jax.Array:
    """The bias of each distance: [H, *n] for a table [H, (2·height - 1)(2·width - 1)].

    Args:
      table: one row per head.
      distance: (rows, columns), query - key: integers [*n, 2].
      height: rows of the window.
      width: its columns.

    Raises:
      ValueError: a known distance outside the window (under a trace such biases are NaN); a table
        of another size; another number of axes.
      TypeError: distances that are not integers.
    """
    require_array("table", table, 2)
    for name, size in (("height", height), ("width", width)):
        require(is_int(size, 1), name, size, "pass an integer of at least 1")
    distance, sides = as_positions(distance, name="distance"), np.array([height, width])
    check_axes(distance, 2, "distance")
    values = concrete(distance)
    if values is not None and (np.abs(values.astype(np.int64)) >= sides).any():
        worst = values[(np.abs(values.astype(np.int64)) >= sides).any(-1)][0].tolist()
        fix = f"keep |distance| below ({height}, {width}) or enlarge the window"
        raise ValueError(f"distance: {worst} is outside the {height} × {width} window; {fix}")
    sides = align(jnp.asarray(sides, jnp.int32), distance)
    inside = ((distance > -sides) & (distance < sides)).all(-1)
    near = jnp.clip(distance, 1 - sides, sides - 1) + (sides - 1)
    index = near[..., 0] * (2 * width - 1) + near[..., 1]
    return jnp.where(inside, take(table, index, 1, _distances(height, width)), jnp.nan)


@python_ints
def class_lookup(table: jax.Array, q_pos, k_pos, height: int, width: int) -> jax.Array:
    """The bias of each pair where tokens at (-1, -1) are class tokens: [*B, H, T, S].

    Args:
      table: [H, (2·height - 1)(2·width - 1) + 3], columns as in `lookup`, then three for the class.
      q_pos: (row, column) of the queries: integers [*B, T, 2].
      k_pos: those of the keys [*B, S, 2].
      height: rows of the window.
      width: its columns.

    Raises:
      ValueError: what `lookup` raises, for patches.
      TypeError: positions that are not integers.
    """
    count, table = _distances(height, width), jnp.asarray(table)
    ok, fix = table.shape[1] == count + CLASS_ENTRIES, f"axis 1 must have {count + CLASS_ENTRIES}"
    require(ok, "table", table.shape, fix)
    q_pos, k_pos = (as_positions(x)[..., None, :] for x in (q_pos, k_pos))
    k_pos = jnp.swapaxes(k_pos, -2, -3)
    q_class, k_class = ((x == CLASS).all(-1) for x in (q_pos, k_pos))
    either = q_class | k_class
    distance = jnp.where(either[..., None], 0, q_pos - k_pos)
    patches = lookup(table[:, :count], distance, height, width)
    which = jnp.where(q_class, jnp.where(k_class, 2, 0), 1)
    classes = take(table[:, count:], which, 1)
    return jnp.moveaxis(jnp.where(align(either, patches), classes, patches), 0, -3)


@python_ints
def resize(
    table: jax.Array, window: tuple[int, int], to: tuple[int, int], method: str = "bilinear"
) -> jax.Array:
    """A table [H, n], resized from one window to another; the entries of a class token stay.

    Transformers does so for BEiT on images of other sizes, bilinearly (`learned_grid.resize`).

    Raises:
      ValueError: a table of another size, an unknown method.
    """
    table, count = jnp.asarray(table), _distances(*window)
    ok = table.shape[1] in (count, count + CLASS_ENTRIES)
    require(ok, "table", table.shape, f"axis 1 must have {count}, or 3 more for a class token")
    rows, columns = (2 * n - 1 for n in window)
    square = jnp.moveaxis(table[:, :count].reshape(-1, rows, columns), 0, -1)
    resized = learned_grid.resize(square, 2 * to[0] - 1, 2 * to[1] - 1, method)
    patches = jnp.moveaxis(resized, -1, 0).reshape(len(table), -1)
    return jnp.concatenate([patches, table[:, count:]], axis=1)


def _distances(height: int, width: int) -> int:
    """How many distances there are in a window."""
    return (2 * height - 1) * (2 * width - 1)


@dataclasses.dataclass(frozen=True)
class Swin(Shareable):
    """One scalar per head and distance on a window of `height` × `width`, in every layer.

    `class_token` adds BEiT's three entries for (-1, -1), as `positions.grid(height, width,
    prefix=1, numbered=True)` has it. With `shared` the layers have one table.
    """

    height: int = int_field(7, 1)
    width: int = int_field(7, 1)
    class_token: bool = flag_field(False)
    shared: bool = flag_field(False)
    stddev: float = stddev_field()

    claims = Claims(axes=2)

    def _init(self, key, dims):
        """Table [H, (2·height - 1)(2·width - 1)], 3 more for a class token."""
        entries = _distances(self.height, self.width) + CLASS_ENTRIES * self.class_token
        shape = (dims.heads, entries)
        return {"table": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def terms(self, params, dims):
        table = self.arrays(params)["table"]
        if self.class_token:
            return (PairBias(self.class_lookup, table),)
        return (DistanceBias(self.lookup, table),)

    def lookup(self, table, distance):
        """table[h, index(dr, dc)]: [H, *n]."""
        return lookup(table, distance, self.height, self.width)

    def class_lookup(self, table, q_pos, k_pos):
        """The same for pairs, with a class token: [*B, H, T, S]."""
        return class_lookup(table, q_pos, k_pos, self.height, self.width)

    def limit(self):
        return min(self.height, self.width)

    def resized(self, params: Params, height: int, width: int) -> tuple["Swin", Params]:
        """The scheme and its parameters for a window of another size, as `resize` has them.

        Raises:
          ValueError: a size below 1.
        """
        scheme = dataclasses.replace(self, height=height, width=width)
        window = self.height, self.width
        tables = jax.tree.map(lambda table: resize(table, window, (height, width)), params)
        return scheme, tables
