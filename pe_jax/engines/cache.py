"""The past of one attention layer: what decoding a token at a time needs of it.

Keys are rotated when they are written, never when they are read; the raw ones are kept beside them
only where the scheme both rotates keys and looks at them unrotated (DeBERTa with RoPE).
B batch, S capacity, K key heads, E width of keys, F width of values.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax import positions as pos
from pe_jax.encodings.base import Dims, Encoding, Params, is_int, require
from pe_jax.engines.api import attend


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """k [B, S, K, E] as rotated, v [B, S, K, F], k_raw or None, positions [B, S], length [].

    The first `length` rows are filled; the token at row i is the i-th of its sequence.
    """

    k: jax.Array
    v: jax.Array
    k_raw: jax.Array | None
    positions: jax.Array
    length: jax.Array

    @property
    def capacity(self) -> int:
        """How many tokens fit."""
        return self.k.shape[-3]


def empty(encoding: Encoding, batch: int, capacity: int, dims: Dims, dtype=jnp.float32) -> Cache:
    """A cache without tokens.

    Raises:
      ValueError: `capacity` is not a positive integer.
    """
    require(is_int(capacity, 1), "capacity", capacity, "pass an integer of at least 1")
    row = (batch, capacity, dims.kv_heads, dims.head_dim)
    zeros = jnp.zeros(row, dtype)
    # rotate_k may widen a key: ask it
    shape = jax.eval_shape(
        lambda key, x: encoding.rotate_k(
            Params(encoding.init_shared(key, dims), encoding.init_layer(key, dims)),
            x,
            jnp.zeros((batch, capacity) + (encoding.axes,) * (encoding.axes > 1), jnp.int32),
        ),
        jax.random.key(0),
        zeros,
    )
    raw = encoding.overrides("rotate_k") and encoding.overrides("relative_queries")
    kind = jnp.float32 if encoding.real_positions else jnp.int32
    places = (batch, capacity) + (encoding.axes,) * (encoding.axes > 1)
    return Cache(
        k=jnp.zeros(shape.shape, dtype),
        v=zeros,
        k_raw=zeros if raw else None,
        positions=jnp.zeros(places, kind),
        length=jnp.zeros((), jnp.int32),
    )


def append(cache: Cache, k: jax.Array, v: jax.Array, k_raw: jax.Array, positions) -> Cache:
    """Writes T more tokens: k [B, T, K, E] as rotated, v, k_raw likewise, positions [B or 1, T].

    Raises:
      ValueError: they are known not to fit. Under a trace the count is unknown and the caller must
        see to it (`generate` does); what does not fit becomes NaN, never an overwrite.
    """
    count, length = k.shape[1], pos.concrete(cache.length)
    if length is not None and length + count > cache.capacity:
        raise ValueError(
            f"cache holds {length} of {cache.capacity} tokens and {count} more do not fit;"
            f" make it with capacity >= {length + count}"
        )
    if count > cache.capacity:
        raise ValueError(f"{count} tokens do not fit a cache with capacity {cache.capacity}")

    for name, new, old in (("k", k, cache.k), ("v", v, cache.v)):
        want = (old.shape[0], count, *old.shape[2:])
        if new.shape != want:
            raise ValueError(f"{name} has shape {new.shape}; this cache takes {want}")

    def write(old, new):
        new = jnp.broadcast_to(new, (old.shape[0], *new.shape[1:])).astype(old.dtype)
        start = (0, cache.length) + (0,) * (old.ndim - 2)
        return jax.lax.dynamic_update_slice(old, new, start)

    fits = cache.length + count <= cache.capacity
    return Cache(
        k=write(cache.k, jnp.where(fits, k, jnp.nan)),
        v=write(cache.v, jnp.where(fits, v, jnp.nan)),
        k_raw=None if cache.k_raw is None else write(cache.k_raw, k_raw),
        positions=write(cache.positions, positions),
        length=cache.length + count,
    )


def extend(
    cache: Cache,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions,
    *,
    encoding: Encoding,
    params: Params,
    dims: Dims,
    window: int | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, Cache]:
    """Appends T tokens and attends to the whole past: a prompt, a part of one, or one token.

    Args:
      cache: the past.
      q: [B, T, H, E], not rotated.
      k: [B, T, K, E], not rotated.
      v: [B, T, K, F].
      positions: integers [B or 1, T], where the new tokens stand.
      encoding: the scheme, and so on as for `attention`.
      params: its parameters.
      dims: the sizes.
      window: as for `attention`.
      implementation: as for `attention`.

    Returns:
      Output [B, T, H, F], and the longer cache.
    """
    if q.shape[:2] != k.shape[:2]:
        raise ValueError(f"q {q.shape} and k {k.shape} do not fit: pass as many tokens of both")
    start = cache.length
    positions = pos.as_positions(positions, real=encoding.real_positions)
    tail = (q.shape[1],) + (encoding.axes,) * (encoding.axes > 1)
    if positions.shape not in ((1, *tail), (q.shape[0], *tail)):
        allowed = f"{[1, *tail]} or {[q.shape[0], *tail]}"
        raise ValueError(f"positions has shape {list(positions.shape)}; pass {allowed}")
    rotated = encoding.rotate_k(params, k, positions)
    cache = append(cache, rotated, v, k, positions)
    rows = pos.contiguous(cache.capacity)
    batch = q.shape[0]
    # Rows not written yet are later than every query, so the causal mask hides them.
    out = attend(
        encoding.rotate_q(params, q, positions),
        cache.k.astype(q.dtype),
        cache.v.astype(q.dtype),
        encoding=encoding,
        params=params,
        dims=dims,
        q_raw=q,
        k_raw=(cache.k if cache.k_raw is None else cache.k_raw).astype(q.dtype),
        q_positions=jnp.broadcast_to(positions, (batch, *positions.shape[1:])),
        k_positions=cache.positions,
        q_index=pos.contiguous(q.shape[1], start),
        k_index=rows,
        causal=True,
        window=window,
        implementation=implementation,
    )
    return out, cache
