"""Attention of new tokens to all before them, with a cache: `empty` makes it, `extend` extends it.

Keys are rotated when they are written, never when they are read. What else the cache keeps follows
from what the scheme declares (see `empty`); a layer with a window keeps only its last tokens.
Tokens come at contiguous positions (`positions=None`: the i-th token is at position i) or at any
others; a single contiguous one is computed by `one_token`. `storage` has the arrays and their
edits.

B batch, S capacity, K key heads, H query heads, E width of keys, F width of values.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pe_jax import positions as pos
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims, Encoding, Params, abstract_terms, require_dims
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines import checks, dispatch, encoding_checks, pipeline, reference
from pe_jax.engines.attention_spec import AttentionSpec, Call
from pe_jax.engines.decoding import one_token
from pe_jax.engines.decoding.ring_buffer import ring_buffer
from pe_jax.engines.decoding.storage import (
    Cache,
    RecurrentCache,
    Rows,
    add_segments,
    append,
    check_fit,
    in_sight,
    next_positions,
    require_cache,
    take,
    truncate,
    with_segments,
)
from pe_jax.engines.sharded import axes
from pe_jax.engines.sharded.axes import step_under_auto_axes
from pe_jax.engines.sharded.layout import CONTIGUOUS
from pe_jax.numerics.position_arrays import check_exact, concrete
from pe_jax.validation import is_int, python_ints, refuse, require

__all__ = ["Cache", "RecurrentCache", "append", "empty", "extend", "next_positions"]
__all__ += ["take", "truncate", "with_segments"]


@python_ints
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

    With a `window` and `sinks` (pass the same to `extend`) it holds window + sinks tokens if that
    is less than the capacity, and any number of tokens may follow. All are kept where a scheme
    reads whole rows of scores (CoPE), or has tables of distances and there are sinks.

    * k_raw [B, K, S, E], keys before rotations: if keys are rotated and meet relative queries;
    * beyond [B, H, S] float32, each key's relative-query term beyond the horizon: if there are
      relative queries and their horizon ends within the capacity;
    * states, for each term what it keeps (`Term.empty`): [B, H, S, C] float32 if it reads the
      states of keys, [B, H, 1, C] if its state is a running sum that goes on, else mostly None;
    * tables, for each term [B, H or 1, n, …] float32 if it depends on the distance: its values for
      the n = horizon + 1 (without one, S) distances that occur, evaluated once from `params`, the
      same for each row. They do not follow parameters that change later. Without `params` there are
      none, and each token evaluates the terms anew: cheap for a lookup, costly for a scheme that
      projects a table (DeBERTa, Transformer-XL);
    * positions, int32 until `extend` is given float32 ones: then float32 (in a scan, whose carry
      may not change, extend it once before).

    Raises:
      ValueError: `capacity` is not a positive integer, or more than the encoding is set for; sizes
        or parameters that do not fit.
      TypeError: `encoding` is not an encoding, or `dims` not a `Dims`.
    """
    layer = encoding_checks.layer(encoding, window, sinks)
    encoding, window, sinks = layer.encoding, layer.span, layer.sinks
    require_dims(dims)
    encoding.check(dims)
    require(is_int(capacity, 1), "capacity", capacity, "pass an integer of at least 1")
    valid = encoding.valid_length()
    title = encoding_checks.title(encoding)
    fix = f"{title} is set for {valid} tokens; pass encoding.at_length({capacity})"
    require(not valid or capacity <= valid, "capacity", capacity, fix)
    require(is_int(batch, 0), "batch", batch, "pass an integer of at least 0")
    dtype_name = getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)  # or a string
    floating = dtype_name in [allowed.name for allowed in checks.DTYPES]
    require(floating, "dtype", dtype, "pass jnp.float32, jnp.bfloat16 or jnp.float16")
    if encoding.valid_length() == 0:  # the layout is that of any length
        encoding = encoding.at_length(capacity)
    claims, terms = encoding.claims, abstract_terms(encoding, dims)
    ring = ring_buffer(terms, capacity, window, sinks)
    capacity = capacity if ring is None else ring.rows
    shape = (batch, capacity) + (claims.axes,) * (claims.axes > 1)
    relative = kinds.select(terms, kinds.RelativeQueries)
    rotated = any(t.k is not None for t in kinds.select(terms, kinds.Rotation))
    beyond = relative and one_token.distances(terms, capacity) < capacity

    tables = None
    if params is not None:  # positions of several axes are never contiguous: they have no tables
        params = encoding_checks.params(encoding, params, dims)

        def make_tables(params):
            made = one_token.tables(encoding.terms(params, dims), capacity)
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape)), made)

        tables = (None,) * len(terms)
        if claims.axes == 1:
            tables = axes.call(make_tables, PartitionSpec(), params)

    def zeros(width: int) -> jax.Array:
        return jnp.zeros((batch, dims.kv_heads, capacity, width), dtype)

    width = _key_width(terms, shape, dims)
    return Cache(
        k=zeros(width),
        v=zeros(dims.head_dim),
        k_raw=zeros(dims.head_dim) if relative and rotated else None,
        beyond=jnp.zeros((batch, dims.heads, capacity), jnp.float32) if beyond else None,
        states=tuple(term.empty(batch, capacity, width, dims) for term in terms),
        tables=tables,
        positions=jnp.zeros(shape, jnp.int32),
        length=jnp.zeros(batch, jnp.int32),
        made_for=_made_for(encoding, capacity),
        ring=ring,
    )


