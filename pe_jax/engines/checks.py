"""Checks of a call: `attention`, the cache and the adapters share them, and call each once.

In the order of `attention`'s options: arrays and sizes; what is added to the scores; where tokens
are; what they may see; the softmax; how the call runs. Functions return their argument in the form
that engines take. Errors name the argument, its value and what to pass: a TypeError for a wrong
type or dtype, a ValueError for a value that does not fit.

B batch (any number of axes), T queries, S keys, H query heads, K key heads, E head width, D model
width, A axes of a position.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from pe_jax import positions as pos
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Claims, Dims, Encoding, require_dims
from pe_jax.encodings.terms import Term, select
from pe_jax.engines import encoding_checks
from pe_jax.engines.dropout import Dropout
from pe_jax.engines.sharded.heads import HeadsOfDevice
from pe_jax.engines.sharded.layout import Contiguous
from pe_jax.engines.tiled import Tiled
from pe_jax.numerics.arrays import require_array, require_key
from pe_jax.numerics.position_arrays import as_positions, check_near, concrete, padding_at_zero
from pe_jax.validation import divisors, is_int, is_real, refuse, require, require_bool, shown

AXES = " (q, k and v have axes [*B, T, H, E]: are heads and tokens swapped?)"
DTYPES = frozenset(map(jnp.dtype, (jnp.float32, jnp.bfloat16, jnp.float16)))
NAMES = {  # of `jax.nn.dot_product_attention`, Flax and PyTorch, and what to pass here
    "is_causal": "causal=",
    "attn_mask": "mask=",
    "dropout_p": "dropout_rate= and dropout_key=",
    "dropout_rng": "dropout_key=",
    "deterministic": "dropout_key=None to disable dropout",
    "local_window_size": "window=, how many tokens back are visible, including the query's own",
    "query_seq_lengths": "q_lengths=",
    "key_value_seq_lengths": "k_lengths=",
    "enable_gqa": "k and v with fewer heads: nothing else is needed",
    "softcap": "logit_cap=",
    "logits_soft_cap": "logit_cap=",
    "sm_scale": "scale=",
    "return_residual": "return_lse=",
    "segment_ids": "q_segments=",
    "positions": "q_positions=",
}


def no_others(others: dict[str, Any]) -> None:
    """Raises TypeError for an unknown argument, naming the equivalent argument of `attention`."""
    for name in others:
        fix = f"pass {NAMES[name]}" if name in NAMES else "see help(pe_jax.attention)"
        raise TypeError(f"{name}: attention has no such argument; {fix}")


# --- Arrays and sizes ---


class Sizes(NamedTuple):
    """Those of q [*B, T, H, E], k [*B, S, K, E] and v [*B, S, K, F]: further checks read them."""

    batch: tuple[int, ...]
    queries: int
    keys: int
    heads: int
    kv_heads: int
    width: int
    value_width: int

    @property
    def rows(self) -> int:
        """Rows of the batch, all its axes as one."""
        return math.prod(self.batch)

    def order_of_axes(self) -> str:
        """A hint for messages where there are more heads than tokens; else ""."""
        return AXES if self.heads > self.queries else ""


def sizes(q: Any, k: Any, v: Any, batch: str = "*B") -> Sizes:
    """The sizes of float arrays that fit; `batch` is "*B", or "B" for one axis.

    Engines compute in float32, so float64 is refused. (Without `jax_enable_x64` JAX converts
    NumPy's float64 to float32.)
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if getattr(x, "dtype", None) not in DTYPES:
            require_array(name, x)
            if jax.dtypes.canonicalize_dtype(x.dtype) not in DTYPES:
                raise TypeError(f"{name} has dtype {x.dtype}; pass float32, bfloat16 or float16")
        if x.ndim < 3 or (batch == "B" and x.ndim != 4):
            raise ValueError(f"{name} has shape {x.shape}; pass [{batch}, length, heads, width]")
    *rows, queries, heads, width = q.shape
    keys, kv_heads = k.shape[-3:-1]
    if 0 in (heads, width):
        raise ValueError(f"q has shape {q.shape}; pass at least one head and one channel")
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-1] != v.shape[:-1]:
        shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
        fix = "q and k share batch axes, k and v all but the width"
        raise ValueError(f"{shapes} do not fit: {fix}")
    same_width(q.shape, k.shape)
    if kv_heads == 0 or heads % kv_heads:
        fix = f"use one of {divisors(heads)}{AXES if heads > queries else ''}"
        raise ValueError(f"k has {kv_heads} heads, but q has {heads}; {fix}")
    return Sizes(tuple(rows), queries, keys, heads, kv_heads, width, v.shape[-1])


