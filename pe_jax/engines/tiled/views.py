"""Several views of each token, of which one scores a pair: near pairs by one, far pairs by another.

A rotation may give queries several times, side by side in their channels, and keys too. The tiles
of all views are numbered one view after the other, as if there were as many times the block
columns; a tile is visited in the views that score any of its pairs. The keys of all views are laid
so too, unless they share one. With one view everything here leaves its argument as it is.

n is a block column and its view in one: view·k_blocks + j.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Tokens, Views
from pe_jax.engines.tiled.grid import Grid, ranges


@dataclasses.dataclass(frozen=True)
class TileViews:
    """The views of queries and keys.

    Attributes:
      views: which of them scores a pair; None: there is one.
    """

    views: Views | None

    @property
    def of_keys(self) -> int:
        """How many views of keys there are."""
        return 1 if self.views is None or self.views.shared_keys else self.views.count

    def keys(self, k: jax.Array) -> jax.Array:
        """Keys [b, k, S, E] in the order of n: one view after the other."""
        count = self.of_keys
        return k if count == 1 else jnp.concatenate(jnp.split(k, count, axis=-1), axis=2)

    def merge_keys(self, k: jax.Array) -> jax.Array:
        """The inverse of `keys`."""
        count = self.of_keys
        return k if count == 1 else jnp.concatenate(jnp.split(k, count, axis=2), axis=-1)

    def key_block(self, n, k_blocks: int):
        """Which block of `keys` n meets."""
        return n if self.of_keys > 1 else self.place(n, k_blocks)[1]

    def queries(self, q: jax.Array, view, axis: int = 3) -> jax.Array:
        """One view of queries [b, h, r, E], or turned ones [b, h, E, r] for axis 2."""
        if self.views is None:
            return q
        size = q.shape[axis] // self.views.count
        return jax.lax.dynamic_slice_in_dim(q, view * size, size, axis)

    def merge_queries(self, q: jax.Array, view) -> jax.Array:
        """The inverse of `queries`, with zeros in the other views."""
        if self.views is None:
            return q
        each = [jnp.where(view == n, q, 0) for n in range(self.views.count)]
        return jnp.concatenate(each, axis=-1)

    def place(self, n, k_blocks: int) -> tuple[Any, Any]:
        """View and block column of n."""
        return (0, n) if self.views is None else (n // k_blocks, n % k_blocks)

    def restrict(self, seen: jax.Array, q: Tokens, k: Tokens, view) -> jax.Array:
        """Of a tile's pairs that are seen, bool [b or 1, 1, r, c], those that a view scores."""
        if self.views is None:
            return seen
        of_pairs = self.views.of(q.positions[:, :, None], k.positions[:, None])
        return seen & (of_pairs == view)[:, None]

    def by_view(self, grid: Grid, q: Tokens, k: Tokens, i, some, whole):
        """`some` and `whole` of a row of tiles [k_blocks], for each view: by n."""
        if self.views is None:
            return some, whole
        edges, block = self.views.edges, self.views.block
        rows, columns = ranges(q.positions, grid.q_blocks), ranges(k.positions, grid.k_blocks)
        least = block(rows.low[i]) - block(columns.high)  # blocks that any two tokens are apart
        most = block(rows.high[i]) - block(columns.low)
        each = []
        for view in range(self.views.count):
            any_pair, all_pairs = some, whole
            if view > 0:
                any_pair = any_pair & (most >= edges[view - 1])
                all_pairs = all_pairs & (least >= edges[view - 1])
            if view < len(edges):
                any_pair = any_pair & (least < edges[view])
                all_pairs = all_pairs & (most < edges[view])
            each.append((any_pair, all_pairs))
        somes, wholes = zip(*each, strict=True)
        return jnp.concatenate(somes), jnp.concatenate(wholes)
