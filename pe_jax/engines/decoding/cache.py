"""The past of one attention layer: what decoding a token at a time needs of it.

Keys are rotated when they are written, never when they are read. What else is kept follows from
what the scheme declares (see `empty`); of a layer with a window, the last tokens alone. Tokens come
at contiguous positions (`positions=None`: the i-th token stands at position i) or at any others; a
single contiguous one is computed by `one_token`.
B batch, S capacity, K key heads, H query heads, E width of keys, F width of values.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import positions as pos
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims, Encoding, Params, abstract_terms, require_dims
from pe_jax.encodings.terms import Side, Tokens, select
from pe_jax.engines import checks, dispatch, outside
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.decoding import one_token
from pe_jax.engines.decoding.ring_buffer import RingBuffer, ring_buffer
from pe_jax.engines.sharded.layout import CONTIGUOUS
from pe_jax.validation import is_int, require


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """k [B, K, S, E] and v [B, K, S, F] as rotated, positions [B, S], length []; see `empty`.

    The first `length` rows are filled; the token at row i is the i-th of its sequence, unless a
    `ring` says which it is. Heads lead: a row of scores then reads each head's keys in one piece
    (9 times as fast on CPU).
    """

    k: jax.Array
    v: jax.Array
    k_raw: jax.Array | None
    far: jax.Array | None
    states: tuple[Any, ...]
    tables: Any
    positions: jax.Array
    length: jax.Array
    ring: RingBuffer | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def capacity(self) -> int:
        """How many tokens it holds: those that fit, or the last ones that a ring keeps."""
        return self.k.shape[-2]


class Rows(NamedTuple):
    """What is kept of some tokens, heads first as in a cache; `states` of terms that read keys'."""

    k: Any
    v: Any
    k_raw: Any
    far: Any
    states: tuple[Any, ...]
    positions: Any


