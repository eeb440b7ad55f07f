"""What `attention` and a cache do around an engine, the same for both.

A request is checked and its terms are gathered (`prepare`), padding gets zeros (`hide_padding`),
states are computed and queries, keys and values rotated (`rotated`); an engine runs; `finish`
undoes what was done. The two differ in where keys come from.

B batch (any number of axes), T queries, S keys, H query heads, K key heads, E head width, F value
width, C width of a state.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax import masks
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims, Encoding, ParamsLike
from pe_jax.encodings.terms import Side
from pe_jax.encodings.windowed import Windowed
from pe_jax.engines import checks, encoding_checks
from pe_jax.engines.attention_spec import AttentionSpec, Call
from pe_jax.engines.sharded.layout import BlockPermuted, Contiguous
from pe_jax.numerics.arrays import pick
from pe_jax.numerics.position_arrays import concrete
from pe_jax.validation import require


class Prepared(NamedTuple):
    """A request that was checked."""

    encoding: Encoding  # set for the length of the call, if it depends on one
    name: str  # the encoding's, in messages
    spec: AttentionSpec  # the sizes and options; whether tokens are in order is not known yet
    # those of the encoding, which come first, of the call and of its masks; traced numbers are a
    # term
    terms: tuple
    x: Any  # the layer's input, or None where no term reads it


def prepare(
    layer: Windowed,
    sizes: checks.Sizes,
    dims: Dims,
    params: ParamsLike | None,
    *,
    positions: dict[str, Any],
    segments: Any,
    terms: Any,
    x: Any,
    embedded: bool,
    causal: bool | None,
    mask: Any,
    tokens: int | None,
    scale: Any,
    logit_cap: Any,
    lse: bool = False,
) -> Prepared:
    """The request of one layer, checked; what is not named here is as for `attention`.

    `layer` is the encoding with its window, sinks and chunks; `positions` are those that were
    given, by argument name, or None; `segments` those of the queries. `tokens` is how many there
    are, if more may follow; None: the keys are all. `lse`: whether the caller reads it.
    """
    encoding, name = layer.encoding, encoding_checks.title(layer.encoding)
    axes = encoding.claims.axes
    encoding_checks.sizes(encoding, dims)
    encoding_checks.embedded(encoding, dims, embedded)
    encoding = encoding_checks.at_length(encoding, sizes.queries, positions, segments)
    causal = checks.causal(encoding, causal, mask)
    own = encoding.terms(encoding_checks.params(encoding, params, dims), dims)
    own += checks.terms(terms, dims, axes)
    hiding = checks.mask_terms(mask, sizes.rows, sizes.keys, tokens)
    if layer.chunk is not None:  # engines skip by the window, its span
        hiding += (masks.chunks(layer.chunk),)
    traced, scale, logit_cap = checks.scale_and_cap(own, scale, logit_cap)
    if scale is None and not traced:  # known once, and not asked of the terms for each block
        scale = kinds.scale(own, dims.head_dim)
    x = checks.inputs(own, name, x, sizes, dims, axes)
    options = {"lse": lse or kinds.reads_lse(own), "scale": scale, "logit_cap": logit_cap}
    spec = AttentionSpec(dims, causal, layer.span, layer.sinks, **options)
    return Prepared(encoding, name, spec, own + hiding + traced, x)


def states(
    terms: tuple,
    layout: Contiguous,
    x: Any,
    positions: Any,
    tokens: Any,
    heads: int,
    is_token: Any = None,
) -> list[tuple[Any, ...]]:
    """The states of queries and those of keys, [*B, T, H, C] or None for each term.

    `tokens` are the shapes (*B, T) and (*B, S), `heads` those of queries. A state of the layer's
    input `x` is computed once for both sides. `is_token` [B, T] tells tokens from padding, which
    adds nothing to running sums (on a ring of devices it does); None: all are tokens.

    Raises:
      ValueError: a state of another shape than its term declares.
    """

    def state(term, side):
        if is_token is None or term.state.after is None or isinstance(layout, BlockPermuted):
            values = layout.state(term.state, x, positions[side])
        else:
            values = _sum_of_tokens(term.state, x, is_token)
        rows = (*tokens[side], heads)
        leads = rows, rows[-2:], (1, *rows[-2:])
        if values.shape[:-1] not in leads or values.shape[-1] != term.state.width:
            name, want = type(term).__name__, [*rows, term.state.width]
            raise ValueError(f"{name}: its State gives shape {list(values.shape)}, not {want}")
        return values

    if not any(term.state is not None for term in terms):
        return [(None,) * len(terms)] * 2
    of_queries = [None if t.state is None else state(t, 0) for t in terms]
    of_keys = []
    for term, values in zip(terms, of_queries, strict=True):
        reads = term.key_width or isinstance(term, kinds.AroundEngine)
        if term.state is not None and term.state.of != "x" and reads:
            values = state(term, 1)
        of_keys.append(values if reads else None)
    return [tuple(of_queries), tuple(of_keys)]


def _sum_of_tokens(state: Any, x: jax.Array, is_token: jax.Array) -> jax.Array:
    """`sum_of_tokens` of rows [*B, T, D], where a token comes after padding."""
    rows = x.reshape(-1, *x.shape[-2:])
    is_token = jnp.broadcast_to(is_token, rows.shape[:2])
    late = (is_token[:, 1:] & ~is_token[:, :-1]).any()
    sums = jax.lax.cond(
        late, lambda y: sum_of_tokens(state, y, None, is_token), lambda y: state(y, None), rows
    )
    return sums.reshape(*x.shape[:-1], *sums.shape[2:])


def sum_of_tokens(
    state: Any, x: jax.Array, positions: Any, is_token: jax.Array, before: Any = None
) -> jax.Array:
    """A state that is a running sum, [B, T, H, C]; padding has that of the token before it.

    To be summed, tokens are moved in front of padding. `before` is the sum before the first, [B, H,
    C]; None: 0.
    """
    order = jnp.argsort(~is_token, axis=1, stable=True)

    def tokens_first(y):
        return pick(jnp.broadcast_to(y, (is_token.shape[0], *y.shape[1:])), order)

    sums = state(*jax.tree.map(tokens_first, (x, positions)), before)
    count = jnp.cumsum(is_token, axis=1, dtype=jnp.int32)
    last = pick(sums, jnp.maximum(count - 1, 0))
    return jnp.where(count[:, :, None, None] > 0, last, 0 if before is None else before[:, None])


def rotate(
    terms: tuple, side: str, x: jax.Array, positions, states: tuple, lengths: Any = None
) -> jax.Array:
    """Vectors [*B, T, H or K, E] of a side after query biases and rotations.

    `side` is "q", "k" or "v", or "out": outputs rotated back by the positions of the queries.
    `lengths` [*B, T] are those of each token's document, for terms that read them (`by_length`).
    """
    for term in terms:
        if side == "q" and isinstance(term, kinds.QueryBias):
            x = term.shift(x)
    each = list(zip(terms, states, strict=True))
    for term, state in each[::-1] if side == "out" else each:
        if isinstance(term, kinds.Rotates):
            x = term.rotate(side, x, positions, state, lengths)
    return x


def rotated(
    terms: tuple, q: Any, k: Any, v: Any, positions: Any, states: Any, lengths: Any = (None, None)
) -> tuple[Side, Side, jax.Array]:
    """Both sides and the values as engines take them: rotated, heads first, without tokens.

    `positions`, `states` and `lengths` are those of queries and of keys.
    """
    q_x = rotate(terms, "q", q, positions[0], states[0], lengths[0])
    k_x = rotate(terms, "k", k, positions[1], states[1], lengths[1])
    checks.same_width(q_x.shape, k_x.shape, kinds.views(terms))
    for term in kinds.select(terms, kinds.ProductTerm):
        fix = f"{type(term).__name__} reads {q.shape[-1]}: leave out the rotation that changes them"
        require(q_x.shape[-1] == q.shape[-1], "channels", q_x.shape[-1], fix)
    values = rotate(terms, "v", v, positions[1], states[1], lengths[1])
    raw = {term.reads_raw for term in terms}
    k_states = (x if term.key_width else None for term, x in zip(terms, states[1], strict=True))
    q_side = Side(q_x, q if "q" in raw else None, states[0])
    k_side = Side(k_x, k if "k" in raw else None, tuple(k_states))
    return heads_first((q_side, k_side, values))


def offset_keys(terms: tuple, layout: Contiguous, k: jax.Array, ids: Any, mask: Any) -> jax.Array:
    """Keys [*B, S, K, E] with what a `KeyOffset` takes from the key before each.

    `ids` [B, S] are their segments or None; keys that a mask [B or 1, …, S or 1] hides from every
    query are padding.
    """
    for term in kinds.select(terms, kinds.KeyOffset):
        *batch, count = k.shape[:-2]
        ids = jnp.zeros((1, count), jnp.int32) if ids is None else ids
        ids = ids if mask is None else jnp.where(mask.any((1, 2)), ids, -1)
        follows = (ids >= 0) & (layout.previous(ids, 1, first=-1) == ids)
        follows = jnp.broadcast_to(follows, (math.prod(batch), count)).reshape(*batch, count)
        k = term.offset(k, layout.previous(k, len(batch)), follows)
    return k


def finish(
    call: Call, result: tuple, positions: Any, lengths: Any, valid: int | None, like: Any
) -> tuple[jax.Array, Any]:
    """What an engine gives, as a caller takes it: out as `like` [*B, T, H, …], and lse [*B, T, H].

    Sinks rescale it, values are rotated back by the `positions` (and `lengths`) of the queries, and
    rows of the batch with a traced position beyond the length that the encoding is set for
    (`valid`) become NaN: they need another scaling throughout.
    """
    out, lse = result
    for term, state in zip(call.terms, call.q.states, strict=True):
        if isinstance(term, kinds.ResultTerm):
            out, lse = term.rescale(out, lse, state)
    sides = call.q.tokens, call.k.tokens
    if valid is not None and any(concrete(side.positions) is None for side in sides):
        rows: Any = False  # known positions were refused before; padding does not count
        for side in sides:
            beyond = (side.positions >= valid).reshape(*side.positions.shape[:2], -1).any(-1)
            beyond = beyond if side.segments is None else beyond & (side.segments >= 0)
            rows |= beyond.any(-1)[:, None, None, None]
        out, lse = jax.tree.map(lambda x: jnp.where(rows, jnp.nan, x), (out, lse))
    out = jnp.swapaxes(out, 1, 2).reshape(*like.shape[:-1], -1).astype(like.dtype)
    out = rotate(call.terms, "out", out, positions, call.q.states, lengths)
    return out, jnp.swapaxes(lse, 1, 2).reshape(like.shape[:-1]) if call.spec.lse else None


@functools.partial(jax.jit, inline=True)
def heads_first(tree: Any) -> Any:
    """Arrays [*B, T, H, E] → [B, H, T, E]."""
    return jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, *x.shape[-3:]), 1, 2), tree)


def _shown(q_ids: Any, k_ids: Any, mask: Any) -> tuple[Any, Any]:
    """Which queries and which keys are not padding, [B, T] and [B, S]; arguments as below."""
    queries = True if q_ids is None else q_ids >= 0
    keys = True if k_ids is None else k_ids >= 0
    if mask is not None:
        queries, keys = queries & mask.any((1, 3)), keys & mask.any((1, 2))
    return queries, keys


def tokens_of_input(q_ids: Any, k_ids: Any, mask: Any) -> jax.Array:
    """Which tokens of the input are not padding, [B, T]; arguments as for `hide_padding`."""
    queries, keys = _shown(q_ids, k_ids, mask)
    return jnp.atleast_2d(queries | keys)


@functools.partial(jax.jit, inline=True)
def hide_padding(q_ids: Any, k_ids: Any, mask: Any, q: Any, k: Any, v: Any, x: Any = None) -> tuple:
    """q, k, v and x with zeros in the place of padding, which then reaches nothing, NaN or not.

    Args:
      q_ids: segments of the queries, [B, T], negative for padding; or None.
      k_ids: the same of the keys.
      mask: bool [B or 1, H or 1, T or 1, S or 1], or None: a key that it hides from every query
        counts as padding, and so does a query that it shows nothing.
      q: [*B, T, H, E].
      k: [*B, S, K, E].
      v: [*B, S, K, F].
      x: the layer's input [*B, T, D], shared by queries and keys; or None. A token in it is padding
        if both its query and its key are.
    """
    queries, keys = _shown(q_ids, k_ids, mask)

    def tokens(are: Any, y: jax.Array, axes: int) -> jax.Array:
        *batch, count = y.shape[: y.ndim - axes]
        are = jnp.broadcast_to(are, (math.prod(batch), count))
        return jnp.where(are.reshape(*batch, count, *(1,) * axes), y, jnp.zeros((), y.dtype))

    x = None if x is None else tokens(queries | keys, x, 1)
    return tokens(queries, q, 2), tokens(keys, k, 2), tokens(keys, v, 2), x