def same_width(q: tuple[int, ...], k: tuple[int, ...], views: Any = None) -> None:
    """Raises unless q and k of these shapes are as wide; q may have several `views` per key."""
    count = views.count if views is not None and views.shared_keys else 1
    if q[-1] != count * k[-1]:
        raise ValueError(f"q {q}, k {k} do not fit: q and k need the same width")


def dims(dims: Dims | None, sizes: Sizes, x: Any = None, heads_axis: str | None = None) -> Dims:
    """`dims` after a check, or those of a call's sizes.

    The model's width is then that of the layer's input x [*B, T, D]; without one, H·E. Where
    devices along `heads_axis` share the heads, q and k have some of them, `dims` counts all.
    """
    heads, head_dim = sizes.heads, sizes.width
    if heads_axis is not None:
        if dims is None:
            refuse("dims", None, f"heads_axis={heads_axis!r} needs the global sizes")
        try:
            heads *= jax.lax.axis_size(heads_axis)
        except (NameError, TypeError, ValueError):
            fix = "pass the name of a mesh axis, inside jax.shard_map"
            raise ValueError(f"heads_axis={heads_axis!r}: {fix}") from None
    if x is not None:
        require_array("x", x, 2)
    if dims is None:
        width = heads * head_dim if x is None else x.shape[-1]
        return _dims(width, heads, sizes.kv_heads, head_dim)
    require_dims(dims)
    if (heads, head_dim) != (dims.heads, dims.head_dim):
        raise ValueError(
            f"q has {heads} heads of {head_dim}, dims says {dims.heads} of {dims.head_dim}"
            + sizes.order_of_axes()
        )
    return dims


_dims = functools.lru_cache(512)(Dims)


def shape(name: str, x: Any, *allowed: tuple[int, ...], hint: str = "") -> None:
    """Raises ValueError unless x has one of the shapes."""
    if x.shape not in allowed:
        fix = " or ".join(str(list(shape)) for shape in dict.fromkeys(allowed))
        raise ValueError(f"{name} has shape {list(x.shape)}; pass {fix}{hint}")


# --- What is added to the scores (the encoding: `encoding_checks`) ---


def terms(terms: Any, dims: Dims, axes: int = 1) -> tuple[Term, ...]:
    """A tuple of terms of scores, with arrays for the heads and widths of `dims`."""
    if not isinstance(terms, tuple) or any(
        not isinstance(term, Term) or isinstance(term, kinds.Input) for term in terms
    ):
        fix = "pass a tuple of terms of scores, as (pe_jax.Sink(b),)"
        raise TypeError(f"terms={shown(terms, 80)}: {fix}")
    heads, width = dims.heads, dims.head_dim
    for term in terms:
        name = f"terms: {type(term).__name__}"
        if isinstance(term, kinds.Sink):
            require_array(name, term.logit)
            shape(name, term.logit, (heads,))
        elif isinstance(term, kinds.QueryBias):
            require_array(name, term.u)
            shape(name, term.u, (heads, width))
        elif isinstance(term, kinds.KeyOffset):
            fits = isinstance(term.channels, tuple)
            fits = fits and all(is_int(n, 0) and n < width for n in term.channels)
            fix = f"pass a tuple of some of 0 to {width - 1}"
            require(fits, f"{name}.channels", term.channels, fix)
        elif isinstance(term, kinds.ByDistance):
            values = jax.eval_shape(term.at, _distances(7, axes))
            tail = values.shape[2:] if isinstance(term, kinds.DistanceVectors) else ()
            tail = (width,) if term.reads_raw else tail
            shape(f"{name} of 7 distances", values, (heads, 7, *tail), (1, 7, *tail))
    return terms