def empty(
    encoding: Encoding,
    batch: int,
    capacity: int,
    dims: Dims,
    dtype=jnp.float32,
    params: Params | None = None,
    *,
    window: int | None = None,
    sinks: int = 0,
) -> Cache:
    """A cache without tokens, laid out as the encoding's terms need it.

    With a `window`, and `sinks`, as `extend` is then given, it holds window + sinks tokens if that
    is less than the capacity, and any number may follow each other. All are kept where a scheme
    reads whole rows of scores (CoPE), or has tables of distances and there are sinks.

    * k_raw [B, K, S, E], keys before rotations: if keys are rotated and meet relative queries;
    * far [B, H, S] float32, each key's relative-query term past the horizon: if there are relative
      queries and their horizon ends within the capacity;
    * states, for each term [B, H, S, C] float32 if it reads the states of keys, [B, H, 1, C] if its
      state is a running sum that goes on, else None;
    * tables, for each term [H or 1, n, …] float32 if it depends on the distance: its values for the
      n = horizon + 1 (without one, S) distances that occur, evaluated once from `params`. They do
      not follow parameters that change later. Without `params` there are none, and each token
      evaluates the terms anew: cheap for a lookup, dear for what projects a table (DeBERTa,
      Transformer-XL).

    Raises:
      ValueError: `capacity` is not a positive integer; sizes or parameters that do not fit.
      TypeError: no encoding, no `Dims`.
    """
    encoding, window, sinks = checks.window(checks.encoding(encoding), window, sinks)
    require_dims(dims)
    encoding.check(dims)
    require(is_int(capacity, 1), "capacity", capacity, "pass an integer of at least 1")
    require(is_int(batch, 0), "batch", batch, "pass an integer of at least 0")
    named = getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)  # or a string
    floating = named in [jnp.dtype(known).name for known in checks.DTYPES]
    require(floating, "dtype", dtype, "pass jnp.float32, jnp.bfloat16 or jnp.float16")
    claims, terms = encoding.claims, abstract_terms(encoding, dims)
    ring = ring_buffer(terms, capacity, window, sinks)
    capacity = capacity if ring is None else ring.rows
    shape = (batch, capacity) + (claims.axes,) * (claims.axes > 1)
    relative = any(term.reads_raw == "k" for term in terms)
    rotated = any(rotation.k is not None for rotation in select(terms, kinds.Rotation))
    far = relative and one_token.distances(terms, capacity) < capacity

    tables = None
    if params is not None:  # positions of several axes are never contiguous: they have no tables
        params = checks.params(encoding, params, dims)
        own = encoding.terms(params, dims)
        tables = one_token.tables(own, capacity) if claims.axes == 1 else (None,) * len(own)

    def zeros(heads: int, width: int, dtype=dtype, rows: int = capacity) -> jax.Array:
        return jnp.zeros((batch, heads, rows, width), dtype)

    def state(term: Any):
        if term.reads_keys:
            return zeros(dims.heads, term.state.width // (1 + term.halved), jnp.float32)
        if term.state is not None and term.state.after is not None:
            return zeros(dims.heads, term.state.width, jnp.float32, 1)
        return None

    return Cache(
        k=zeros(dims.kv_heads, _key_width(terms, shape, dims)),
        v=zeros(dims.kv_heads, dims.head_dim),
        k_raw=zeros(dims.kv_heads, dims.head_dim) if relative and rotated else None,
        far=jnp.zeros((batch, dims.heads, capacity), jnp.float32) if far else None,
        states=tuple(map(state, terms)),
        tables=tables,
        positions=jnp.zeros(shape, jnp.float32 if claims.real_positions else jnp.int32),
        length=jnp.zeros((), jnp.int32),
        ring=ring,
    )


def _key_width(terms: tuple, shape: tuple[int, ...], dims: Dims) -> int:
    """How wide keys are once they are rotated."""

    def rotate(terms, x, k, positions):
        states = tuple(t.state and t.state(x, positions) for t in terms)
        return outside.rotate(terms, "k", k, positions, states)

    x = jax.ShapeDtypeStruct((*shape[:2], dims.width), jnp.float32)
    k = jax.ShapeDtypeStruct((*shape[:2], dims.kv_heads, dims.head_dim), jnp.float32)
    return jax.eval_shape(rotate, terms, x, k, jax.ShapeDtypeStruct(shape, jnp.int32)).shape[-1]


def append(cache: Cache, new: Rows) -> Cache:
    """Writes T more tokens.

    Raises:
      ValueError: they are known not to fit. Under a trace the count is unknown and the caller must
        see to it (`generate` does); what does not fit becomes NaN, never an overwrite.
    """
    count, length = new.k.shape[2], pos.concrete(cache.length)
    if cache.ring is None and length is not None and length + count > cache.capacity:
        raise ValueError(
            f"cache holds {length} of {cache.capacity} tokens and {count} more do not fit;"
            f" make it with capacity >= {length + count}"
        )
    if cache.ring is None and count > cache.capacity:
        raise ValueError(f"{count} tokens do not fit a cache with capacity {cache.capacity}")

    for name, rows, old in (("k", new.k, cache.k), ("v", new.v, cache.v)):
        want = (*old.shape[:2], count, old.shape[3])
        if rows.shape != want:
            shown, takes = ((b, t, h, e) for b, h, t, e in (rows.shape, want))
            raise ValueError(f"{name} has shape {shown}; this cache takes {takes}")

    def write(old, new, axis=2):
        if old is None or new is None:
            return old
        if cache.ring is None:
            return _write(old, new, cache.length, axis)
        if count == 1:
            return _write(old, new, cache.ring.row(cache.length), axis)
        return cache.ring.write(old, new, cache.length, axis)

    if cache.ring is None:
        fits = cache.length + count <= cache.capacity
        new = new._replace(k=jnp.where(fits, new.k, jnp.nan), v=jnp.where(fits, new.v, jnp.nan))
    return dataclasses.replace(
        cache,
        k=write(cache.k, new.k),
        v=write(cache.v, new.v),
        k_raw=write(cache.k_raw, new.k_raw),
        far=write(cache.far, new.far),
        states=tuple(map(write, cache.states, new.states)),
        positions=write(cache.positions, new.positions, 1),
        length=cache.length + count,
    )


def _write(old: jax.Array, new: jax.Array, start, axis: int) -> jax.Array:
    """Puts `new`, of the same batch or one for all, at rows `start` and on."""
    new = jnp.broadcast_to(new, (old.shape[0], *new.shape[1:])).astype(old.dtype)

    def put(old, new, start):
        return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis)

    def put_apart(old, new, start):
        # XLA for CPU fuses an update with each of its readers, for which it copies the cache over
        # and over: wrapped in a one-iteration loop to block fusion.
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
    terms: tuple[kinds.Term, ...] = (),
    window: int | None = None,
    sinks: int = 0,
    scale: float | None = None,
    logit_cap: float | None = None,
    embedded: bool = False,
    implementation: str | None = None,
) -> tuple[jax.Array, Cache]:
    """Appends T tokens and attends to the whole past: a prompt, a part of one, or one token.

    q [B, T, H, E], k [B, T, K, E] and v [B, T, K, F] are not rotated. `positions` [B or 1, T] say
    where the new tokens stand; None: on from the cache's length, the tokens before standing at
    0 … length - 1 (what is known to differ is refused). `terms` are of the kind `Sink`; others
    belong to an encoding. All else is as for `attention`, except that a scheme that depends on the
    length of the sequence is `encoding.at_length(total_length)`, and that `implementation=None`
    also allows `one_token` for one contiguous token.

    Returns:
      Output [B, T, H, F], and the longer cache.

    Raises:
      ValueError: tokens that do not fit the cache or each other; what `attention` refuses of
        positions, parameters, x, a scheme that adds to the input, or one that needs a length.
    """
    encoding, window, sinks = checks.window(checks.encoding(encoding), window, sinks)
    require_dims(dims)
    checks.arrays(q, k, v, batch="B")
    _check_layout(cache, encoding, dims)
    if cache.ring is not None:
        own = cache.ring.window, cache.ring.sinks
        fix = f"the cache keeps what {own[0]} and {own[1]} need; pass what it was made with"
        require((window, sinks) == own, "window, sinks", (window, sinks), fix)
    checks.dims(dims, q, k)
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"q {q.shape} and k {k.shape} do not fit: pass as many tokens of both")
    if not q.size:
        return jnp.zeros((*q.shape[:3], v.shape[-1]), q.dtype), cache
    checks.embedded(encoding, dims, embedded)
    params = checks.params(encoding, params, dims)
    name = checks.title(encoding)
    start, short = cache.length, positions is None and q.shape[1] == 1 and implementation is None
    positions = _positions(cache, positions, q, encoding)
    encoding = checks.at_length(encoding, q.shape[1], {"positions": positions})
    own, more = encoding.terms(params, dims), checks.terms(terms, dims)
    scale = checks.positive("scale", scale)
    logit_cap = checks.positive("logit_cap", logit_cap)
    kinds.check(own + more, scale, logit_cap)
    for term in more:
        ok = isinstance(term, kinds.Sink) and term.state is None
        require(ok, "terms", type(term).__name__, "a cache takes it as part of an encoding alone")
    checks.layer_input(own, name, x, q.shape[:2], q.shape[1], dims)

    states = _states(cache, own, x, positions)
    rotated = outside.rotate(own, "q", q, positions, states)
    terms, nothing = own + more, (None,) * len(more)
    short = short and not any(term.reads == "rows" for term in terms)
    tables: Any = cache.tables
    if tables is None and (short or cache.far is not None):
        tables = one_token.tables(own, cache.capacity)
    keys = outside.rotate(own, "k", k, positions, states)
    rotated_v = outside.rotate_values(own, v, positions)
    new = _rows(cache, own, tables, keys, k, rotated_v, states, positions, dims)
    before, cache = cache, append(_go_on(cache, own, states), new)

    read = kinds.reads_lse(terms)
    spec = AttentionSpec(dims, True, window, sinks, lse=read, scale=scale, logit_cap=logit_cap)
    rows, tokens = _in_sight(before, cache, new)
    call = _call(spec, terms, rows, tokens, q, rotated, states + nothing, positions, start)
    if short:
        ring = cache.ring is not None
        held = one_token.tables(own, cache.capacity) if tables is None else tables
        out, lse = one_token.attend(*call, cache.far, (*held, *nothing), start, ring)
    else:
        out, lse = dispatch.engine(implementation, CONTIGUOUS, call, name)(*call)
    out = _swap(outside.rescale(terms, call.q.states, out, lse)[0]).astype(q.dtype)
    return outside.rotate_output(own, out, positions), cache


