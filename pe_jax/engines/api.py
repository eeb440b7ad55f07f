"""`attention`: any encoding with any engine, in the shapes of `jax.nn.dot_product_attention`."""

import difflib
import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import DISTANCE_SLOTS, Dims, Encoding, Params
from pe_jax.engines import checks, dense, tiled
from pe_jax.engines.apart import Apart
from pe_jax.engines.axes import under_auto_axes
from pe_jax.engines.dense import Rules, Tokens
from pe_jax.engines.layout import IN_ORDER, InOrder
from pe_jax.engines.plan import TILE, devices
from pe_jax.validation import require

IMPLEMENTATIONS = ("dense", "tiled", "fused", "tpu")
KERNELS = {"gpu": "fused", "tpu": "tpu"}
SHORT = 256  # up to this length dense was the faster on CPU, if all scores fit one tile …
SHORTER = 128  # … and if vectors, not numbers, are added pair by pair


@under_auto_axes
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    encoding: Encoding | None = None,
    params: Params | None = None,
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
    embedded: bool = False,
    implementation: str | Callable | None = None,
    dims: Dims | None = None,
) -> jax.Array:
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
      x: [*B, T, D], the layer's input, from which q, k and v were projected; read only by schemes
        with a state (FoX, CABLE, WavLM), for which T must equal S (else call `attend`).
      q_positions: where the queries stand, integers [T] or [*B, T] (float32 where the scheme
        declares `real_positions`; a trailing axis where it has several). None: contiguous, from 0
        in each segment; then T must equal S. They are constants: their gradient is zero in every
        engine, though the functions of `pe_jax.encodings` by themselves have one.
      k_positions: likewise; None: as `q_positions`, if T = S.
      q_segments: integers [*B, T]: a query sees the keys of its own segment only. A negative id
        (padding) sees nothing.
      k_segments: likewise [*B, S]; None: as `q_segments`, if T = S.
      q_index: the place of each query among the tokens, [T] or [*B, T], for the mask. None:
        0 … T - 1 if T = S.
      k_index: likewise; None: 0 … S - 1.
      causal: whether later tokens (by index) are hidden. None: they are; a scheme of several axes
        must be told.
      window: see at most so many tokens back, oneself included.
      sinks: the first so many tokens of each segment (a run of equal ids; without segments, those
        of index < sinks) stay in sight beyond the window (StreamingLLM, arXiv 2309.17453;
        LM-Infinite, arXiv 2308.16137).
      embedded: says that `x = encoding.embed(params, x, positions)` was called on the input of the
        first layer, for a scheme that adds to it (sinusoidal and learned tables, BiPE, sums with
        them): attention sees q, k and v alone and cannot.
      implementation: "dense" (all scores at once: the oracle), "tiled" (O(L) memory, any device),
        "fused" (a kernel for NVIDIA GPUs), "tpu" (kernels for TPUs), or None: dense for one query
        or a short sequence (≤ 256; ≤ 128 with relative vectors) that fits a tile, else the device's
        kernel where it can run this, else tiled. What was picked is logged once, under "pe_jax".
        Schemes that need whole rows of scores (CoPE, DAPE) run dense at any length, O(L²) memory.
        Where a bias decays (ALiBi), "tiled" and "fused" leave out tiles in which each key weighs
        less than 2⁻⁴³ of the query's own.
        How many devices share the call is that of the mesh in force (`jax.set_mesh`, shard_map),
        else of the mesh that q, k and v lie on; else one. On several, tiles hold all heads, and
        None takes no kernel, which XLA could not divide.
        Also an engine of one's own, a function like `pe_jax.engines.dense.attend` (with an
        attribute `masked` that is True, if it hides more than `causal` says); and, under jit
        on several devices: `pe_jax.engines.apart.Apart(mesh, axes)`, where each row is on one of
        them, which then may run its kernel; `pe_jax.engines.ring.Ring(mesh)`, where they share a
        row's tokens: q, k, v, x, positions and segments lie as its `spread` lays them, and so does
        the output.
      dims: global sizes; None: from q and k, the model width being x's or H·E. Under jit, heads
        may be sharded; inside shard_map q must have all its heads (their slopes and tables need
        them).

    Gradients are first order and reverse mode where the tiled engine runs (a custom VJP).

    Returns:
      [*B, T, H, F] in v's dtype. A query that sees nothing gives zeros.

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
    encoding = encoding or Encoding()
    if not isinstance(encoding, Encoding):
        raise TypeError(f"encoding={encoding!r}: pass what pe_jax.make gives, or None")
    for name, array in {"q": q, "k": k, "v": v}.items():
        if not hasattr(array, "ndim"):
            raise TypeError(f"{name} is a {type(array).__name__}; pass an array")
    dims = dims or checks.dims(q, k, x)
    encoding.check(dims)
    checks.embedded(encoding, embedded)
    causal = checks.causal(encoding, causal, _masked(implementation))
    checks.shapes(q, k, v)
    if (q.shape[-2], q.shape[-1]) != (dims.heads, dims.head_dim):
        raise ValueError(
            f"q has {q.shape[-2]} heads of {q.shape[-1]}, dims says {dims.heads} of {dims.head_dim}"
        )
    positions = checks.positions(encoding, q, k, q_positions, k_positions)
    params = checks.params(encoding, params, dims)
    given = {"q_positions": q_positions, "k_positions": k_positions}
    encoding = checks.at_length(encoding, q.shape[-3], given, q_segments)
    layout = _layout(implementation, q_index, k_index, q, k)
    at = positions or (layout.order(q.shape[-3]),) * 2
    if positions is None and encoding.anchored and q_segments is not None:
        batch = q.shape[:-3]
        ids = checks.segments(q_segments, k_segments, batch, q.shape[-3], k.shape[-3])
        at = [layout.per_segment(rows).reshape(*batch, -1) for rows in ids]
    state = None
    if encoding.overrides("state"):
        checks.layer_input(encoding, x, q.shape[:-2], dims)
        state = layout.state(encoding, params, x)
    return attend(
        encoding.rotate_q(params, q, at[0]),
        encoding.rotate_k(params, k, at[1]),
        v,
        encoding=encoding,
        params=params,
        q_raw=q,
        k_raw=k,
        q_state=state,
        q_positions=positions and positions[0],
        k_positions=positions and positions[1],
        q_segments=q_segments,
        k_segments=k_segments,
        q_index=q_index,
        k_index=k_index,
        causal=causal,
        window=window,
        sinks=sinks,
        implementation=implementation,
        dims=dims,
    )


