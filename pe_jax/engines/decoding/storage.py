"""The cache of one attention layer, and how it is edited.

B batch, S capacity, T new tokens, K key heads, H query heads, E width of keys, F width of values.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import positions as pos
from pe_jax.engines import checks
from pe_jax.engines.decoding.ring_buffer import RingBuffer
from pe_jax.numerics.arrays import write_rows
from pe_jax.numerics.position_arrays import as_positions, concrete
from pe_jax.validation import require


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """k [B, K, S, E] and v [B, K, S, F] as rotated, positions [B, S], length [B]; see `empty`.

    The batch leads in every array, so that `jax.tree.map(lambda x: x[rows], cache)` takes rows, and
    others' beam searches, `vmap` and meshes divide a cache as they divide activations.

    The first `length` rows of S are filled, as many for each row of the batch: those that are
    shorter have padding. Row i holds the i-th token of its sequence. Exceptions: a `ring` says
    which token each row holds, and `segments` [B, S], kept once `extend` was given any, say which
    rows are padding. `made_for` is the encoding, as another rotates keys otherwise. Heads come
    before tokens: a row of scores then reads each head's keys in one piece (9 times as fast on
    CPU).
    """

    k: jax.Array
    v: jax.Array
    k_raw: jax.Array | None
    beyond: jax.Array | None
    states: tuple[Any, ...]
    tables: Any
    positions: jax.Array
    length: jax.Array
    segments: jax.Array | None = None
    made_for: str = dataclasses.field(default="", metadata={"static": True})
    ring: RingBuffer | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def capacity(self) -> int:
        """How many tokens it can hold; in a ring, how many it keeps."""
        return self.k.shape[-2]

    @property
    def start(self) -> Any:
        """The index of the next token, int32 []: the length of the longest row."""
        known = concrete(self.length)
        return self.length.max(initial=0) if known is None else np.int32(known.max(initial=0))

    def known_length(self) -> int | None:
        """The length, if it is known.

        Raises:
          ValueError: it is not the same in all rows.
        """
        lengths = concrete(self.length)
        if lengths is None or not lengths.size:
            return None if lengths is None else 0
        if lengths.min() < lengths.max():
            fix = "take back tokens of some rows by pe_jax.cache.truncate, which pads them"
            raise ValueError(f"cache.length is {lengths.tolist()}, not one length: {fix}")
        return int(lengths[0])


class RecurrentCache(NamedTuple):
    """What a recurrent layer keeps of all tokens so far; the batch leads, as in a `Cache`.

    Attributes:
      state: float32 [B, H, E, F].
      inputs: of its short convolution, for the document's last n - 1 tokens: [B, n - 1, 3, H·E].
      segment: id of the last token's document, int32 [B]; 0 before the first token.
    """

    state: jax.Array
    inputs: jax.Array
    segment: jax.Array


jax.export.register_namedtuple_serialization(
    RecurrentCache, serialized_name="pe_jax.RecurrentCache"
)


def _static(made_for: str, ring: list[int] | None) -> tuple[str, RingBuffer | None]:
    return made_for, RingBuffer(*ring) if ring else None


jax.export.register_pytree_node_serialization(
    Cache,
    serialized_name="pe_jax.Cache",
    serialize_auxdata=lambda static: json.dumps(static).encode(),
    deserialize_auxdata=lambda text: _static(*json.loads(text)),
)


class Indices(NamedTuple):
    """Indices of tokens in row and segment, without padding: int32 [B, S] of all, or [B, T]."""

    segments: jax.Array  # ids; negative: padding, or not filled yet
    index: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    rank: jax.Array  # in the segment


class Rows(NamedTuple):
    """The arrays of some tokens, heads first as in a cache; `states` of terms that read keys'."""

    k: Any
    v: Any
    k_raw: Any
    beyond: Any
    states: tuple[Any, ...]
    positions: Any


def append(cache: Cache, new: Rows) -> Cache:
    """Writes T more tokens.

    Raises:
      ValueError: they are known not to fit. Under a trace the count is unknown and the caller must
        check it (`generate` does); tokens that do not fit give NaN, never a silent overwrite.
    """
    count = new.k.shape[2]
    check_fit(cache, count)
    for name, rows, old in (("k", new.k, cache.k), ("v", new.v, cache.v)):
        want = (*old.shape[:2], count, old.shape[3])
        if rows.shape != want:
            actual, expected = ((b, t, h, e) for b, h, t, e in (rows.shape, want))
            raise ValueError(f"{name} has shape {actual}; this cache takes {expected}")

    written, length = _write(kept(cache), new, cache.length, cache.ring)
    return dataclasses.replace(cache, **written._asdict(), length=length)


def check_fit(cache: Cache, count: int) -> None:
    """Raises ValueError if as many more tokens are known not to fit."""
    length = cache.known_length()
    if cache.ring is None and length is not None and length + count > cache.capacity:
        raise ValueError(
            f"cache holds {length} of {cache.capacity} tokens and {count} more do not fit;"
            f" make it with capacity >= {length + count}"
        )
    if cache.ring is None and count > cache.capacity:
        raise ValueError(f"{count} tokens do not fit a cache with capacity {cache.capacity}")