def _in_sight(before: Cache, after: Cache, new: Rows) -> tuple[Rows, jax.Array]:
    """What is kept of all tokens that the new ones may see, and their numbers int32 [S].

    Rows that are not written yet are later than every query, so the causal mask hides them. Several
    tokens on a ring take the rows of each other: they see what was there before, and themselves.
    """
    if after.ring is None:
        return _kept(after), pos.contiguous(after.capacity)
    if new.k.shape[2] == 1:
        return _kept(after), after.ring.tokens(after.length, after.length)
    old = before.ring.tokens(before.length, after.length)  # pyright: ignore[reportOptionalMemberAccess]

    def join(old, new, axis=2):
        if old is None or new is None:
            return None
        new = jnp.broadcast_to(new, (len(old), *new.shape[1:]))
        return jnp.concatenate([old, new.astype(old.dtype)], axis)

    held = _kept(before)
    rows = Rows(
        k=join(held.k, new.k),
        v=join(held.v, new.v),
        k_raw=join(held.k_raw, new.k_raw),
        far=join(held.far, new.far),
        states=tuple(map(join, held.states, new.states)),
        positions=join(held.positions, new.positions, 1),
    )
    tokens = jnp.concatenate([old, pos.contiguous(new.k.shape[2], before.length)])
    return rows, tokens