@under_auto_axes
def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    encoding: Encoding,
    params: Params,
    dims: Dims,
    q_raw: jax.Array,
    k_raw: jax.Array,
    q_state: jax.Array | None = None,
    k_state: jax.Array | None = None,
    q_positions: Any = None,
    k_positions: Any = None,
    q_segments: Any = None,
    k_segments: Any = None,
    q_index: Any = None,
    k_index: Any = None,
    causal: bool | None = None,
    window: int | None = None,
    sinks: int = 0,
    implementation: str | Callable | None = None,
) -> jax.Array:
    """Attention on q and k that are already rotated, as a cache holds them.

    What comes before is the caller's: `embed`, `at_length` and the rotations. Takes what
    `attention` takes, and `q_raw` [*B, T, H, E], `k_raw` [*B, S, K, E] as they were before the
    rotation (read only by schemes with relative keys or queries). Instead of x it takes `q_state`
    [*B, T, H, C] and `k_state` [*B, S, H, C], what `encoding.state` gives for the tokens of either
    side (None: as `q_state`, if T = S).
    """
    checks.window(window, sinks)
    causal = checks.causal(encoding, causal, _masked(implementation))
    checks.shapes(q, k, v)
    batch, (queries, heads), keys = q.shape[:-3], q.shape[-3:-1], k.shape[-3]
    q_seg, k_seg = checks.segments(q_segments, k_segments, batch, queries, keys)
    layout = _layout(implementation, q_index, k_index, q, k)
    others = keys if causal or window is not None else queries
    q_ind = checks.index("q_index", q_index, batch, queries, others, layout)
    k_ind = checks.index("k_index", k_index, batch, keys, keys, layout)
    positions = checks.positions(encoding, q, k, q_positions, k_positions)
    contiguous = positions is None
    if contiguous:
        places = layout.order(queries)[None]
        if q_seg is not None and encoding.overrides("bias"):
            places = layout.per_segment(q_seg)  # distances are the same either way
        flat = [places, places]
    else:
        flat = [_flat(x, batch, 1 + (encoding.axes > 1)) for x in positions]
    if not (queries and keys and q.size):
        return jnp.zeros((*batch, queries, heads, v.shape[-1]), v.dtype)
    params = checks.params(encoding, params, dims)
    dense.check_values(encoding, params, v.shape[-1])
    operands = {"q": q, "k": k, "v": v}
    if encoding.overrides("relative_keys") or encoding.overrides("rescore"):
        operands["q_raw"] = q_raw
    if encoding.overrides("relative_queries"):
        operands["k_raw"] = k_raw
    operands |= checks.states(encoding, q_state, k_state, q, k)
    operands = {name: _heads_first(x) for name, x in operands.items()}
    q_tokens = Tokens(flat[0], _flat(q_ind, batch, 1), q_seg)
    rank = layout.per_segment(k_seg) if sinks and k_seg is not None else None
    k_tokens = Tokens(flat[1], _flat(k_ind, batch, 1), k_seg, rank)
    aligned = queries == keys and q_index is None and k_index is None and k_segments is None
    rules = Rules(encoding, dims, causal, window, aligned, contiguous, sinks)
    run = _pick(implementation, rules, params, operands, q_tokens, k_tokens)
    out = run(rules, params, operands, q_tokens, k_tokens)
    return jnp.swapaxes(out, 1, 2).reshape(*batch, queries, heads, -1).astype(v.dtype)


