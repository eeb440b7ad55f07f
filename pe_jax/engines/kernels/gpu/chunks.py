"""Products in the place of q·k that depend on the tokens between, in the GPU kernels.

XLA computes the products of the tokens of one chunk, `near`, whose order matters; a tile within one
reads them, and stores their gradients. It also changes queries and keys, `left` and `right`, so
that a tile of two chunks is one product of matrices: of channels that fade from one chunk to the
other (`fades`), or of queries as each of the chunks before their own meets them (`paths`).

Letters are those of `engine`; N chunks.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.numerics.products import dot


def product(tile: Any) -> jax.Array:
    """The products of a tile's pairs."""

    def apart():
        owned, visited = map(tile.factors, tile.sides)
        return dot(_between(tile, owned), visited, 1)

    def near():
        products = tile.x.near[_of_near(tile)]
        return products.T if tile.loop.by_keys else products

    return _either(tile, near, apart)


def gradient(tile: Any, d_s: jax.Array, d_factors: Any, outs: Any) -> Any:
    """`d_factors`, the gradient of the owned factors, and a tile's part; None if it is not wanted.

    A tile within a chunk stores that of its own products, for queries, instead. Where queries have
    factors for each chunk, the last tile of a chunk stores theirs.
    """
    d_s = d_s * tile.plan.scale
    place, length = tile.slices["k"].start % tile.plan.chunk, tile.slices["k"].size

    def apart():
        if d_factors is None:
            return None
        visited = tile.factors(tile.sides[1])
        more = _between(tile, dot(d_s.astype(visited.dtype), visited, 0))
        if outs.left is None or len(outs.left.shape) == 2:
            return d_factors + more
        total = jnp.where(place == 0, 0, d_factors) + more

        def store():
            outs.left[tile.slices["q"], tile.chunk("k"), :] = total.astype(outs.left.dtype)

        jax.lax.cond(place + length == tile.plan.chunk, store, lambda: None)
        return total

    def near():
        if outs.near is not None:
            outs.near[_of_near(tile)] = d_s
        return d_factors

    return _either(tile, near, apart)


def _either(tile: Any, near: Any, apart: Any) -> Any:
    """What one of them returns, by whether the tile's tokens are of one chunk."""
    if tile.near is None:
        return jax.lax.cond(tile.chunk("q") == tile.chunk("k"), near, apart)
    return near() if tile.near else apart()


def _of_near(tile: Any) -> tuple:
    """Where `near` has the tile's pairs."""
    keys = tile.slices["k"]
    return tile.slices["q"], pl.ds(keys.start % tile.plan.chunk, keys.size)


def _between(tile: Any, x: jax.Array) -> jax.Array:
    """Channels of rows [owned, E] as they fade from the visited block, or to it."""
    if tile.x.ends is None:
        return x
    powers = tile.x.ends[0, tile.chunk("q"), :] - tile.x.ends[1, tile.chunk("k"), :]
    return (x * jnp.exp2(powers)[None]).astype(x.dtype)