def inputs(terms: tuple, name: str, x: Any, sizes: Sizes, dims: Dims, axes: int) -> Any:
    """The layer's input x if terms read it, else None; v must be as wide as what is added to it.

    Terms that read the input need that of the keys, too, which are then the same tokens.
    """
    for term in select(terms, kinds.RelativeValues):
        need = jax.eval_shape(term.at, _distances(1, axes)).shape[-1]
        if need != sizes.value_width:
            raise ValueError(f"v has width {sizes.value_width}; relative values need {need}")
    if not kinds.reads_input(terms):
        return None
    if x is None:
        refuse("x", None, f"{name} reads the layer's input; pass x=[*B, T, D]")
    if x.shape != (want := (*sizes.batch, sizes.queries, dims.width)):
        raise ValueError(f"x has shape {x.shape}; pass {list(want)}{sizes.order_of_axes()}")
    if sizes.keys != sizes.queries:
        fix = f"{name} reads x, from which both come; decode with pe_jax.cache"
        raise ValueError(f"q has {sizes.queries} tokens and k has {sizes.keys}: {fix}")
    return x


def _distances(count: int, axes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count, axes) if axes > 1 else (count,), jnp.int32)


# --- Where tokens are ---


def positions(
    encoding: Encoding, sizes: Sizes, q_positions, k_positions, needed: bool = True
) -> list[Any]:
    """Positions of queries and keys, or None twice where they are contiguous from 0.

    `needed`: whether anything reads them; else they may be left out for any number of tokens.
    """
    claims, queries, keys = encoding.claims, sizes.queries, sizes.keys
    pair = _both_sides("positions", q_positions, k_positions, queries == keys)
    if pair is None and queries != keys and not needed:
        pair = pos.contiguous(queries), pos.contiguous(keys)
    if pair is None:
        if queries != keys:
            raise ValueError(
                f"q has {queries} tokens and k has {keys}: pass q_positions and k_positions"
                + sizes.order_of_axes()
            )
        if claims.axes > 1:
            needs = f"{encoding_checks.title(encoding)} has {claims.axes} axes"
            raise ValueError(f"{needs}: pass q_positions [*B, T, {claims.axes}]")
        return [None, None]
    sides = zip(("q_positions", "k_positions"), pair, (queries, keys), strict=True)
    hint = sizes.order_of_axes()
    checked = [positions_of(claims, side, x, (*sizes.batch, n), hint) for side, x, n in sides]
    if checked[0].dtype != checked[1].dtype:  # only one side has integers
        checked = [x.astype(jnp.float32) for x in checked]
    return checked


def positions_of(
    claims: Claims, name: str, x: Any, rows: tuple[int, ...], hint: str = ""
) -> jax.Array:
    """Positions [T] or `rows` [*B, T], with a trailing axis A if the scheme has several.

    They are constants: no engine passes a gradient to positions. `hint` ends a message about the
    shape.
    """
    tail = (claims.axes,) if claims.axes > 1 else ()
    x = as_positions(x, real=claims.real_positions, name=name)
    if x.shape == (1, rows[-1], *tail):  # one row for all, as Hugging Face has it
        x = x[0]
    shape(name, x, (rows[-1], *tail), (*rows, *tail), hint=hint)
    check_near(x, name)
    return jax.lax.stop_gradient(padding_at_zero(x))


