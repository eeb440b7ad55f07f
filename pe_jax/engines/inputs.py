"""What `attention` is given: checked, completed and laid out before anything is computed.

B batch (any number of axes), T queries, S keys, H query heads, D model width, C width of a state.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import positions as pos
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Claims, Dims, Encoding, Params, adds_to_input, require_dims
from pe_jax.encodings.terms import Term, select
from pe_jax.encodings.windowed import Windowed, require_window
from pe_jax.engines import reference, term_inputs
from pe_jax.engines.sharded.heads import HeadsOfDevice
from pe_jax.engines.sharded.layout import Contiguous
from pe_jax.numerics.arrays import require_array, require_key
from pe_jax.validation import is_real, require, require_bool, shown

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
DRAW = "pass encoding.init(key, dims)"


def encoding(encoding: Any) -> Encoding:
    """The encoding of one layer; None is NoPE, and a tuple of one, as `parse` gives, is that one.

    Raises:
      TypeError: not an encoding, or more than one.
    """
    if isinstance(encoding, tuple) and len(encoding) == 1:
        encoding = encoding[0]
    if encoding is None:
        return Encoding()
    if not isinstance(encoding, Encoding):
        fix = "pass one layer's encoding, what pe_jax.make or pe_jax.parse(…)[0] gives, or None"
        raise TypeError(f"encoding={shown(encoding, 80)}: {fix}")
    return encoding


def some_heads(terms: tuple, heads_axis: str | None) -> tuple[Term, ...]:
    """Terms for the heads of this device, where those along a mesh axis share them.

    Raises:
      ValueError: a kind of term that cannot be split by heads.
    """
    if heads_axis is None:
        return terms
    for term in select(terms, kinds.RowRescore, kinds.Dropout):
        raise ValueError(f"heads_axis={heads_axis!r}: {type(term).__name__} needs all heads")
    return tuple(term.for_heads(HeadsOfDevice(heads_axis)) for term in terms)


def window(encoding: Encoding, window: int | None, sinks: int) -> tuple[Encoding, int | None, int]:
    """The encoding alone, and the window and sinks of the call, which may be the encoding's own.

    Raises:
      ValueError: a window or sinks that cannot be; a window of the call and one of the encoding.
    """
    if isinstance(encoding, Windowed):
        fix = f"the encoding has its own, {encoding.window or 0}; leave one of them out"
        require(window is None and not sinks, "window", window, fix)
        return encoding.encoding, encoding.window, encoding.sinks
    require_window(window, sinks)
    return encoding, window, sinks


def causal(encoding: Encoding, causal: bool | None, masked: bool = False) -> bool:
    """Whether later tokens are hidden: True unless told, for a scheme of one axis.

    `masked`: the engine has a separate mask, which may hide what a one-sided scheme cannot tell
    apart.

    Raises:
      ValueError: nothing is said for a scheme of several axes; a scheme for causal attention alone,
        or one to which all later tokens look alike, sees them.
    """
    if causal is None:
        fix = f"{title(encoding)} has {encoding.claims.axes} axes; pass True, or False to see all"
        require(encoding.claims.axes == 1, "causal", None, fix)
        return True
    require_bool("causal", causal)
    fix = f"{title(encoding)} is for causal attention alone"
    require(causal or not encoding.claims.causal_only, "causal", causal, fix)
    require(causal or masked or not encoding.claims.one_sided, "causal", causal, alike(encoding))
    return causal


def alike(encoding: Encoding) -> str:
    """What is wrong, and the fix, where a one-sided scheme sees later tokens."""
    fix = "pass causal=True"
    if any(hasattr(part, "bidirectional") for part in getattr(encoding, "parts", (encoding,))):
        fix = f"make it with bidirectional=True, or {fix}"
    return f"all later tokens look alike to {title(encoding)}; {fix}"


def embedded(encoding: Encoding, dims: Dims, embedded: bool) -> None:
    """Raises ValueError where a scheme adds to the input, unless the caller has called `embed`."""
    require_bool("embedded", embedded)
    fix = (
        f"{title(encoding)} adds to the input of the first layer, which attention does not see;"
        " call x = encoding.embed(params, x, positions) there, then pass embedded=True"
    )
    require(embedded or not adds_to_input(encoding, dims), "embedded", embedded, fix)


def title(encoding: Encoding) -> str:
    """T5+RoPE of a sum."""
    kinds = map(type, getattr(encoding, "parts", (encoding,)))
    return "+".join("NoPE" if kind is Encoding else kind.__name__ for kind in kinds)


def arrays(q, k, v, terms: tuple = ()) -> None:
    """Raises TypeError unless q, k and v are float arrays, ValueError where shapes do not match.

    With `terms` q and k are rotated: queries may have several views that meet one of keys.

    The engines compute in float32: a float64 result would not be one. (Without `jax_enable_x64`
    JAX makes float32 of what NumPy has in float64.)
    """
    for name, x in {"q": q, "k": k, "v": v}.items():
        if not hasattr(x, "ndim"):
            raise TypeError(f"{name} is a {type(x).__name__}; pass an array")
        if x.ndim < 3:
            raise ValueError(f"{name} has shape {x.shape}; pass [*B, length, heads, width]")
        if jax.dtypes.canonicalize_dtype(x.dtype) not in DTYPES:
            raise TypeError(f"{name} has dtype {x.dtype}; pass float32, bfloat16 or float16")
    if 0 in q.shape[-2:]:
        raise ValueError(f"q has shape {q.shape}; pass at least one head and one channel")
    shapes, (heads, kv_heads) = f"q {q.shape}, k {k.shape}, v {v.shape}", (q.shape[-2], k.shape[-2])
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"{shapes} do not fit: q and k share batch axes, k and v all but the width"
        )
    views = kinds.views(terms)
    count = views.count if views is not None and views.shared_keys else 1
    if q.shape[-1] != count * k.shape[-1]:
        raise ValueError(f"{shapes} do not fit: q and k need the same width")
    if kv_heads == 0 or heads % kv_heads:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        raise ValueError(f"k has {kv_heads} heads, but q has {heads}; use one of {divisors}")


def dims(
    dims: Dims | None, q: jax.Array, k: jax.Array, x: Any = None, heads_axis: str | None = None
) -> Dims:
    """The sizes as given, or those that q [*B, T, H, E] and k [*B, S, K, E] show.

    The model's width is then that of the layer's input x [*B, T, D]; without one, H·E. Where
    devices along `heads_axis` share the heads, q and k have some and `dims` says how many there
    are.
    """
    heads, head_dim = q.shape[-2:]
    if heads_axis is not None:
        require(dims is not None, "dims", None, f"heads_axis={heads_axis!r} needs the global sizes")
        heads *= _axis_size(heads_axis)
    if x is not None:
        require_array("x", x, 2)
    if dims is None:
        width = heads * head_dim if x is None else x.shape[-1]
        return Dims(width, heads, k.shape[-2], head_dim)
    require_dims(dims)
    if (heads, head_dim) != (dims.heads, dims.head_dim):
        raise ValueError(
            f"q has {heads} heads of {head_dim}, dims says {dims.heads} of {dims.head_dim}"
        )
    return dims


def _axis_size(heads_axis: str) -> int:
    """How many devices lie along the mesh axis."""
    try:
        return jax.lax.axis_size(heads_axis)
    except (NameError, TypeError, ValueError):
        fix = "pass the name of a mesh axis, inside jax.shard_map"
        raise ValueError(f"heads_axis={heads_axis!r}: {fix}") from None


def layout(layout: Any) -> None:
    """Raises TypeError unless it is a way in which tokens lie on devices."""
    if not isinstance(layout, Contiguous):
        fix = "pass one of pe_jax.engines.sharded.layout, as RowSharded(mesh, axes)"
        raise TypeError(f"layout={shown(layout, 80)}: {fix}")


def params(encoding: Encoding, params: Params | None, dims: Dims) -> Params:
    """The parameters as they are, or none for a scheme that has none.

    Raises:
      TypeError: they are no `Params`.
      ValueError: one is missing, or of another shape than `encoding.init(key, dims)` draws: what
        broadcasts (the table of one head) would be another model.
    """
    want, name = _shapes(encoding, dims), type(encoding).__name__
    if params is None:
        if jax.tree.leaves(want):
            raise ValueError(f"params=None, but {name} has parameters; {DRAW}")
        return want
    if not isinstance(params, Params):
        raise TypeError(f"params is a {type(params).__name__}; pass pe_jax.Params(shared, layer)")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.floating):
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise TypeError(f"params{jax.tree_util.keystr(path)} is of {kind}; pass floats")
    for side, wanted, given in zip(Params._fields, want, params, strict=True):
        wanted, given = _by_path(wanted), _by_path(given)
        if missing := sorted(wanted.keys() - given.keys()):
            raise ValueError(f"params.{side} has no {', '.join(missing)} for {name}; {DRAW}")
        if more := sorted(given.keys() - wanted.keys()):
            raise ValueError(f"params.{side} has {', '.join(more)}, not of {name}; {DRAW}")
        for path, shape in wanted.items():
            if given[path] != shape:
                raise ValueError(
                    f"params.{side}.{path} has shape {list(given[path])}; {title(encoding)} takes"
                    f" {list(shape)} for {dims}; {DRAW}, or the dims= that it was drawn for"
                )
    return params


@functools.lru_cache(256)
def _shapes(encoding: Encoding, dims: Dims) -> Params:
    """The parameters' shapes."""
    return jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))