def _key_width(terms: tuple, shape: tuple[int, ...], dims: Dims) -> int:
    """The width of rotated keys."""

    def rotate(terms, x, k, positions):
        states = tuple(t.state and t.state(x, positions) for t in terms)
        return pipeline.rotate(terms, "k", k, positions, states)

    x = jax.ShapeDtypeStruct((*shape[:2], dims.width), jnp.float32)
    k = jax.ShapeDtypeStruct((*shape[:2], dims.kv_heads, dims.head_dim), jnp.float32)
    return jax.eval_shape(rotate, terms, x, k, jax.ShapeDtypeStruct(shape, jnp.int32)).shape[-1]


@step_under_auto_axes
def extend(
    cache: Cache,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions=None,
    *,
    x: jax.Array | None = None,
    encoding: Encoding | str,
    params: Params | None = None,
    dims: Dims | None = None,
    terms: tuple[kinds.Term, ...] = (),
    segments=None,
    mask: Any = None,
    causal: bool | None = None,
    window: int | None = None,
    sinks: int = 0,
    scale: Any = None,
    logit_cap: Any = None,
    embedded: bool = False,
    implementation: str | None = None,
) -> tuple[jax.Array, Cache]:
    """Appends T tokens and attends to the whole past: a prompt, a part of one, or one token.

    q [B, T, H, E], k [B, T, K, E] and v [B, T, K, F] are not rotated. `positions` [B or 1, T] are
    those of the new tokens; None: from the cache's length on, where the tokens before are at
    0 … length - 1 (positions known to differ are refused). `terms` are of the kind `Sink`; others
    belong to an encoding.

    `segments` [B, T] are ids as in `attention`: a token sees its own segment, a negative id is
    padding, before or after the tokens of a row. Once given they are kept; None then goes on with
    that of the row's last token. Padding is skipped: positions=None are then positions within the
    segment, and windows and masks count the tokens of a row. Tokens of a segment are adjacent but
    for padding. A `mask` is a `pe_jax.Mask`, or booleans that broadcast to [B, H, T, S], for
    all rows of the cache; with causal=False the T tokens see each other and all before them.

    All else is as for `attention`, except that a scheme that depends on the length of the sequence
    is `encoding.at_length(total_length)`, and that `implementation=None` also allows `one_token`
    for one contiguous token.

    Returns:
      Output [B, T, H, F], and the longer cache.

    Raises:
      ValueError: tokens that do not fit the cache or each other; positions, parameters, x, a scheme
        that adds to the input or one that needs a length, as `attention` refuses them. Under a
        trace a token beyond the length that was set gives NaN.
    """
    layer = encoding_checks.layer(encoding, window, sinks)
    if dims is not None:
        require_dims(dims)
    sizes = checks.sizes(q, k, v, batch="B")
    given, dims = dims, checks.dims(None, sizes, x) if dims is None else dims
    _check_layout(cache, layer.encoding, dims)
    if cache.ring is not None and (layer.span, layer.sinks) != cache.ring:
        need = "the cache keeps what {} and {} need".format(*cache.ring)
        refuse("window, sinks", (layer.span, layer.sinks), f"{need}; pass what it was made with")
    checks.dims(given, sizes)
    if sizes.queries != sizes.keys:
        raise ValueError(f"q {q.shape} and k {k.shape} do not fit: pass the same number of tokens")
    result = jax.ShapeDtypeStruct((*q.shape[:3], sizes.value_width), q.dtype)
    if not (sizes.rows and sizes.queries):
        return jnp.zeros(result.shape, q.dtype), cache
    start, count, indices = cache.start, sizes.queries, None
    step = _most_at_once(layer.encoding, cache.capacity, dims)
    if step is not None and count > step and implementation is None and mask is None:
        check_fit(cache, count)
        options = {"encoding": layer, "params": params, "dims": dims, "terms": terms}
        options |= {"causal": causal, "scale": scale, "logit_cap": logit_cap, "embedded": embedded}
        return _in_parts(cache, step, (q, k, v, x, positions, segments), **options)
    single = positions is None and count == 1 and implementation is None
    if segments is not None or cache.segments is not None:
        cache, *indices = add_segments(cache, segments, count)
        ids = indices[1].segments
        q, k, v, x = pipeline.hide_padding(ids, ids, None, q, k, v, x)
    positions = _positions(cache, positions, indices, sizes, layer.encoding)
    if cache.positions.dtype != positions.dtype:  # integers stay so unless floats are among them
        for known in (cache.positions, positions):
            check_exact(known)
        positions = positions.astype(jnp.float32)
        cache = dataclasses.replace(cache, positions=cache.positions.astype(jnp.float32))
    length, added = cache.known_length(), terms
    encoding, name, spec, terms, x = pipeline.prepare(
        layer,
        sizes,
        dims,
        params,
        positions={"positions": positions},
        segments=None,
        terms=terms,
        x=x,
        embedded=embedded,
        causal=True if causal is None and layer.claims.axes > 1 else causal,
        mask=mask,
        tokens=count + (length or 0),  # all, if that is known
        scale=scale,
        logit_cap=logit_cap,
    )
    is_array = mask is not None and not isinstance(mask, kinds.Mask)
    if is_array and any(term.offsets_keys for term in terms):
        refuse("mask", mask, f"{name} must know which tokens are padding: pass segments= instead")
    for term in added:
        if not isinstance(term, kinds.Sink) or term.state is not None:
            fix = "a cache takes it as part of an encoding alone"
            refuse("terms", type(term).__name__, fix)

    # Tables and what is kept are those of the encoding's terms, which come first.
    own, none = terms[: len(cache.states)], (None,) * (len(terms) - len(cache.states))
    states = _states(cache, own, x, positions, indices) + none
    k, offsets = _offset_keys(cache, own, k, indices)
    new_q, new_k, new_v = pipeline.rotated(terms, q, k, v, [positions] * 2, [states] * 2)
    single = single and indices is None and mask is None and layer.chunk is None
    missing = cache.tables is None and (single or cache.beyond is not None)
    tables: Any = _first_row(cache.tables)
    tables = one_token.tables(own, cache.capacity) if missing else tables
    beyond = None
    if cache.beyond is not None:
        beyond = one_token.beyond(own, tables, new_k.raw, dims.heads)

    each = zip(own, offsets, new_q.states, strict=False)
    written = (last if t.offsets_keys else t.written(state) for t, last, state in each)
    new = Rows(new_k.x, new_v, new_k.raw, beyond, tuple(written), positions)
    before, cache = cache, append(cache, new)

    rows, index = in_sight(before, cache, new)
    of_new, of_rows = _both_sides(spec, positions, count, start, rows, index, indices)
    k_raw = rows.k if rows.k_raw is None else rows.k_raw
    k_raw = None if new_k.raw is None else k_raw.astype(q.dtype)
    sides = Side(before.k, None, (), of_rows), new_k._replace(tokens=of_new)
    key_states, kept = [None] * len(terms), list(cache.states)
    for n, term in enumerate(own):
        key_states[n], now = term.read(rows.states[n], new_q.states[n], *sides, before.length)
        kept[n] = kept[n] if now is None else now
    cache = dataclasses.replace(cache, states=tuple(kept))
    k_side = Side(rows.k.astype(q.dtype), k_raw, tuple(key_states), of_rows)
    values = rows.v.astype(q.dtype)
    pairs = checks.pair_arrays(mask, None, sizes, values.shape[2], implementation, CONTIGUOUS)
    if pairs:  # of rows that it hides, scores are masked, and values have the weight 0
        seen = pairs["mask"].any((1, 2))[:, None, :, None]
        values = jnp.where(seen, values, jnp.zeros((), values.dtype))
    call = Call(spec, terms, new_q._replace(tokens=of_new), k_side, values, **pairs)
    engine: Any = implementation
    if engine is None and step is not None:  # few tokens
        engine = reference.attend
    if single:
        held = {"beyond": cache.beyond, "tables": (*tables, *none), "at": start}
        engine = functools.partial(one_token.attend, ring=cache.ring is not None, **held)
    run = dispatch.engine(engine, CONTIGUOUS, call, name)
    valid = encoding.valid_length()
    out, _ = pipeline.finish(call, run(*call.operands), positions, None, valid, result)
    return out, cache