def _kept(cache: Cache) -> Rows:
    """Of all tokens of a cache."""
    return Rows(cache.k, cache.v, cache.k_raw, cache.far, cache.states, cache.positions)


def _rows(cache: Cache, terms: tuple, tables: Any, keys, k, v, states, positions, dims) -> Rows:
    """What is kept of new tokens: `keys` as rotated, and what else the cache has."""
    kept = [
        _swap(state)[..., -old.shape[-1] :] if term.reads_keys else None
        for term, state, old in zip(terms, states, cache.states, strict=True)
    ]
    far = None
    if cache.far is not None:
        far = one_token.far(terms, tables, _swap(k), dims.heads)
    return Rows(_swap(keys), _swap(v), _swap(k), far, tuple(kept), positions)


def _check_layout(cache: Any, encoding: Encoding, dims: Dims) -> None:
    """Raises TypeError unless it is a cache, ValueError if its encoding or its sizes differ."""
    if not isinstance(cache, Cache):
        raise TypeError(f"cache is a {type(cache).__name__}; pass what pe_jax.cache.empty gives")
    want = _layout(encoding, cache.k.shape[0], cache.capacity, dims)
    fix = "pass the encoding and dims that pe_jax.cache.empty was given"
    for name, one in want.items():
        given = jax.tree.map(jnp.shape, getattr(cache, name))
        require(
            given == one, f"cache.{name}", given, f"{checks.title(encoding)} needs {one}; {fix}"
        )


@functools.lru_cache(256)
def _layout(encoding: Encoding, batch: int, capacity: int, dims: Dims) -> dict[str, Any]:
    """The shapes of the parts that differ from one encoding to another."""
    made = jax.eval_shape(lambda: empty(encoding, batch, capacity, dims))
    names = ("k", "k_raw", "far", "states", "positions")
    return {name: jax.tree.map(jnp.shape, getattr(made, name)) for name in names}