def segments(sizes: Sizes, q_segments, k_segments, q_lengths, k_lengths) -> tuple[Any, Any]:
    """Segment ids [B, T] and [B, S] with one axis B, or None twice; one array if they are the same.

    Lengths [*B] are segments: 0 for the first tokens of each row, -1 after them. A side without
    lengths has no padding, as in `jax.nn.dot_product_attention`.
    """
    sides = ("q", sizes.queries), ("k", sizes.keys)
    if q_lengths is None and k_lengths is None:
        pair = _both_sides("segments", q_segments, k_segments, sizes.queries == sizes.keys)
        if pair is None:
            return None, None
        checked: list[Any] = []
        for (side, count), x in zip(sides, pair, strict=True):
            x = as_positions(x, name=f"{side}_segments")
            shape(f"{side}_segments", x, (*sizes.batch, count))
            checked.append(x.reshape(sizes.rows, count))
        return checked[0], checked[0] if pair[1] is pair[0] else checked[1]
    if q_segments is not None or k_segments is not None:
        fix = "leave one of lengths and segments out: a negative segment id is padding"
        refuse("q_segments", "given", fix)
    checked = []
    for (side, count), x in zip(sides, (q_lengths, k_lengths), strict=True):
        index = pos.contiguous(count)[None]
        if x is None:
            checked.append(jnp.zeros((sizes.rows, count), jnp.int32))
            continue
        x = as_positions(x, name=f"{side}_lengths")
        shape(f"{side}_lengths", x, sizes.batch)
        known = concrete(x)
        if known is not None and ((known < 0) | (known > count)).any():
            refuse(f"{side}_lengths", known, f"pass integers from 0 to {count}")
        checked.append(jnp.where(index < x.reshape(-1, 1), 0, -1))
    same = q_lengths is k_lengths and sizes.queries == sizes.keys
    return checked[0], checked[0] if same else checked[1]


def _both_sides(name: str, of_queries, of_keys, same_length: bool):
    """The arrays of both sides, one for both if lengths are equal; None if neither is given."""
    if of_queries is None and of_keys is None:
        return None
    if of_keys is None and same_length:
        of_keys = of_queries
    if of_queries is None or of_keys is None:
        raise ValueError(f"q_{name} and k_{name}: pass both, or neither")
    return of_queries, of_keys


def indices(q_index, k_index, sizes: Sizes, layout: Contiguous, ordered: bool) -> list[jax.Array]:
    """Indices of queries and keys among the tokens, each [T] or [*B, T]; the default is `layout`'s.

    `ordered`: whether the mask depends on them.
    """
    queries, keys, checked = sizes.queries, sizes.keys, []
    if type(layout) is not Contiguous:
        if not isinstance(layout, Contiguous):
            fix = "pass one of pe_jax.engines.sharded.layout, as RowSharded(mesh, axes)"
            raise TypeError(f"layout={shown(layout, 80)}: {fix}")
        name = type(layout).__name__
        for side, x in (("q_index", q_index), ("k_index", k_index)):
            require(x is None, side, "given", f"leave it out: {name} knows where tokens lie")
        if queries != keys:
            raise ValueError(f"{queries} queries and {keys} keys: {name} is for one row")
    if q_index is None and ordered and queries != keys:
        raise ValueError(
            f"q has {queries} tokens and k has {keys}: pass q_index, the index of each query among"
            f" all tokens (the mask comes from it){sizes.order_of_axes()}"
        )
    if q_index is None and k_index is None and queries == keys:
        return [layout.order(queries)] * 2
    for side, x, count in (("q_index", q_index, queries), ("k_index", k_index, keys)):
        x = layout.order(count) if x is None else as_positions(x, name=side)
        shape(side, x, (count,), (*sizes.batch, count))
        checked.append(x)
    return checked


# --- What tokens may see ---