@functools.lru_cache(256)
def _most_at_once(encoding: Encoding, capacity: int, dims: Dims) -> int | None:
    """How many tokens the terms take at once; None: any number."""
    steps = (term.cache_step for term in abstract_terms(encoding.at_length(capacity), dims))
    return min((step for step in steps if step is not None), default=None)


def _in_parts(cache: Cache, step: int, tokens: tuple, **options: Any) -> tuple[jax.Array, Cache]:
    """`extend` by q, k, v, x, positions and segments of many tokens, `step` at a time."""

    def part(cache, tokens):
        q, k, v, x, positions, segments = tokens
        given = {"x": x, "segments": segments}
        out, cache = extend(cache, q, k, v, positions, **given, **options)
        return cache, out

    *qkv, x, positions, segments = (
        np.asarray(x) if isinstance(x, list | tuple) else x for x in tokens
    )
    rows = batch, count = qkv[0].shape[:2]
    wide, places = (*rows, options["dims"].width), ((count,), rows, (1, count))
    given = ("x", x, wide), ("positions", positions, *places), ("segments", segments, rows)
    for name, array, *shapes in given:  # of all tokens, before these are cut
        if array is not None:
            checks.shape(name, array, *shapes)
    positions = None if positions is None else positions.reshape(-1, count)
    tokens = *qkv, x, positions, segments
    first = count - (count - 1) // step * step  # 1 to step; then the cache's arrays are there
    cache, out = part(cache, jax.tree.map(lambda x: x[:, :first], tokens))

    def cut(x):
        return jnp.moveaxis(x[:, first:].reshape(len(x), -1, step, *x.shape[2:]), 1, 0)

    cache, outs = jax.lax.scan(part, cache, jax.tree.map(cut, tokens))
    outs = jnp.moveaxis(outs, 0, 1).reshape(batch, -1, *out.shape[2:])
    return jnp.concatenate([out, outs], 1), cache