@functools.partial(jax.jit, static_argnames="ring", inline=True)  # outside of jit one program
def _write(
    old: Rows, new: Rows, length: jax.Array, ring: RingBuffer | None
) -> tuple[Rows, jax.Array]:
    """The rows with the new tokens, NaN where they do not fit, and how many there are then."""
    count, capacity, start = new.k.shape[2], old.k.shape[2], length.max(initial=0)

    def write(old, new, axis):
        if old.shape[axis] < capacity:  # a running sum, of which the last value goes on
            return write_rows(old, new, 0, axis)
        if ring is not None and count > 1:
            return ring.write(old, new, start, axis)
        return write_rows(old, new, start if ring is None else ring.row(start), axis)

    fits = length == start  # in all rows as many
    fits = (fits if ring is not None else fits & (start + count <= capacity))[:, None, None, None]
    new = new._replace(k=jnp.where(fits, new.k, jnp.nan), v=jnp.where(fits, new.v, jnp.nan))
    return combine(write, old, new), length + count


def combine(f: Callable, old: Rows, new: Rows) -> Rows:
    """f(old, new, axis of tokens) of each array that both have; others stay the old ones."""

    def of_array(old, new, axis=2):
        return old if old is None or new is None else f(old, new, axis)

    *arrays, states, positions = zip(old, new, strict=True)
    combined: list[Any] = [of_array(*pair) for pair in arrays]
    return Rows._make([*combined, tuple(map(of_array, *states)), of_array(*positions, axis=1)])


def with_segments(cache: Any) -> Any:
    """The cache with a segment id for each row, 0 so far, as `extend(…, segments=)` keeps them.

    Raises:
      ValueError: the cache keeps only the last tokens of a window, where padding would count.
    """
    if isinstance(cache, RecurrentCache):
        return cache
    if cache.ring is not None:
        raise ValueError(
            "segments: this cache keeps the last tokens of a window, and padding would take their"
            " place; make it without window= and sinks=, which extend then takes"
        )
    if cache.segments is not None:
        return cache
    rows = jnp.zeros((cache.k.shape[0], cache.capacity), jnp.int32)
    return dataclasses.replace(cache, segments=rows)


def add_segments(cache: Cache, segments: Any, count: int) -> tuple[Cache, Indices, Indices]:
    """The cache with the ids of the new tokens, the indices of all its tokens, and of the new."""
    cache = with_segments(cache)
    ids: Any = cache.segments
    row, start = jnp.arange(cache.capacity, dtype=jnp.int32), cache.start
    if segments is None:
        last = jnp.where((row < start)[None] & (ids >= 0), row[None], -1).max(1, keepdims=True)
        last = jnp.where(last < 0, 0, jnp.take_along_axis(ids, jnp.maximum(last, 0), 1))
        new = jnp.broadcast_to(last, (len(ids), count))
    else:
        new = as_positions(segments, name="segments")
        checks.shape("segments", new, (len(ids), count))
    ids = write_rows(ids, new, start, 1)
    cache = dataclasses.replace(cache, segments=ids)

    ids = jnp.where(row < start + count, ids, -1)
    is_token = ids >= 0
    index = jnp.cumsum(is_token, axis=1, dtype=jnp.int32) - 1
    filled = jax.lax.cummax(jnp.where(is_token, row, -1), axis=1)
    before = jnp.pad(filled[:, :-1], ((0, 0), (1, 0)), constant_values=-1)  # the last token's row
    goes_on = (before >= 0) & (jnp.take_along_axis(ids, jnp.maximum(before, 0), 1) == ids)
    rank = index - jax.lax.cummax(jnp.where(is_token & ~goes_on, index, 0), axis=1)
    of_cache = Indices(ids, index, jnp.where(is_token, rank, 0))
    new = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, count, 1), of_cache)
    return cache, of_cache, new


def next_positions(cache: Cache, count: int, segments: Any = None) -> jax.Array:
    """The default positions of the next `count` tokens: int32 [B or 1, T].

    They go on from the cache's length; with `segments`, as in `extend`, within their segment.
    """
    require_cache(cache)
    if segments is None and cache.segments is None:
        return pos.contiguous(count, cache.start)[None]
    return add_segments(cache, segments, count)[2].rank


