"""Two views of each token: near pairs are scored by one, far pairs by the other.

A rotation may give queries and keys twice, side by side in their channels. The keys of both views
are laid one after the other, as if there were twice as many block columns; a tile is visited in the
views that score any of its pairs. With one view everything here leaves its argument as it is.

n is a block column and its view in one: view·k_blocks + j.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Tokens
from pe_jax.engines.tiled.grid import Grid, ranges


@dataclasses.dataclass(frozen=True)
class Views:
    """The views of queries and keys.

    Attributes:
      split: the distance from which the second one scores a pair; None: there is one view.
    """

    split: int | None

    @property
    def count(self) -> int:
        """How many there are."""
        return 1 if self.split is None else 2

    def keys(self, k: jax.Array) -> jax.Array:
        """Keys [b, k, S, E] in the order of n: the first views, then the second ones."""
        return k if self.split is None else jnp.concatenate(jnp.split(k, 2, axis=-1), axis=2)

    def merge_keys(self, k: jax.Array) -> jax.Array:
        """The inverse of `keys`."""
        return k if self.split is None else jnp.concatenate(jnp.split(k, 2, axis=2), axis=-1)

    def queries(self, q: jax.Array, view) -> jax.Array:
        """One view of queries [b, h, r, E]."""
        if self.split is None:
            return q
        size = q.shape[-1] // 2
        return jax.lax.dynamic_slice_in_dim(q, view * size, size, 3)

    def merge_queries(self, q: jax.Array, view) -> jax.Array:
        """The inverse of `queries`, with zeros in the other view."""
        if self.split is None:
            return q
        return jnp.concatenate([jnp.where(view == n, q, 0) for n in range(2)], axis=-1)

    def place(self, n, k_blocks: int) -> tuple[Any, Any]:
        """View and block column of n."""
        return (0, n) if self.split is None else (n // k_blocks, n % k_blocks)

    def restrict(self, seen: jax.Array, q: Tokens, k: Tokens, view) -> jax.Array:
        """Of a tile's pairs that are seen, bool [b or 1, 1, r, c], those that a view scores."""
        if self.split is None:
            return seen
        distance = q.positions[:, :, None] - k.positions[:, None]
        return seen & ((distance >= self.split) == (view == 1))[:, None]

    def by_view(self, grid: Grid, q: Tokens, k: Tokens, i, some, whole):
        """`some` and `whole` of a row of tiles [k_blocks], for either view: by n."""
        if self.split is None:
            return some, whole
        rows, columns = ranges(q.positions, grid.q_blocks), ranges(k.positions, grid.k_blocks)
        near = rows.low[i] - columns.high < self.split
        far = rows.high[i] - columns.low >= self.split
        some = jnp.concatenate([some & near, some & far])
        return some, jnp.concatenate([whole & ~far, whole & ~near])