@functools.partial(jax.jit, inline=True)
def _first_row(tables: Any) -> Any:
    """The tables of one row of the batch, which are those of every row."""
    return jax.tree.map(lambda x: x[0], tables)


KEPT = ("k", "k_raw", "beyond", "states", "positions")  # what depends on the encoding


def _check_layout(cache: Any, encoding: Encoding, dims: Dims) -> None:
    """Raises TypeError unless it is a cache, ValueError if its encoding or its sizes differ."""
    require_cache(cache)
    now = _made_for(encoding, cache.capacity)
    fix = f"made for another encoding than {now}; pass the one that pe_jax.cache.empty was given"
    require(cache.made_for in ("", now), "cache", cache.made_for, fix)
    want = _layout(encoding, cache.k.shape[0], cache.capacity, dims)
    leaves, structure = jax.tree.flatten([getattr(cache, name) for name in KEPT])
    if ([x.shape for x in leaves], structure) != want[1:]:
        fix = "pass the encoding and dims that pe_jax.cache.empty was given"
        for name, expected in zip(KEPT, want[0], strict=True):
            actual = jax.tree.map(jnp.shape, getattr(cache, name))
            needs = f"{encoding_checks.title(encoding)} needs {expected}"
            require(actual == expected, f"cache.{name}", actual, f"{needs}; {fix}")
    for name in ("states", "beyond"):  # as a policy of half precision over all arrays casts them
        for x in jax.tree.leaves(getattr(cache, name)):
            if x.dtype not in (jnp.float32, jnp.int32):
                fix = "running sums and tables are float32; cast k and v alone"
                raise TypeError(f"cache.{name} has dtype {x.dtype}: {fix}")


@functools.lru_cache(512)
def _made_for(encoding: Encoding, capacity: int) -> str:
    """The encoding, for any length that it may be set for later."""
    return repr(encoding.at_length(capacity))