def _call(
    spec: AttentionSpec, terms: tuple, rows: Rows, tokens, q, rotated, states, positions, start
) -> dispatch.Call:
    """The last tokens, from number `start` on, against `rows`, as engines take them."""
    kept = rows.states + (None,) * (len(terms) - len(rows.states))
    of_keys = zip(terms, kept, strict=True)
    k_states = tuple(state if term.reads_keys else None for term, state in of_keys)
    k_raw = (rows.k if rows.k_raw is None else rows.k_raw).astype(q.dtype)
    q_raw, k_raw = outside.read_raw(terms, _swap(q), k_raw)
    positions = jnp.broadcast_to(positions, (len(q), *positions.shape[1:]))
    index = pos.contiguous(q.shape[1], start)[None]
    q_tokens = Tokens(positions.astype(rows.positions.dtype), index)
    k_tokens = Tokens(jax.lax.stop_gradient(rows.positions), tokens[None])
    q_side = Side(_swap(rotated), q_raw, jax.tree.map(_swap, states), q_tokens)
    k_side = Side(rows.k.astype(q.dtype), k_raw, k_states, k_tokens)
    return dispatch.Call(spec, terms, q_side, k_side, rows.v.astype(q.dtype))


def _swap(x: jax.Array) -> jax.Array:
    """Heads first if tokens were, and back."""
    return jnp.swapaxes(x, 1, 2)


def _states(cache: Cache, terms: tuple, x, positions) -> tuple:
    """The states [B or 1, T, H, C] of new tokens for each term; a running sum goes on."""
    states = []
    for term, old in zip(terms, cache.states, strict=True):
        if term.state is None:
            states.append(None)
            continue
        before = None
        if term.state.after is not None:
            last = cache.length - 1
            if cache.ring is not None and term.reads_keys:
                last = cache.ring.row(last)
            last = jnp.clip(last, 0, old.shape[2] - 1)
            before = jax.lax.dynamic_index_in_dim(old, last, 2, keepdims=False)
            before = jnp.where(cache.length > 0, before, 0)
        states.append(term.state(x, positions, before))
    return tuple(states)


def _go_on(cache: Cache, terms: tuple, states: tuple) -> Cache:
    """The cache with the last value of each running sum that no key is asked for."""
    kept = list(cache.states)
    for i, (term, old) in enumerate(zip(terms, cache.states, strict=True)):
        if old is not None and not term.reads_keys:
            kept[i] = _write(old, _swap(states[i])[:, :, -1:], 0, 2)
    return dataclasses.replace(cache, states=tuple(kept))


def _positions(cache: Cache, positions, q: jax.Array, encoding: Encoding) -> jax.Array:
    """Checked positions of the new tokens: [B or 1, T], with a trailing [A] if axes > 1."""
    tail = (q.shape[1],) + (encoding.claims.axes,) * (encoding.claims.axes > 1)
    if positions is not None:
        positions = checks.positions_of(encoding.claims, "positions", positions, q.shape[:2])
        return positions.reshape(-1, *tail)
    if encoding.claims.axes > 1:
        name = type(encoding).__name__
        raise ValueError(f"{name} has {encoding.claims.axes} axes: pass positions {[1, *tail]}")
    known, length = pos.concrete(cache.positions), pos.concrete(cache.length)
    if known is not None and length is not None:
        tokens = np.arange(known.shape[1])
        if cache.ring is not None:
            with jax.ensure_compile_time_eval():  # known, also where jit closes over the cache
                tokens = np.asarray(cache.ring.tokens(jnp.asarray(length), jnp.asarray(length)))
        if (known != tokens)[:, tokens < length].any():
            raise ValueError("the cache's positions are not 0, 1, 2, …: pass positions as before")
    return pos.contiguous(q.shape[1], cache.length)[None]