def causal(encoding: Encoding, causal: bool | None, mask: Any = None) -> bool:
    """Whether later tokens are hidden; by default True, for a scheme of one axis.

    A `Mask` that looks ahead makes False the default. Any mask (True: the implementation's) may
    hide the tokens that a one-sided scheme cannot tell apart.
    """
    claims = encoding.claims
    if causal is None and isinstance(mask, kinds.Mask) and mask.looks_ahead:
        causal = False
    if causal is None:
        if claims.axes > 1:
            fix = f"{encoding_checks.title(encoding)} has {claims.axes} axes; pass True, or False"
            refuse("causal", None, f"{fix} to see all")
        return True
    require_bool("causal", causal)
    if not causal and claims.causal_only:
        refuse("causal", causal, f"{encoding_checks.title(encoding)} is for causal attention alone")
    if not causal and claims.one_sided and mask is None:
        refuse("causal", causal, encoding_checks.alike(encoding))
    return causal


def mask_terms(mask: Any, rows: int, keys: int, tokens: int | None) -> tuple[kinds.Mask, ...]:
    """A `Mask` as a term of the call; nothing for an array (see `pair_arrays`).

    `tokens` is how many there are, if more may follow. None: the `keys` are all, and a longer mask
    belongs to another call.
    """
    if not isinstance(mask, kinds.Mask):
        return ()
    for leaf in jax.tree.leaves(mask.arrays):
        fix = f"its arrays have {leaf.shape[0]} rows, q has {rows}; pass {rows} rows, or one"
        require(leaf.shape[0] in (1, rows), "mask", leaf.shape, fix)
    count = keys if tokens is None else tokens
    length = count if mask.length is None else mask.length
    if length < count or (length > count and tokens is None):
        refuse("mask.length", length, f"k has {count} tokens; pass a mask of {count}")
    return (mask,)


# --- The softmax ---


def scale_and_cap(terms: tuple, scale: Any, logit_cap: Any) -> tuple[tuple, Any, Any]:
    """A tuple with a term of the traced numbers, if any; the scale and the cap as floats or None.

    The call's scale replaces that of a term. A cap of 0 is none. A traced number that is not
    positive becomes NaN.
    """
    if getattr(logit_cap, "ndim", None) == 0 and concrete(logit_cap) is not None:
        logit_cap = logit_cap.item()
    logit_cap = None if is_real(logit_cap) and logit_cap == 0 else logit_cap
    kinds.check(terms, logit_cap)
    if scale is None and logit_cap is None:
        return (), None, None
    options: dict[str, Any] = {"scale": scale, "logit_cap": logit_cap}
    traced, static = {}, {}
    for name, value in options.items():
        if hasattr(value, "ndim") and value.ndim == 0 and value.dtype != bool:
            if concrete(value) is None:
                value = jnp.asarray(value, jnp.float32)[None]
                traced[name] = jnp.where((value > 0) & (value < jnp.inf), value, jnp.nan)
                continue
            value = value.item()
        if value is not None:
            kinds.require_positive(name, value)
            static[name] = float(value)
    term = (kinds.TracedScalars(**traced),) if traced else ()
    return term, static.get("scale"), static.get("logit_cap")


def dropout_rate(rate: Any) -> None:
    """Raises ValueError unless `rate` is a fraction of weights that can be dropped."""
    if not (is_real(rate) and 0 <= rate < 1):
        refuse("dropout_rate", rate, "pass a fraction of at least 0 and below 1")


def dropout(sizes: Sizes, rate: Any, key: Any) -> Dropout | None:
    """The draws of a call; None where nothing is dropped."""
    dropout_rate(rate)
    if key is not None:
        require_key("dropout_key", key)
    if key is None or not rate:
        return None
    seeds = jax.random.bits(key, (sizes.rows, sizes.heads), jnp.uint32)
    return Dropout(seeds, rate=float(rate))


# --- How the call runs ---


