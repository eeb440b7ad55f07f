"""The past of one attention layer: what decoding a token at a time needs of it.

Keys are rotated when they are written, never when they are read. What else is kept follows from
what the scheme declares (see `empty`). Tokens come at contiguous positions (`positions=None`: the
token at row i stands at position i) or at any others; a single contiguous one takes the short way
of `pe_jax.engines.decode`.
B batch, S capacity, K key heads, H query heads, E width of keys, F width of values.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import positions as pos
from pe_jax.encodings.base import Dims, Encoding, Params
from pe_jax.engines import checks, decode
from pe_jax.engines.api import attend
from pe_jax.engines.dense import Rules
from pe_jax.validation import is_int, require


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """k [B, K, S, E] as rotated, v [B, K, S, F], positions [B, S], length []; see `empty`.

    The first `length` rows are filled; the token at row i is the i-th of its sequence. Heads lead:
    a row of scores then reads each head's keys in one piece (9 times as fast on CPU).
    """

    k: jax.Array
    v: jax.Array
    k_raw: jax.Array | None
    far: jax.Array | None
    state: jax.Array | None
    tables: dict[str, jax.Array]
    positions: jax.Array
    length: jax.Array

    @property
    def capacity(self) -> int:
        """How many tokens fit."""
        return self.k.shape[-2]


def empty(
    encoding: Encoding,
    batch: int,
    capacity: int,
    dims: Dims,
    dtype=jnp.float32,
    params: Params | None = None,
) -> Cache:
    """A cache without tokens, laid out as the scheme declares.

    * k_raw [B, K, S, E], keys as they were: if the scheme rotates keys and has relative queries;
    * far [B, H, S] float32, each key's relative-query term beyond the horizon: if the scheme has
      relative queries and its horizon ends within the capacity;
    * state [B, H, S, C] float32: if the scheme has one;
    * tables, by slot [H, n] or [H or 1, n, E] float32: distance slots, evaluated once from
      `params` for the n = horizon + 1 (without one, S) distances that occur. They do not follow
      parameters that change later. Without `params` there are none, and each token evaluates
      the slots anew: cheap for a lookup, dear for what projects a table (DeBERTa, Transformer-XL).

    Raises:
      ValueError: `capacity` is not a positive integer.
    """
    require(is_int(capacity, 1), "capacity", capacity, "pass an integer of at least 1")
    places = (batch, capacity) + (encoding.axes,) * (encoding.axes > 1)
    row = jax.ShapeDtypeStruct((batch, capacity, dims.kv_heads, dims.head_dim), dtype)

    def shapes(key, x):
        drawn = encoding.init(key, dims)
        rotated = encoding.rotate_k(drawn, x, jnp.zeros(places, jnp.int32))  # may widen a key
        return rotated, decode.tables(encoding, drawn, dims, capacity)

    key, found = jax.eval_shape(shapes, jax.random.key(0), row)
    queries = found.get("relative_queries")
    raw = encoding.overrides("relative_queries") and encoding.overrides("rotate_k")
    beyond = queries is not None and queries.shape[1] < capacity
    remembered = (batch, dims.heads, capacity, encoding.state_width)
    zeros = lambda width: jnp.zeros((batch, dims.kv_heads, capacity, width), dtype)  # noqa: E731
    return Cache(
        k=zeros(key.shape[-1]),
        v=zeros(dims.head_dim),
        k_raw=zeros(dims.head_dim) if raw else None,
        far=jnp.zeros((batch, dims.heads, capacity), jnp.float32) if beyond else None,
        state=jnp.zeros(remembered, jnp.float32) if encoding.overrides("state") else None,
        tables={} if params is None else decode.tables(encoding, params, dims, capacity),
        positions=jnp.zeros(places, jnp.float32 if encoding.real_positions else jnp.int32),
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
        want = (old.shape[0], count, old.shape[1], old.shape[3])
        if new.shape != want:
            raise ValueError(f"{name} has shape {new.shape}; this cache takes {want}")

    def write(old, new):
        return _write(old, jnp.swapaxes(new, 1, 2), cache.length, 2)

    fits = cache.length + count <= cache.capacity
    return dataclasses.replace(
        cache,
        k=write(cache.k, jnp.where(fits, k, jnp.nan)),
        v=write(cache.v, jnp.where(fits, v, jnp.nan)),
        k_raw=None if cache.k_raw is None else write(cache.k_raw, k_raw),
        positions=_write(cache.positions, positions, cache.length, 1),
        length=cache.length + count,
    )


def _write(old: jax.Array, new: jax.Array, start, axis: int) -> jax.Array:
    """Puts `new`, of the same batch or one for all, at rows `start` and on."""
    new = jnp.broadcast_to(new, (old.shape[0], *new.shape[1:])).astype(old.dtype)

    def put(old, new, start):
        return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis)

    def put_apart(old, new, start):
        # XLA for CPU fuses an update with each of its readers, for which it copies the cache over
        # and over; out of a loop, be it of one turn, nothing is fused.
        return jax.lax.fori_loop(start, start + 1, lambda i, old: put(old, new, i), old)

    return jax.lax.platform_dependent(old, new, start, cpu=put_apart, default=put)


def extend(
    cache: Cache,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions=None,
    *,
    x: jax.Array | None = None,
    encoding: Encoding,
    params: Params,
    dims: Dims,
    window: int | None = None,
    sinks: int = 0,
    embedded: bool = False,
    implementation: str | None = None,
) -> tuple[jax.Array, Cache]:
    """Appends T tokens and attends to the whole past: a prompt, a part of one, or one token.

    Args:
      cache: the past.
      q: [B, T, H, E], not rotated.
      k: [B, T, K, E], not rotated.
      v: [B, T, K, F].
      positions: integers [B or 1, T], where the new tokens stand; None: on from the cache's length,
        the tokens before standing at 0 … length - 1 (what is known to differ is refused).
        Constants, as for `attention`.
      x: [B, T, D], the layer's input, for schemes that read it.
      encoding: the scheme, and so on as for `attention`; one that depends on the length of the
        sequence as `encoding.at_length(total_length)`.
      params: its parameters.
      dims: the sizes.
      window: as for `attention`.
      sinks: as for `attention`.
      embedded: as for `attention`.
      implementation: as for `attention`; None also allows the short way of one contiguous token.

    Returns:
      Output [B, T, H, F], and the longer cache.

    Raises:
      ValueError: tokens that do not fit the cache or each other; what `attention` refuses of
        positions, parameters, x, a scheme that adds to the input, or one that needs a length.
    """
    if q.shape != (*k.shape[:2], dims.heads, dims.head_dim):
        raise ValueError(
            f"q {q.shape} and k {k.shape} do not fit: pass as many tokens of both, and q with"
            f" {dims.heads} heads of {dims.head_dim}"
        )
    checks.window(window, sinks)
    checks.embedded(encoding, embedded)
    params = checks.params(encoding, params, dims)
    start, alone = cache.length, positions is None and q.shape[1] == 1 and implementation is None
    short = alone and not encoding.overrides("rescore")
    positions = jax.lax.stop_gradient(_positions(cache, positions, q, encoding))
    encoding = checks.at_length(encoding, q.shape[1], {"positions": positions})
    cache = append(cache, encoding.rotate_k(params, k, positions), v, k, positions)
    held = cache.tables
    if not held and (short or cache.far is not None):
        held = decode.tables(encoding, params, dims, cache.capacity)
    if cache.far is not None:
        beyond = decode.far(held["relative_queries"], jnp.swapaxes(k, 1, 2), dims.heads)
        cache = dataclasses.replace(cache, far=_write(cache.far, beyond, start, 2))
    states: Any = None
    if cache.state is not None:
        checks.layer_input(encoding, x, q.shape[:2], dims)
        states, grown = _remember(cache.state, x, start, encoding, params)
        cache = dataclasses.replace(cache, state=grown)
    rotated = encoding.rotate_q(params, q, positions)
    rows = {
        "k": cache.k.astype(q.dtype),
        "v": cache.v.astype(q.dtype),
        "k_raw": (cache.k if cache.k_raw is None else cache.k_raw).astype(q.dtype),
    }
    if short:
        rules = Rules(encoding, dims, True, window, sinks=sinks)
        rows |= {"q": rotated[:, 0], "q_raw": q[:, 0]}
        rows |= {} if cache.far is None else {"far": cache.far}
        if cache.state is not None:
            rows |= {"q_state": states[:, 0], "k_state": cache.state}
        out = decode.attend(rules, params, rows, held, start)[:, None]
        return out.astype(q.dtype), cache
    # Rows not written yet are later than every query, so the causal mask hides them.
    out = attend(
        rotated,
        **{name: jnp.swapaxes(x, 1, 2) for name, x in rows.items()},
        encoding=encoding,
        params=params,
        dims=dims,
        q_raw=q,
        q_state=states,
        k_state=None if cache.state is None else jnp.swapaxes(cache.state, 1, 2),
        q_positions=jnp.broadcast_to(positions, (len(q), *positions.shape[1:])),
        k_positions=cache.positions,
        q_index=pos.contiguous(q.shape[1], start),
        k_index=pos.contiguous(cache.capacity),
        causal=True,
        window=window,
        sinks=sinks,
        implementation=implementation,
    )
    return out, cache


def _remember(held: jax.Array, x, start, encoding: Encoding, params: Params):
    """The states [B, T, H, C] of the new tokens, and those held with them from row `start` on."""
    last = jax.lax.dynamic_index_in_dim(held, jnp.maximum(start - 1, 0), 2, keepdims=False)
    states = encoding.state(params, x, jnp.where(start > 0, last, 0))
    return states, _write(held, jnp.swapaxes(states, 1, 2), start, 2)


def _positions(cache: Cache, positions, q: jax.Array, encoding: Encoding) -> jax.Array:
    """Checked positions of the new tokens: [B or 1, T], with a trailing [A] if axes > 1."""
    tail = (q.shape[1],) + (encoding.axes,) * (encoding.axes > 1)
    if positions is not None:
        positions = pos.as_positions(positions, real=encoding.real_positions)
        if positions.shape not in ((1, *tail), (q.shape[0], *tail)):
            allowed = f"{[1, *tail]} or {[q.shape[0], *tail]}"
            raise ValueError(f"positions has shape {list(positions.shape)}; pass {allowed}")
        return positions
    if encoding.axes > 1:
        name = type(encoding).__name__
        raise ValueError(f"{name} has {encoding.axes} axes: pass positions {[1, *tail]}")
    known, length = pos.concrete(cache.positions), pos.concrete(cache.length)
    if known is not None and length is not None:
        if (known[:, :length] != np.arange(int(length))).any():
            raise ValueError("the cache's positions are not 0, 1, 2, …: pass positions as before")
    return pos.contiguous(q.shape[1], cache.length)[None]