def _pick(implementation, rules, params, operands, q: Tokens, k: Tokens) -> Callable:
    """The engine's `attend`. Logs each choice that it makes by itself, once."""
    if isinstance(implementation, Apart):
        return functools.partial(implementation.run, lambda *call: _pick(None, *call)(*call))
    if callable(implementation):
        return implementation
    device, enc = jax.default_backend(), rules.encoding
    name, whole = type(enc).__name__, enc.overrides("rescore")
    if implementation is not None:
        if implementation not in IMPLEMENTATIONS:
            near = difflib.get_close_matches(str(implementation), IMPLEMENTATIONS, n=1, cutoff=0)
            raise ValueError(
                f"implementation={implementation!r} is unknown; did you mean {near[0]!r}?"
            )
        if whole and implementation != "dense":
            fix = f"{name} needs whole rows of scores, O(L²) memory; pass 'dense' or None"
            raise ValueError(f"implementation={implementation!r}: {fix}")
        if implementation in KERNELS.values():
            why = _refusal(implementation, rules, params, operands, q, k)
            if why is not None:
                raise ValueError(f"implementation={implementation!r}: {why}; pass 'tiled' or None")
        return _engine(implementation).attend
    if _is_small(enc, operands):
        _log(logging.INFO, f"{name}: dense, for one query or a short sequence")
        return dense.attend
    if whole:
        _log(logging.WARNING, f"{name}: dense, O(L²) memory: it needs whole rows of scores")
        return dense.attend
    if device in KERNELS:
        why = _refusal(KERNELS[device], rules, params, operands, q, k)
        shared = devices(operands["q"], operands["k"], operands["v"])
        if shared > 1:  # under jit XLA would gather the operands of a kernel
            why = "several devices, among which XLA cannot divide a kernel"
        if why is None:
            _log(logging.INFO, f"{name}: the {KERNELS[device]} kernel")
            return _engine(KERNELS[device]).attend
        _log(logging.WARNING, f"{name}: tiles of XLA, not the {KERNELS[device]} kernel: {why}")
        return tiled.attend
    _log(logging.INFO, f"{name}: tiled")
    return tiled.attend


def _masked(implementation: Any) -> bool:
    """Whether an engine hides more than `causal` says."""
    return getattr(implementation, "masked", False)


def _refusal(name: str, *call) -> str | None:
    """Why a kernel cannot run here, or cannot run this call; None if it can."""
    device = jax.default_backend()
    if KERNELS.get(device) != name:
        needs = next(d for d, kernel in KERNELS.items() if kernel == name)
        return f"it needs a {needs.upper()}, this is a {device.upper()}"
    return _engine(name).refusal(*call)


def _is_small(encoding: Encoding, operands: dict) -> bool:
    """Whether all scores at once are no more than the tiled engine would hold."""
    (batch, heads, queries, _), keys = operands["q"].shape, operands["k"].shape[2]
    short = SHORTER if any(map(encoding.overrides, DISTANCE_SLOTS[1:])) else SHORT
    fits = batch * heads * queries * keys <= TILE
    return queries == 1 or (max(queries, keys) <= short and fits)


@functools.cache
def _log(level: int, text: str) -> None:
    logging.getLogger("pe_jax").log(level, "attention: %s", text)


def _engine(name: str) -> Any:
    """The module of an engine; kernels are imported when they are used."""
    if name == "fused":
        from pe_jax.engines import fused as engine
    elif name == "tpu":
        from pe_jax.engines import tpu as engine
    else:
        engine = {"dense": dense, "tiled": tiled}[name]
    return engine


def _heads_first(x: jax.Array) -> jax.Array:
    """[*B, T, H, E] → [B, H, T, E]."""
    return jnp.swapaxes(x.reshape(-1, *x.shape[-3:]), 1, 2)


def _layout(implementation, q_index, k_index, q, k) -> InOrder:
    """How the tokens lie: an engine of several devices says so itself."""
    if not isinstance(implementation, InOrder):
        return IN_ORDER
    for name, index in {"q_index": q_index, "k_index": k_index}.items():
        fix = f"leave it out: {type(implementation).__name__} knows where tokens lie"
        require(index is None, name, "given", fix)
    if q.shape[-3] != k.shape[-3]:
        name = type(implementation).__name__
        raise ValueError(f"{q.shape[-3]} queries and {k.shape[-3]} keys: {name} is for one row")
    return implementation


def _flat(x: jax.Array, batch, tail: int) -> jax.Array:
    """[T, …] → [1, T, …]; [*B, T, …] → [B, T, …]; `tail` counts the axes from T on."""
    return x[None] if x.ndim == tail else x.reshape(math.prod(batch), *x.shape[len(batch) :])
