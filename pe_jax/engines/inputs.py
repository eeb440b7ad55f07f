"""What `attention` is given: checked and completed before anything is computed.

The encoding, its parameters, arrays and sizes; `token_inputs` has positions, segments and indices,
`option_inputs` what else a call may say, `term_inputs` what terms ask of it.

B batch (any number of axes), T queries, S keys, H query heads, D model width.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import positions as pos
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims, Encoding, Params, adds_to_input, require_dims
from pe_jax.encodings.terms import Term, select
from pe_jax.encodings.windowed import Windowed, require_window
from pe_jax.engines.dropout import Dropout
from pe_jax.engines.sharded.heads import HeadsOfDevice
from pe_jax.engines.sharded.layout import Contiguous
from pe_jax.numerics.arrays import require_array
from pe_jax.validation import require, require_bool, shown

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


def some_heads(terms: tuple, dropout: Dropout | None, heads_axis: str) -> tuple[Term, ...]:
    """Terms for the heads of this device, where those along a mesh axis share them.

    Raises:
      ValueError: a kind of term, or dropout, that cannot be split by heads.
    """
    for what in (*select(terms, kinds.RowRescore), *([] if dropout is None else [dropout])):
        raise ValueError(f"heads_axis={heads_axis!r}: {type(what).__name__} needs all heads")
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