def pair_arrays(
    mask: Any, bias: Any, sizes: Sizes, keys: int, implementation: Any, layout: Contiguous
) -> dict[str, Any]:
    """The mask and the bias that are arrays, [B, H or 1, T or 1, S or 1] for S = `keys`.

    They broadcast to the scores of all pairs [*B, H, T, S], and are for the dense engine, or for a
    function that takes them as it does.
    """
    arrays = {} if mask is None or isinstance(mask, kinds.Mask) else {"mask": mask}
    if bias is not None:
        arrays["bias"] = bias
    if not arrays:
        return arrays
    dense = callable(implementation) and not isinstance(implementation, Tiled)
    dense = dense or implementation in (None, "dense")
    fix = f"{min(arrays)}= as an array needs all scores at once: leave it out, or pass 'dense'"
    fix += " (or a pe_jax.Mask)" if "mask" in arrays else ""
    require(dense, "implementation", implementation, fix)
    require(type(layout) is Contiguous, "layout", type(layout).__name__, fix)
    pairs = (*sizes.batch, sizes.heads, sizes.queries, keys)
    for name, x in arrays.items():
        kind, fix = {
            "mask": (jnp.generic, "booleans, or a pe_jax.Mask"),
            "bias": (jnp.floating, "floats"),
        }[name]
        try:
            dtype = x.dtype if hasattr(x, "ndim") else np.asarray(x).dtype
        except ValueError:  # lists of several lengths
            dtype = np.dtype(object)
        if not any(jnp.issubdtype(dtype, numeric) for numeric in (jnp.bool_, jnp.number)):
            raise TypeError(f"{name}={shown(x, 80)}: pass an array of {fix}")
        if not jnp.issubdtype(dtype, kind):
            raise TypeError(f"{name} has dtype {dtype}; pass floats (booleans are a mask)")
        x = jnp.asarray(x)
        fits = x.ndim <= len(pairs) and all(
            n in (1, m) for n, m in zip(x.shape[::-1], pairs[::-1], strict=False)
        )
        require(fits, name, x.shape, f"pass a shape that broadcasts to {pairs}")
        x = x.reshape((1,) * (len(pairs) - x.ndim) + x.shape)
        x = jnp.broadcast_to(x, (*sizes.batch, *x.shape[-3:]))
        arrays[name] = x.reshape(sizes.rows, *x.shape[-3:])
    if "mask" in arrays and arrays["mask"].dtype != bool:
        arrays["mask"], doubt = _booleans(arrays["mask"])
        if doubt is not None:
            arrays["bias"] = arrays.get("bias", 0) + doubt
    return arrays


def _booleans(mask: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """A mask [B, H or 1, T or 1, S or 1] of zeros (hidden) and ones as booleans.

    An additive mask, which has other numbers or, where nothing is hidden, only zeros, is refused.
    Where the numbers are not known, a bias [B, 1, 1, 1] comes too, which is then NaN for all pairs.
    """
    known = concrete(mask)
    if known is None:
        fits = jnp.all((mask == 0) | (mask == 1)) & jnp.any(mask != 0)
        doubt = jnp.where(fits, 0.0, jnp.nan)
        return mask.astype(bool) | ~fits, jnp.broadcast_to(doubt, (mask.shape[0], 1, 1, 1))
    other = known[(known != 0) & (known != 1)]
    if other.size or (known.size and not known.any()):
        worst = other.flat[0] if other.size else "zeros alone"
        fix = "pass booleans, or zeros (hidden) and ones; an additive mask is a bias"
        raise ValueError(f"mask holds {worst}: {fix}")
    return mask.astype(bool), None


def some_heads(terms: tuple, dropout: Dropout | None, heads_axis: str) -> tuple[Term, ...]:
    """The terms for this device's heads, where devices along a mesh axis share the heads."""
    for unsupported in (*select(terms, kinds.PairRescore), *([] if dropout is None else [dropout])):
        raise ValueError(f"heads_axis={heads_axis!r}: {type(unsupported).__name__} needs all heads")
    return tuple(term.for_heads(HeadsOfDevice(heads_axis)) for term in terms)