def _by_path(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each leaf."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    name = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name(path): np.shape(leaf) for path, leaf in paths}


def at_length(encoding: Encoding, queries: int, given: dict, segments: Any = None) -> Encoding:
    """The scheme for the length at hand, where it depends on that and was not told it.

    `given` are positions by the name of the argument; None where there are none: then T, the number
    of `queries`, is the length. With segments positions restart, and it does not tell their end.

    Raises:
      ValueError: the length is not told and cannot be known; a known position is beyond it.
    """
    valid = encoding.valid_length()
    if valid is None:
        return encoding
    given = {name: x for name, x in given.items() if x is not None}
    if not valid and not given:
        return encoding.at_length(max(queries, 1))
    if not valid:
        raise ValueError(
            f"encoding: {title(encoding)} depends on the length of the whole sequence, which"
            " positions do not tell; pass encoding.at_length(total_length)"
        )
    if not given and segments is None:
        given = {"q": np.asarray(queries - 1)}
    for name, x in given.items():
        known = pos.concrete(x)
        if known is not None and known.size and (farthest := known.max()) >= valid:
            raise ValueError(
                f"{name} goes to position {farthest}, {title(encoding)} is set for {valid} tokens;"
                f" pass encoding.at_length({math.floor(farthest) + 1})"
            )
    return encoding


def positions(claims: Claims, q, k, q_positions, k_positions, name: str) -> list[Any]:
    """Checked positions of queries and keys, or None twice where they are contiguous from 0.

    They are constants to a gradient in every engine: a tile passes none to them.
    """
    axes, queries, keys = claims.axes, q.shape[-3], k.shape[-3]
    pair = _both_sides("positions", q_positions, k_positions, queries == keys)
    if pair is None:
        if queries != keys:
            raise ValueError(
                f"q has {queries} tokens and k has {keys}: pass q_positions and k_positions"
            )
        if axes > 1:
            raise ValueError(f"{name} has {axes} axes: pass q_positions [*B, T, {axes}]")
        return [None, None]
    tail, checked = (axes,) if axes > 1 else (), []
    for side, x, rows in zip(("q_positions", "k_positions"), pair, (q, k), strict=True):
        x = pos.as_positions(x, real=claims.real_positions, name=side)
        if x.shape == (1, rows.shape[-3], *tail):  # one row for all, as Hugging Face has it
            x = x[0]
        term_inputs.check_shape(side, x, (rows.shape[-3], *tail), (*rows.shape[:-2], *tail))
        pos.check_near(x, side)
        checked.append(jax.lax.stop_gradient(x))
    if checked[0].dtype != checked[1].dtype:  # only one side has integers
        checked = [x.astype(jnp.float32) for x in checked]
    return checked


def segments(q_segments, k_segments, q, k) -> list[Any]:
    """Segment ids [B, T] and [B, S], or None twice."""
    pair = _both_sides("segments", q_segments, k_segments, q.shape[-3] == k.shape[-3])
    if pair is None:
        return [None, None]
    checked = []
    for side, x, rows in zip(("q_segments", "k_segments"), pair, (q, k), strict=True):
        x = pos.as_positions(x, name=side)
        term_inputs.check_shape(side, x, rows.shape[:-2])
        checked.append(x.reshape(math.prod(rows.shape[:-3]), rows.shape[-3]))
    return checked


def _both_sides(name: str, of_queries, of_keys, same_length: bool):
    """What queries and keys have, the same unless told if there are as many; None for neither."""
    if of_queries is None and of_keys is None:
        return None
    if of_keys is None and same_length:
        of_keys = of_queries
    if of_queries is None or of_keys is None:
        raise ValueError(f"q_{name} and k_{name}: pass both, or neither")
    return of_queries, of_keys


def indices(q_index, k_index, q, k, layout: Contiguous, ordered: bool) -> list[jax.Array]:
    """Places of queries and keys among the tokens, each [T] or [*B, T], given or as they lie.

    Raises:
      ValueError: the mask asks for them (`ordered`) and queries that are not the keys have none; a
        call that does not fit the way in which its tokens lie on devices.
    """
    queries, keys, places = q.shape[-3], k.shape[-3], []
    sides = ("q_index", q_index, q), ("k_index", k_index, k)
    if type(layout) is not Contiguous:
        name = type(layout).__name__
        for side, x, _ in sides:
            require(x is None, side, "given", f"leave it out: {name} knows where tokens lie")
        if queries != keys:
            raise ValueError(f"{queries} queries and {keys} keys: {name} is for one row")
    if q_index is None and ordered and queries != keys:
        raise ValueError(
            f"q has {queries} tokens and k has {keys}: pass q_index, the place of each query among"
            " the tokens (the mask comes from it)"
        )
    for side, x, rows in sides:
        x = layout.order(rows.shape[-3]) if x is None else pos.as_positions(x, name=side)
        term_inputs.check_shape(side, x, rows.shape[-3:-2], rows.shape[:-2])
        places.append(x)
    return places


NAMES = {  # of `jax.nn.dot_product_attention`, Flax and PyTorch, and what to pass here
    "is_causal": "causal=",
    "attn_mask": "mask=",
    "dropout_p": "dropout_rate= and dropout_key=",
    "dropout_rng": "dropout_key=",
    "deterministic": "dropout_key=None to disable dropout",
    "local_window_size": "window=, how many tokens back are seen, oneself included",
    "query_seq_lengths": "q_segments=, with negative ids for padding",
    "key_value_seq_lengths": "k_segments=, with negative ids for padding",
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
        names = f"pass {NAMES[name]}" if name in NAMES else "see help(pe_jax.attention)"
        raise TypeError(f"{name}: attention has no such argument; {names}")


def options(q, k, scale, logit_cap, mask, dropout_rate, dropout_key) -> tuple[Term, ...]:
    """The terms that arguments of `attention` stand for.

    Raises:
      ValueError: a number out of range; dropout without a key.
    """
    terms: list[Term] = []
    for name, value, kind in (
        ("scale", scale, kinds.Scale),
        ("logit_cap", logit_cap, kinds.LogitCap),
    ):
        if value is not None:
            kinds.require_positive(name, value)
            terms.append(kind(float(value)))
    fix = "pass a fraction from 0 up to, but not, 1"
    require(is_real(dropout_rate) and 0 <= dropout_rate < 1, "dropout_rate", dropout_rate, fix)
    if isinstance(mask, kinds.Mask):
        batch, keys = math.prod(q.shape[:-3]), k.shape[-3]
        for leaf in jax.tree.leaves(mask.arrays):
            fix = f"its arrays are of {len(leaf)} rows, q has {batch}; pass one for each, or one"
            require(len(leaf) in (1, batch), "mask", leaf.shape, fix)
        fix = f"k has {keys} tokens; make it of as many"
        require(mask.length in (None, keys), "mask.length", mask.length, fix)
        terms.append(mask)
    if dropout_key is not None:
        require_key("dropout_key", dropout_key)
    if dropout_rate and dropout_key is not None:
        seeds = jax.random.bits(dropout_key, (math.prod(q.shape[:-3]), q.shape[-2]), jnp.uint32)
        terms.append(kinds.Dropout(seeds, rate=float(dropout_rate)))
    return tuple(terms)


def matrices(q, k, mask, bias, implementation: Any, layout: Contiguous) -> Any:
    """The implementation, which is the dense engine where a mask or a bias is an array.

    Raises:
      ValueError: shapes that do not broadcast; another engine was asked for.
    """
    if isinstance(mask, kinds.Mask):
        mask = None
    if mask is None and bias is None:
        return implementation
    shape = (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
    name = "bias" if mask is None else "mask"
    fix = "an array takes all scores at once: leave it out, pass 'dense', or a pe_jax.Mask"
    require(
        implementation in (None, "dense"), "implementation", implementation, f"{name}= as {fix}"
    )
    require(type(layout) is Contiguous, "layout", type(layout).__name__, f"{name}= as {fix}")
    if mask is not None:
        dtype = _dtype("mask", mask, "booleans, or a pe_jax.Mask")
        if not jnp.issubdtype(dtype, jnp.bool_):
            raise TypeError(f"mask has dtype {dtype}; pass booleans (an additive mask is a bias)")
        mask = pair_array("mask", mask, shape)
    if bias is not None:
        dtype = _dtype("bias", bias, "floats")
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(f"bias has dtype {dtype}; pass floats (booleans are a mask)")
        bias = pair_array("bias", bias, shape).astype(jnp.float32)
    return functools.partial(reference.attend, mask=mask, bias=bias)


def _dtype(name: str, x: Any, fix: str) -> Any:
    """That of an array, or of what makes one; TypeError for what makes none."""
    try:
        dtype = x.dtype if hasattr(x, "ndim") else np.asarray(x).dtype
    except ValueError:
        dtype = np.dtype(object)
    if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.number)):
        raise TypeError(f"{name}={shown(x, 80)}: pass an array of {fix}")
    return dtype


def pair_array(name: str, x: Any, shape: tuple[int, ...]) -> jax.Array:
    """An array that broadcasts to `shape` [*B, H, T, S], with one axis B: [B, H or 1, …]."""
    x = jnp.asarray(x)
    fits = x.ndim <= len(shape) and all(
        n in (1, m) for n, m in zip(x.shape[::-1], shape[::-1], strict=False)
    )
    require(fits, name, x.shape, f"pass a shape that broadcasts to {shape}")
    x = x.reshape((1,) * (len(shape) - x.ndim) + x.shape)
    whole = jnp.broadcast_to(x, (*shape[:-3], *x.shape[-3:]))
    return whole.reshape(math.prod(shape[:-3]), *x.shape[-3:])