def truncate(cache: Cache, length) -> Cache:
    """The cache as it was after its first `length` tokens: rejected drafts are taken back.

    Args:
      cache: as `extend` gives it.
      length: integers [] or [B] from 0 to the cache's length, known or not. Rows that keep less
        than others (unknown ones may) get padding (`segments`) in place of what they lose. After an
        unknown length that is out of range `extend` gives NaN, as for a cache that is full.

    Raises:
      ValueError: a known length that is out of range; data that is gone: rows of a window that
        were written over (or may have been, under jit), or a running sum that keeps only its last
        value (selective RoPE).
    """
    if isinstance(cache, RecurrentCache):
        raise ValueError("truncate: a recurrent layer keeps only its last state; decode anew")
    require_cache(cache)
    length, batch = as_positions(length, name="length"), len(cache.length)
    fits = length.shape in ((), (batch,))
    require(fits, "length", length.shape, f"pass one integer, or one for each of {batch} rows")
    now, then = cache.known_length(), concrete(length)
    if then is not None and then.size:
        fits = then.min() >= 0 and (now is None or then.max() <= now)
        known = then.tolist()
        require(bool(fits), "length", known, f"the cache has {now} tokens: pass 0 to {now}")
    kept = [x for x in jax.tree.leaves(cache.states) if x.ndim > 1]
    if any(x.shape[2] < cache.capacity for x in kept):
        raise ValueError(
            "truncate: this scheme keeps the last key or value of its running sum only"
        )
    if cache.ring is not None and (now is None or then is None or now > cache.ring.window):
        same = now is not None and then is not None and (then == now).all()
        fix = "make it without window=, which extend then takes"
        require(bool(same), "truncate", length, f"a window's rows were written over; {fix}")
    lengths = jnp.broadcast_to(jnp.array(length, jnp.int32), (batch,))  # copied: it may be donated
    if now is None or then is None:  # `extend` gives NaN after one that is out of range
        fits = (lengths >= 0) & (lengths <= cache.length)
        lengths = jnp.where(fits, lengths, cache.capacity + 1)
    stays = lengths == cache.length
    if length.ndim and cache.ring is None and (then is None or (then != then.max(initial=0)).any()):
        cache, lengths = _pad(cache, lengths), jnp.full_like(lengths, lengths.max(initial=0))

    def forget(x):  # see `Term.empty`
        return x if x.ndim > 1 else jnp.where(stays, x, -1)

    states = jax.tree.map(forget, cache.states)
    return dataclasses.replace(cache, states=states, length=lengths)


def _pad(cache: Cache, lengths: jax.Array) -> Cache:
    """The cache with padding after the first `lengths` [B] tokens of each row."""
    cache, row = with_segments(cache), jnp.arange(cache.capacity)
    ids: Any = cache.segments
    segments = jnp.where(row >= lengths[:, None], -1, ids)

    def go_on(x):  # a running sum goes on from the last token
        last = jnp.minimum(row, jnp.maximum(lengths[:, None] - 1, 0))[:, None, :, None]
        return x if x.ndim == 1 else jnp.take_along_axis(x, last, 2)

    states = jax.tree.map(go_on, cache.states)
    return dataclasses.replace(cache, segments=segments, states=states)


def take(cache: Any, rows) -> Any:
    """The cache of some rows of its batch, in any order, also several times: beams.

    Args:
      cache: as `extend` gives it.
      rows: integers [N], each of a row of the batch.

    Raises:
      ValueError: known rows that the batch does not have.
      TypeError: rows that are not integers.
    """
    if not isinstance(cache, RecurrentCache):
        require_cache(cache)
    rows, batch = as_positions(rows, name="rows"), len(jax.tree.leaves(cache)[0])
    require(rows.ndim == 1, "rows", rows.shape, "pass integers [N]")
    known = concrete(rows)
    if known is not None and known.size:
        fits = known.min() >= 0 and known.max() < batch
        require(bool(fits), "rows", known.tolist(), f"the cache has rows 0 … {batch - 1}")
    return jax.tree.map(lambda x: jnp.take(x, rows, axis=0), cache)


def require_cache(cache: Any) -> None:
    """Raises TypeError unless it is a cache."""
    if not isinstance(cache, Cache):
        raise TypeError(f"cache is a {type(cache).__name__}; pass what pe_jax.cache.empty gives")


def kept(cache: Cache) -> Rows:
    """The arrays of all tokens of a cache."""
    return Rows(cache.k, cache.v, cache.k_raw, cache.beyond, cache.states, cache.positions)


def in_sight(before: Cache, after: Cache, new: Rows) -> tuple[Rows, jax.Array]:
    """The rows of all tokens that the new ones may see, and their numbers int32 [S].

    Rows that are not written yet are later than every query, so the causal mask hides them. Several
    tokens on a ring may take rows that others of them see: they see the rows before, and the new.
    """
    if after.ring is None:
        return kept(after), pos.contiguous(after.capacity)
    if new.k.shape[2] == 1:
        return kept(after), after.ring.tokens(after.start, after.start)
    old = before.ring.tokens(before.start, after.start)  # pyright: ignore[reportOptionalMemberAccess]

    def join(old, new, axis):
        new = jnp.broadcast_to(new, (len(old), *new.shape[1:]))
        return jnp.concatenate([old, new.astype(old.dtype)], axis)

    tokens = jnp.concatenate([old, pos.contiguous(new.k.shape[2], before.start)])
    return combine(join, kept(before), new), tokens
