"""`attention`: any encoding with any engine, in the shapes of `jax.nn.dot_product_attention`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Claims, Dims, Encoding, Params, require_dims
from pe_jax.encodings.terms import Side, Term, Tokens
from pe_jax.encodings.windowed import require_window
from pe_jax.engines import dispatch, inputs, option_inputs, term_inputs, token_inputs
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.dropout import Dropout
from pe_jax.engines.reference import LOWEST
from pe_jax.engines.sharded.axes import under_auto_axes
from pe_jax.engines.sharded.heads import HeadsOfDevice
from pe_jax.engines.sharded.layout import CONTIGUOUS, Contiguous
from pe_jax.numerics.arrays import align
from pe_jax.validation import require_bool


@under_auto_axes
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    encoding: Encoding | tuple[Encoding, ...] | None = None,
    params: Params | None = None,
    terms: tuple[Term, ...] = (),
    x: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
    q_segments: Any = None,
    k_segments: Any = None,
    q_index: Any = None,
    k_index: Any = None,
    causal: bool | None = None,
    window: int | None = None,
    sinks: int = 0,
    mask: Any = None,
    bias: Any = None,
    scale: float | None = None,
    logit_cap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Any = None,
    return_lse: bool = False,
    embedded: bool = False,
    implementation: str | Callable | None = None,
    layout: Contiguous = CONTIGUOUS,
    dims: Dims | None = None,
    heads_axis: str | None = None,
    **others: Any,
) -> Any:
    """Attention with a positional encoding; rotates q and k, then calls `attend`.

    B batch (any number of axes), T queries, S keys, H query heads, K key heads (K divides H),
    E width of q and k, F width of v.

    Args:
      q: [*B, T, H, E]; float32, bfloat16 or float16.
      k: [*B, S, K, E].
      v: [*B, S, K, F]; F = E where the scheme adds vectors at the values (Shaw).
      encoding: the scheme; None is NoPE. One that depends on the length of the sequence (a dynamic
        NTK or LongRoPE scaling) is set for T where no positions are given and T = S; else it cannot
        be known: pass `encoding.at_length(total_length)`, which stays as it is.
      params: its parameters, of the shapes that `encoding.init(key, dims)` draws; may be left out
        for a scheme that has none.
      terms: what is added besides, as `(pe_jax.DistanceBias(f, table), pe_jax.Sink(logits))`: kinds
        of `pe_jax.encodings.terms`, for who has a function and needs no class.
      x: [*B, T, D], the layer's input, from which q, k and v were projected; read only by schemes
        with a state (FoX, CABLE, WavLM), for which T must equal S (else call `attend`).
      q_positions: where the queries stand, integers [T] or [*B, T] (float32 where the scheme
        declares `real_positions`; a trailing axis where it has several). None: contiguous, from 0
        in each segment; then T must equal S. They are constants: their gradient is zero in every
        engine, though the functions of `pe_jax.encodings` by themselves have one.
      k_positions: the same for the keys; None: as `q_positions`, if T = S.
      q_segments: integers [*B, T]: a query sees the keys of its own segment only. A negative id
        (padding) sees nothing. Tokens of a segment lie side by side: of an id that returns,
        engines may take different distances.
      k_segments: the same for the keys, [*B, S]; None: as `q_segments`, if T = S.
      q_index: the place of each query among the tokens, [T] or [*B, T], for the mask. None:
        0 … T - 1 if T = S.
      k_index: the same for the keys; None: 0 … S - 1.
      causal: whether later tokens (by index) are hidden. None: they are; a scheme of several axes
        must be told.
      window: how many tokens back are seen, oneself included; left out where the encoding is one
        with a window, as `pe_jax.parse("rope@window=512")` gives.
      sinks: how many tokens at the start of each segment (a run of equal ids; without segments,
        those of index < sinks) stay in sight beyond the window (StreamingLLM, arXiv 2309.17453;
        LM-Infinite, arXiv 2308.16137).
      mask: pairs to show (True) or hide (False): a `pe_jax.Mask`, evaluated tile by tile in O(L)
        memory (`pe_jax.masks` has prefix, tree and chunk masks), or booleans that broadcast to
        [*B, H, T, S], which need all scores in memory. The causal mask applies as well: pass
        causal=False if this mask is the whole mask.
      bias: floats that broadcast to [*B, H, T, S], added to the scores, which are held all at once.
      scale: what q·k is multiplied by; None: 1/sqrt(E), or what the encoding sets (T5 does).
      logit_cap: bounds the scores before the mask by cap·tanh(score / cap); None: unbounded.
      dropout_rate: the fraction of attention weights that is dropped.
      dropout_key: the PRNG key of dropout, new for each call; None disables it.
      return_lse: whether to return the logarithm of each row's sum of exponentials too.
      embedded: says that `x = encoding.embed(params, x, positions)` was called on the input of the
        first layer, for a scheme that adds to it (sinusoidal and learned tables, BiPE, sums with
        them): attention sees q, k and v alone and cannot.
      implementation: "dense" (all scores at once: the oracle), "tiled" (O(L) memory, any device),
        "fused" (a kernel for NVIDIA GPUs), "tpu" (kernels for TPUs), or None: dense for one query
        and for short rows of few scores (docs/guide.md has the numbers), else the device's kernel
        where it can run this and has agreed with "dense" on this device
        (`pe_jax.engines.kernels.self_check`), else tiled. What was picked is logged once, under
        "pe_jax".
        Schemes that need whole rows of scores (DAPE, PaTH) run dense at any length, O(L²) memory.
        Where a bias decays (ALiBi, FoX), engines other than "dense" leave out tiles in which each
        key weighs less than 2⁻⁴³ of the query's own.
        How many devices share the call is that of the mesh in force (`jax.set_mesh`, shard_map),
        else of the mesh that q, k and v lie on; else one. On several, tiles hold all heads, and
        None takes no kernel, which XLA could not divide.
        Also `pe_jax.engines.tiled.Tiled(sizes)`, with tiles of given sizes, and an engine of one's
        own, a function like `pe_jax.engines.reference.attend` (with an attribute `has_own_mask`
        that is True, if it hides more than `causal` says); it is given `dropout=` only where there
        is one.
      layout: how the tokens of a row lie on several devices, of `pe_jax.engines.sharded.layout`,
        under jit: `RowSharded(mesh, axes)`, where each row is on one of them, which runs the engine
        that it would run alone, a kernel too; `BlockPermuted(mesh)`, where they share a row's
        tokens in a ring: q, k, v, x, positions and segments lie as its `spread` lays them, and so
        does the output.
      **others: none: for each name that other libraries have, a TypeError says ours.
      dims: global sizes; None: from q and k, the model width being x's or H·E. Under jit, heads
        may be sharded; inside shard_map pass `heads_axis`.
      heads_axis: the mesh axis along which devices share the heads, inside shard_map: q, k and v
        have this device's heads in order, parameters and `dims` all of them.

    Gradients are first order and reverse mode where the tiled engine runs (a custom VJP).

    Returns:
      [*B, T, H, F] in v's dtype. A query that sees nothing gives zeros. With `return_lse` also
      float32 [*B, T, H]: -1e30 for such a query. Both have gradients.

    Raises:
      ValueError: shapes, positions, indices or segments that do not fit together; positions that
        are missing although T ≠ S; parameters that are missing or of another shape; a scheme that
        adds to the input, unless `embedded`; one that needs a length and has none, or a known
        position beyond it; causal=False for a scheme that is causal alone, or to which all later
        tokens look alike; causal=None for one of several axes; an implementation that is unknown,
        needs another device, or cannot run this call (the message says why).
      TypeError: positions of a dtype that the scheme does not take; q, k or v that is no array, or
        of another dtype (float64 too).
    """
    option_inputs.no_others(others)
    inputs.layout(layout)
    encoding, window, sinks = inputs.window(inputs.encoding(encoding), window, sinks)
    inputs.arrays(q, k, v)
    dims = inputs.dims(dims, q, k, x, heads_axis)
    encoding.check(dims)
    inputs.embedded(encoding, dims, embedded)
    own_mask = mask is not None or getattr(implementation, "has_own_mask", False)
    causal = inputs.causal(encoding, causal, own_mask)
    given = {"q_positions": q_positions, "k_positions": k_positions}
    name = inputs.title(encoding)
    q_positions, k_positions = token_inputs.positions(encoding.claims, q, k, **given, name=name)
    params = inputs.params(encoding, params, dims)
    encoding = inputs.at_length(encoding, q.shape[-3], given, q_segments)
    scale = option_inputs.positive("scale", scale)
    logit_cap = option_inputs.positive("logit_cap", logit_cap)
    dropout = option_inputs.dropout(q, dropout_rate, dropout_key)
    terms = term_inputs.terms(terms, dims, encoding.claims.axes)
    all_terms = encoding.terms(params, dims) + terms + option_inputs.mask_terms(mask, q, k)
    kinds.check(all_terms, scale, logit_cap)
    implementation = option_inputs.matrices(q, k, mask, bias, implementation, layout)

    places = [q_positions, k_positions]
    if q_positions is None:
        places = [layout.order(q.shape[-3])] * 2
        if q_segments is not None and term_inputs.absolute(
            all_terms, encoding.claims.absolute_rotation
        ):
            ids = token_inputs.segments(q_segments, k_segments, q, k)
            places = [layout.per_segment(rows).reshape(q.shape[:-2]) for rows in ids]
    term_inputs.layer_input(all_terms, name, x, q.shape[:-2], dims)
    q_states, k_states = _states(all_terms, layout, x, places)
    if heads_axis is not None:
        share = functools.partial(HeadsOfDevice(heads_axis), axis=-2)
        q_states, k_states = jax.tree.map(share, (q_states, k_states))
        all_terms = inputs.some_heads(all_terms, dropout, heads_axis)
    found = attend(
        term_inputs.rotate(all_terms, "q", q, places[0], q_states),
        term_inputs.rotate(all_terms, "k", k, places[1], k_states),
        term_inputs.rotate_values(all_terms, v, places[1]),
        terms=all_terms,
        dims=dims,
        q_raw=q,
        k_raw=k,
        q_states=q_states,
        k_states=k_states,
        q_positions=q_positions,
        k_positions=k_positions,
        q_segments=q_segments,
        k_segments=k_segments,
        q_index=q_index,
        k_index=k_index,
        causal=causal,
        window=window,
        sinks=sinks,
        scale=scale,
        logit_cap=logit_cap,
        dropout=dropout,
        implementation=implementation,
        layout=layout,
        return_lse=return_lse,
        claims=encoding.claims,
        name=name,
    )
    if not return_lse:
        return term_inputs.rotate_output(all_terms, found, places[0])
    out, lse = found
    return term_inputs.rotate_output(all_terms, out, places[0]), lse


@under_auto_axes
def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    terms: tuple[Term, ...],
    dims: Dims,
    q_raw: jax.Array,
    k_raw: jax.Array,
    q_states: Any = None,
    k_states: Any = None,
    q_positions: Any = None,
    k_positions: Any = None,
    q_segments: Any = None,
    k_segments: Any = None,
    q_index: Any = None,
    k_index: Any = None,
    causal: bool = True,
    window: int | None = None,
    sinks: int = 0,
    scale: float | None = None,
    logit_cap: float | None = None,
    dropout: Dropout | None = None,
    implementation: str | Callable | None = None,
    layout: Contiguous = CONTIGUOUS,
    return_lse: bool = False,
    claims: Claims = Encoding.claims,
    name: str = "attention",
) -> Any:
    """Attention on q, k and v that are already rotated, as a cache holds them.

    What comes before is the caller's: the input, `at_length` and the rotations; and, where values
    are rotated, what turns the output back (`ValueRotation`). Takes what
    `attention` takes, and `q_raw` [*B, T, H, E], `k_raw` [*B, S, K, E] as they were before the
    rotation (read only by relative keys and queries). Instead of x it takes `q_states` and
    `k_states`: for each term what its `State` gives for the tokens of either side, [*B, T, H, C],
    or None where it has none (k_states=None: as `q_states`, if T = S). `claims` says what positions
    the terms take, `name` what messages call them.
    """
    require_window(window, sinks)
    term_inputs.terms(terms)
    inputs.arrays(q, k, v, terms)
    require_dims(dims)
    require_bool("causal", causal)
    require_bool("return_lse", return_lse)
    (*batch, queries, heads, _), keys = q.shape, k.shape[-3]
    q_seg, k_seg = token_inputs.segments(q_segments, k_segments, q, k)
    masked = causal or window is not None
    q_places, k_places = token_inputs.indices(q_index, k_index, q, k, layout, masked)
    positions = token_inputs.positions(claims, q, k, q_positions, k_positions, name)
    contiguous = positions[0] is None
    if not (queries and keys and q.size):
        out = jnp.zeros((*batch, queries, heads, v.shape[-1]), v.dtype)
        return (out, jnp.full(out.shape[:-1], LOWEST)) if return_lse else out
    term_inputs.check_values(terms, v.shape[-1], claims.axes)
    q_states, k_states = term_inputs.check_states(terms, q_states, k_states, q, k)

    restarts = contiguous and q_seg is not None and kinds.reads_places(terms)
    if contiguous:
        positions = [layout.per_segment(q_seg) if restarts else layout.order(queries)] * 2
        contiguous = not restarts
    q_pos, k_pos = (_flat(x, 1 + (claims.axes > 1)) for x in positions)
    rank = layout.per_segment(k_seg) if sinks and k_seg is not None else None
    q_tokens = Tokens(q_pos, _flat(q_places, 1), q_seg)
    k_tokens = Tokens(k_pos, _flat(k_places, 1), k_seg, rank)
    raw = term_inputs.read_raw(terms, q_raw, k_raw)
    q, k, v, q_raw, k_raw = jax.tree.map(_heads_first, (q, k, v, *raw))
    aligned = queries == keys and q_index is None and k_index is None and k_segments is None
    read = return_lse or kinds.reads_lse(terms)
    spec = AttentionSpec(
        *(dims, causal, window, sinks, aligned, contiguous, restarts, read),
        scale=scale,
        logit_cap=logit_cap,
    )
    q_side, k_side = Side(q, q_raw, q_states, q_tokens), Side(k, k_raw, k_states, k_tokens)
    call = dispatch.Call(spec, terms, q_side, k_side, v)
    out, lse = dispatch.engine(implementation, layout, call, name, dropout)(*call)
    out, lse = rescale(terms, q_states, out, lse)
    out = jnp.swapaxes(out, 1, 2).reshape(*batch, queries, heads, -1).astype(v.dtype)
    if not return_lse:
        return out
    return out, jnp.swapaxes(lse, 1, 2).reshape(*batch, queries, heads)


def _states(terms: tuple, layout: Contiguous, x: Any, places: Any) -> list[tuple[Any, ...]]:
    """For each term its states of queries and of keys; what both read from `x` is made once."""
    of_queries = tuple(t.state and layout.state(t.state, x, places[0]) for t in terms)
    of_keys = tuple(
        layout.state(t.state, x, places[1])
        if term_inputs.reads_keys(t) and t.state.of != "x"  # pyright: ignore[reportOptionalMemberAccess]
        else made
        for t, made in zip(terms, of_queries, strict=True)
    )
    return [of_queries, of_keys]


def rescale(terms: tuple, states: tuple, out: jax.Array, lse: Any) -> tuple[jax.Array, Any]:
    """The output [B, H, T, F] with what sinks leave, or unnormalized, and lse [B, H, T, 1].

    `states` [B or 1, H, T, 1] are those of the queries, for each term.
    """
    if kinds.select(terms, kinds.Unnormalized):
        out = out * jnp.exp(lse)
    for sink, state in zip(terms, states, strict=True):
        if not isinstance(sink, kinds.Sink):
            continue
        logit = align(sink.logit[:, None, None], out) + (0 if state is None else state)
        out, lse = out * jax.nn.sigmoid(lse - logit), jnp.logaddexp(lse, logit)
    return out, lse


def _heads_first(x: jax.Array) -> jax.Array:
    """[*B, T, H, E] → [B, H, T, E]."""
    return jnp.swapaxes(x.reshape(-1, *x.shape[-3:]), 1, 2)


def _flat(x: jax.Array, axes: int) -> jax.Array:
    """[T, …] → [1, T, …]; [*B, T, …] → [B, T, …]; `axes` counts those from T on."""
    return x.reshape(-1, *x.shape[-axes:])
