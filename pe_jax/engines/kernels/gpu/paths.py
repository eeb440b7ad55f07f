"""Products of queries as the tokens between map them, in the GPU kernels: PaTH.

    s_ij = q_iᵀ H_i … H_{j+1} k_j

As in tiles (`PathTiles`), each query is mapped back to the first token of its chunk, and each key
on to the last of its own. A chunk of keys then meets the queries of every later one as the maps of
all chunks in between leave them: N vectors of each, one product of matrices in their dtype. With
chunks of about √(T·E) tokens these are as many numbers as the products within chunks.

Letters are those of `engine`; N chunks of c tokens.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.encodings.terms import PathProduct, Side
from pe_jax.engines.kernels import common
from pe_jax.numerics.arrays import varying_like
from pe_jax.numerics.products import einsum

PART = 61  # tokens of a sample's last chunk
MOST = 2**29  # numbers of all heads, within and between chunks: 2 GiB


def chunk_length(tokens: int, width: int, longest: int) -> int:
    """Tokens of a chunk: a power of two, no less than the longest block."""
    balanced = pl.next_power_of_2(math.isqrt(tokens * width - 1) + 1)
    return max(longest, min(balanced, pl.next_power_of_2(tokens)))


def numbers(q: Side) -> int:
    """How many numbers all heads have, within and between chunks."""
    batch, heads, tokens, width = q.x.shape
    chunk, width = chunk_length(tokens, width, 1), max(16, pl.next_power_of_2(width))
    return batch * heads * tokens * (chunk + pl.cdiv(tokens, chunk) * width)


def sample_length(q: Side, longest: int) -> int:
    """Number of tokens for two chunks and a part of one, the fewest for which a map passes one."""
    chunk, width = longest, q.x.shape[3]
    while chunk_length(2 * chunk + PART, width, longest) > chunk:
        chunk *= 2
    return 2 * chunk + PART


def prepare(term: PathProduct, q: Side, k: Side, state: jax.Array, chunk: int) -> dict:
    """What kernels read, by the names of `Arrays`, of q and k and the maps of the same tokens.

    Padded to whole chunks, whose maps are the identity. Maps are multiplied in float32.
    """

    def padded(x, axis=2, **how):
        return None if x is None else common.pad(x, axis, chunk, **how)

    def side(x):
        tokens = x.tokens._replace(segments=padded(x.tokens.segments, 1, mode="edge"))
        return x._replace(x=padded(x.x.astype(jnp.float32)), tokens=tokens)

    tiles = term.in_tiles(None)
    states = padded(state.astype(jnp.float32)), None
    (queries, near), (keys, maps) = tiles.tile_states(side(q), side(k), states, chunk)
    left = _between(queries, maps, chunk, q.x.dtype)
    return {"left": left, "right": keys.astype(k.x.dtype), "near": near}


def _between(queries: jax.Array, maps: jax.Array, chunk: int, dtype: Any) -> jax.Array:
    """Queries [B, H, T, E] as each chunk meets them: [B, H, T, N, E], 0 up to its own queries.

    `maps` [B, H, N, E·E] are those of each chunk, transposed.
    """
    batch, heads, tokens, width = queries.shape
    maps = jnp.moveaxis(maps.reshape(batch, heads, -1, width, width), 2, 0)
    places, unit = jnp.arange(len(maps), dtype=jnp.int32), jnp.eye(width, dtype=jnp.float32)

    def step(passed, of_chunk):
        """The product of the maps between this chunk and each later one."""
        place, own = of_chunk
        later = (places > place)[:, None, None]
        met = jnp.where(later, passed, 0).astype(dtype)
        return jnp.where(later, einsum("bhnde,bhfe->bhndf", passed, own), passed), met

    start = jnp.broadcast_to(unit, (batch, heads, len(maps), width, width))
    _, passed = jax.lax.scan(step, varying_like(start, maps), (places, maps), reverse=True)
    rows = queries.reshape(batch, heads, -1, chunk, width).astype(dtype)
    met = einsum("bhrte,nbhref->bhrtnf", rows, passed)
    return met.reshape(batch, heads, tokens, len(maps), width)
