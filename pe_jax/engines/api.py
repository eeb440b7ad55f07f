"""`attention`: any encoding with any engine, in the shapes of `jax.nn.dot_product_attention`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax import positions as pos
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims, Encoding, ParamsLike
from pe_jax.encodings.terms import Term, Tokens
from pe_jax.engines import checks, dispatch, encoding_checks, pipeline
from pe_jax.engines.attention_spec import Call
from pe_jax.engines.reference import LOWEST
from pe_jax.engines.sharded.axes import under_auto_axes
from pe_jax.engines.sharded.heads import HeadsOfDevice
from pe_jax.engines.sharded.layout import CONTIGUOUS, Contiguous
from pe_jax.validation import refuse, require_bool


@under_auto_axes
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    # what is added to the scores
    encoding: Encoding | tuple[Encoding, ...] | str | None = None,
    params: ParamsLike | None = None,
    terms: tuple[Term, ...] = (),
    x: Any = None,
    embedded: bool = False,
    bias: Any = None,
    # where tokens are
    q_positions: Any = None,
    k_positions: Any = None,
    # what they may see
    causal: bool | None = None,
    window: int | None = None,
    sinks: int = 0,
    mask: Any = None,
    q_segments: Any = None,
    k_segments: Any = None,
    q_lengths: Any = None,
    k_lengths: Any = None,
    q_index: Any = None,
    k_index: Any = None,
    # the softmax
    scale: Any = None,
    logit_cap: Any = None,
    dropout_rate: float = 0.0,
    dropout_key: Any = None,
    return_lse: bool = False,
    # how it runs
    implementation: str | Callable | None = None,
    layout: Contiguous = CONTIGUOUS,
    dims: Dims | None = None,
    heads_axis: str | None = None,
    **others: Any,
) -> Any:
    """Attention with a positional encoding. docs/borrow.md has an example of each option.

    B batch (any number of axes), T queries, S keys, H query heads, K key heads (K divides H),
    E width of q and k, F width of v, D width of the model.

    Args:
      q: [*B, T, H, E]; float32, bfloat16 or float16.
      k: [*B, S, K, E].
      v: [*B, S, K, F]; F = E where the scheme adds vectors at the values (Shaw).
      encoding: the scheme, or its spec string ("rope"); None is NoPE. One that depends on the
        length uses T, or the length of each segment; with positions pass
        `encoding.at_length(total_length)`: beyond it a call is an error, or gives NaN where
        positions are traced.
      params: its parameters, as `encoding.init(key, dims)` draws: `Params`, a mapping with the
        same names (a state of Flax, a restored checkpoint), also of `nnx.Param`; None where it has
        none.
      terms: kinds of `pe_jax.terms` that are added as well: `(pe_jax.Sink(logits),)`.
      x: the layer's input [*B, T, D], for schemes that read it (FoX, CABLE); then T = S.
      embedded: says that `encoding.embed` was called on the input of the first layer, for schemes
        that add to it (sinusoidal and learned tables).
      bias: floats that broadcast to [*B, H, T, S]: all scores are held at once. -inf hides a pair
        as a mask does; a large negative number becomes -cap under a `logit_cap`, and hides none.
      q_positions: integers [T] or [*B, T] (floats if the scheme declares `real_positions`), with a
        last axis if it has several. None: from 0 in each segment, T = S unless nothing reads them
        (NoPE). 2**30 may mark padding, which a mask or segments must hide. They get no gradient.
      k_positions: the same for the keys; None: `q_positions`, if T = S.
      causal: whether later tokens are hidden; None: True, unless a mask looks ahead
        (`masks.prefix`). Required for a scheme of several axes.
      window: number of tokens back that are visible (and ahead, if not causal), including itself.
      sinks: number of first tokens of each segment that stay visible beyond the window. They keep
        their places in the text; StreamingLLM's are in its cache (docs/borrow.md).
      mask: a `pe_jax.Mask` (`pe_jax.masks`), in O(L) memory, or booleans (zeros and ones) that
        broadcast to [*B, H, T, S], True is visible. The causal mask holds as well where `causal` is
        True. Chunks and prefixes are counted within segments. Keys that booleans hide from every
        query are padding, too.
      q_segments: integers [*B, T]: tokens see their own segment; a negative id (padding) sees
        nothing, and reaches nothing even if it is NaN. Tokens of a segment are adjacent.
      k_segments: the same for the keys; None: `q_segments`, if T = S.
      q_lengths: integers [*B], instead of `q_segments`: the first ones of each row's queries are
        tokens, the others padding; None: all are tokens.
      k_lengths: the same for the keys.
      q_index: index of each query among the tokens [T] or [*B, T], for causal and window; None:
        0 … T - 1 if T = S.
      k_index: the same for the keys; None: 0 … S - 1.
      scale: what q·k is multiplied by, a positive number or an array [], which may be traced and
        has a gradient; None: 1/sqrt(E), or what the encoding sets (T5).
      logit_cap: scores become cap·tanh(score / cap), before the mask; numbers as for `scale`, and
        0 for none.
      dropout_rate: fraction of weights that is dropped.
      dropout_key: PRNG key of dropout, a new one per call; None disables it.
      return_lse: whether to return the log-sum-exp of each row as well.
      implementation: "dense" (all scores at once), "tiled" (O(L) memory), "fused" or "cudnn" (our
        kernels and cuDNN's for NVIDIA GPUs), "tpu" or "splash" (ours and JAX's for TPUs), a
        `Tiled(sizes)`, a function like `pe_jax.reference.attend`, or None: chosen by device, length
        and terms, and logged.
      layout: how tokens lie on several devices (`pe_jax.engines.sharded.layout`), under jit.
      dims: global sizes; None: those of q and k, and D of x or H·E.
      heads_axis: mesh axis whose devices share the heads, inside shard_map; q, k and v hold this
        device's heads, parameters and `dims` those of all devices.
      **others: none are accepted; for names of other libraries the TypeError says pe_jax's name.

    Returns:
      [*B, T, H, F] in v's dtype; zeros for a query that sees nothing. With `return_lse` also
      float32 [*B, T, H], -1e30 for such a query (with a sink, its logit). Both have gradients (of
      first order in tiles).

    Raises:
      ValueError: shapes, positions, segments or parameters that do not fit or are missing; a call
        that would compute another model (an input without `embed`, a scheme that cannot tell later
        tokens apart and sees them, positions beyond the length that it was set for); an
        implementation that cannot run it. The message says what to pass.
      TypeError: an argument of another type or dtype (float64 too), or of another name.
    """
    checks.no_others(others)
    sizes = checks.sizes(q, k, v)
    require_bool("return_lse", return_lse)
    queries, keys, like = sizes.queries, sizes.keys, q.shape[:-1]
    layer = encoding_checks.layer(encoding, window, sinks)
    claims = layer.claims
    dims = checks.dims(dims, sizes, x, heads_axis)
    q_ids, k_ids = checks.segments(sizes, q_segments, k_segments, q_lengths, k_lengths)
    needed = queries == keys or encoding_checks.reads_positions(layer.encoding, dims, terms, mask)
    positions = checks.positions(layer.encoding, sizes, q_positions, k_positions, needed)
    encoding, name, spec, terms, x = pipeline.prepare(
        layer,
        sizes,
        dims,
        params,
        positions={"q_positions": q_positions, "k_positions": k_positions},
        segments=q_ids,
        terms=terms,
        x=x,
        embedded=embedded,
        causal=causal,
        mask=mask,
        tokens=None,
        scale=scale,
        logit_cap=logit_cap,
        lse=return_lse,
    )
    contiguous, in_order = positions[0] is None, q_index is None and k_index is None
    if k_index is not None and kinds.select(terms, kinds.KeyOffset):
        refuse("k_index", k_index, f"{name} reads the key before each, in order; leave it out")
    ordered = spec.causal or spec.window is not None
    q_index, k_index = checks.indices(q_index, k_index, sizes, layout, ordered)
    aligned = in_order and queries == keys and k_ids is q_ids
    dropout = checks.dropout(sizes, dropout_rate, dropout_key)
    pairs = checks.pair_arrays(mask, bias, sizes, keys, implementation, layout)
    result = jax.ShapeDtypeStruct((*like, sizes.value_width), v.dtype)
    if 0 in (*sizes.batch, queries, keys):
        out = jnp.zeros(result.shape, v.dtype)
        return (out, jnp.full(like, LOWEST)) if return_lse else out

    # Padding, states and rotations. Positions restart in each segment where more than the distance
    # counts.
    is_token = None
    if q_ids is not None or "mask" in pairs:
        padding = q_ids, k_ids, pairs.get("mask")
        q, k, v, x = pipeline.hide_padding(*padding, q, k, v, x)
        is_token = None if x is None else pipeline.tokens_of_input(*padding)
    k = pipeline.offset_keys(terms, layout, k, k_ids, pairs.get("mask"))
    tokens, places = ((*sizes.batch, queries), (*sizes.batch, keys)), positions
    if contiguous:
        positions = places = [q_index if in_order else layout.order(queries)] * 2
        if q_ids is not None and kinds.is_absolute(terms, claims.absolute_rotation):
            positions = [layout.per_segment(ids).reshape(tokens[0]) for ids in (q_ids, k_ids)]
    states = pipeline.states(terms, layout, x, positions, tokens, dims.heads, is_token)
    if heads_axis is not None:
        share = functools.partial(HeadsOfDevice(heads_axis), axis=-2)
        states = jax.tree.map(share, states)
        terms = checks.some_heads(terms, dropout, heads_axis)
    lengths: Any = None, None
    if q_ids is not None and any(term.by_length for term in kinds.select(terms, kinds.Rotates)):
        sides = (q_ids, k_ids, tokens[0]), (k_ids, q_ids, tokens[1])
        lengths = [pos.document_lengths(*ids).reshape(shape) for *ids, shape in sides]
    q_side, k_side, v = pipeline.rotated(terms, q, k, v, positions, states, lengths)

    # The call as engines take it: one axis of rows.
    restarts = contiguous and q_ids is not None and kinds.reads_positions(terms)
    if restarts:
        places = [layout.spread(pos.since_first(layout.restore(jnp.asarray(q_ids))))] * 2
    q_at, k_at = _flat(places[0], places[1], 1 + (claims.axes > 1))
    q_index, k_index = _flat(q_index, k_index, 1)
    q_rank, k_rank = None, None
    if k_ids is not None and (spec.sinks or kinds.select(terms, kinds.Mask)):
        q_rank = k_rank = layout.per_segment(k_ids)
        if not aligned:
            q_rank = pos.rank_of(q_index, q_ids, k_index, k_ids)
            k_rank = pos.rank_of(k_index, k_ids, k_index, k_ids)
    order = {"contiguous": contiguous and not restarts, "restarts": restarts}
    spec = dataclasses.replace(spec, aligned=aligned, **order)
    q_side = q_side._replace(tokens=Tokens(q_at, q_index, q_ids, q_rank))
    k_side = k_side._replace(tokens=Tokens(k_at, k_index, k_ids, k_rank))
    call = Call(spec, terms, q_side, k_side, v, **pairs, dropout=dropout)
    run = dispatch.engine(implementation, layout, call, name)
    valid = None if contiguous else encoding.valid_length()
    made = run(*call.operands)
    out, lse = pipeline.finish(call, made, positions[0], lengths[0], valid, result)
    return (out, lse) if return_lse else out


def _flat(q: jax.Array, k: jax.Array, axes: int) -> tuple[jax.Array, jax.Array]:
    """[T, …] → [1, T, …], [*B, T, …] → [B, T, …] of both sides; `axes` counts those from T on."""
    flat = q.reshape(-1, *q.shape[-axes:])
    return flat, flat if k is q else k.reshape(-1, *k.shape[-axes:])