@functools.lru_cache(256)
def _layout(encoding: Encoding, batch: int, capacity: int, dims: Dims) -> tuple[list, list, Any]:
    """The shapes of `KEPT`, each as it is; then those of all their arrays, and their structure."""
    cache = jax.eval_shape(lambda: empty(encoding.at_length(capacity), batch, capacity, dims))
    kept = [getattr(cache, name) for name in KEPT]
    leaves, structure = jax.tree.flatten(kept)
    return [jax.tree.map(jnp.shape, x) for x in kept], [x.shape for x in leaves], structure


def _positions(
    cache: Cache, positions, indices: Any, sizes: checks.Sizes, encoding: Encoding
) -> jax.Array:
    """Checked positions of the new tokens: [B or 1, T], with a trailing [A] if axes > 1."""
    count = sizes.queries
    tail = (count,) + (encoding.claims.axes,) * (encoding.claims.axes > 1)
    if positions is not None:
        rows = (sizes.rows, count)
        positions = checks.positions_of(encoding.claims, "positions", positions, rows)
        return positions.reshape(-1, *tail)
    if encoding.claims.axes > 1:
        name = type(encoding).__name__
        raise ValueError(f"{name} has {encoding.claims.axes} axes: pass positions {[1, *tail]}")
    if indices is not None:
        return indices[1].rank
    known, length = concrete(cache.positions), cache.known_length()
    if known is not None and length is not None:
        tokens = np.arange(known.shape[1])
        if cache.ring is not None:
            with jax.ensure_compile_time_eval():  # known, also where jit closes over the cache
                tokens = np.asarray(cache.ring.tokens(jnp.asarray(length), jnp.asarray(length)))
        if (known != tokens)[:, tokens < length].any():
            raise ValueError("the cache's positions are not 0, 1, 2, …: pass positions as before")
    return pos.contiguous(count, cache.start)[None]


def _states(cache: Cache, terms: tuple, x, positions, indices: Any) -> tuple:
    """The states [B or 1, T, H, C] of new tokens for each term; a running sum goes on."""
    states = []
    for term, old in zip(terms, cache.states, strict=True):
        if term.state is None:
            states.append(None)
            continue
        before = None
        if term.state.after is not None:
            last = cache.start - 1
            if cache.ring is not None and term.key_width:
                last = cache.ring.row(last)
            last = jnp.clip(last, 0, old.shape[2] - 1)
            before = jax.lax.dynamic_index_in_dim(old, last, 2, keepdims=False)
            before = jnp.where(cache.start > 0, before, 0)
        if before is not None and indices is not None:
            is_token = indices[1].segments >= 0
            states.append(pipeline.sum_of_tokens(term.state, x, positions, is_token, before))
        else:
            states.append(term.state(x, positions, before))
    return tuple(states)


def _offset_keys(cache: Cache, terms: tuple, k: jax.Array, indices: Any) -> tuple[jax.Array, list]:
    """New keys [B, T, K, E] with what terms take of the key before each; what each then keeps."""
    offsets = []
    for term, old in zip(terms, cache.states, strict=True):
        last = None
        if term.offsets_keys:
            row = jnp.arange(k.shape[1], dtype=jnp.int32)[None]
            is_token = row >= 0 if indices is None else indices[1].segments >= 0
            rank = row + cache.start if indices is None else indices[1].rank
            k, last = term.offset_new(k, old, is_token, rank)
        offsets.append(last)
    return k, offsets


@functools.partial(jax.jit, static_argnums=(0, 2), inline=True)
def _both_sides(
    spec: AttentionSpec, positions, count: int, start, rows: Rows, index: jax.Array, indices: Any
) -> tuple[Tokens, Tokens]:
    """The new tokens, numbered from `start` on, and those of `rows`, numbered by `index` [S]."""
    positions = jnp.broadcast_to(positions, (len(rows.v), *positions.shape[1:]))
    new = Tokens(positions, pos.contiguous(count, start)[None])
    # rows that are not filled get the last token's position, which every scheme takes
    filled = (index < start + count).reshape(1, -1, *(1,) * (positions.ndim - 2))
    k_positions = jnp.where(filled, rows.positions, positions[:, -1:])
    cached = Tokens(jax.lax.stop_gradient(k_positions), index[None])
    if indices is not None:
        past, of_new = indices
        new = new._replace(row=new.index, **of_new._asdict())
        cached = cached._replace(row=cached.index, **past._asdict())
    elif not spec.causal:  # rows without a token are hidden as padding is
        ids = jnp.where(index < start + count, 0, -1)
        new = new._replace(segments=jnp.zeros((1, count), jnp.int32))
        cached = cached._replace(segments=ids[None])
    return new, cached
