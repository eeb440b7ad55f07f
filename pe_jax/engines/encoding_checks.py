"""Checks of the encoding of a call: what it is, its parameters, and the length it is set for.

`attention`, the cache and the adapters share them, as those of operands (`pe_jax.engines.checks`).
"""

import functools
import math
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import (
    Dims,
    Encoding,
    Params,
    ParamsLike,
    abstract_terms,
    adds_to_input,
    as_params,
)
from pe_jax.encodings.registry import parse
from pe_jax.encodings.windowed import Windowed, without_window
from pe_jax.numerics.position_arrays import PADDING, concrete
from pe_jax.validation import refuse, require_bool, shown

DRAW = "pass encoding.init(key, dims)"


def parsed(encoding: Any) -> Encoding:
    """The encoding of one layer, also from a spec string or a tuple of one; None is NoPE."""
    if isinstance(encoding, str):
        layers = parse(encoding)
        if len(layers) != 1:
            fix = f"it has {len(layers)} layers; pass that of one, as pe_jax.parse(…)[0]"
            refuse("encoding", encoding, fix)
        return layers[0]
    if isinstance(encoding, tuple) and len(encoding) == 1:
        encoding = encoding[0]
    if encoding is None:
        return Encoding()
    if not isinstance(encoding, Encoding):
        fix = "pass one layer's encoding, such as 'rope', pe_jax.make('rope', base=5e5) or None"
        raise TypeError(f"encoding={shown(encoding, 80)}: {fix}")
    return encoding


def layer(encoding: Any, window: Any, sinks: Any) -> Windowed:
    """The layer of a call: its encoding, with the call's window and sinks or its own."""
    try:
        return _layer(encoding, window, sinks)
    except TypeError:  # of another type, which may not be hashable
        return _layer.__wrapped__(encoding, window, sinks)


@functools.lru_cache(512, typed=True)
def _layer(encoding: Any, window: Any, sinks: Any) -> Windowed:
    scheme = parsed(encoding)
    if not isinstance(scheme, Windowed):
        window, sinks = (int(n) if isinstance(n, np.integer) else n for n in (window, sinks))
        return Windowed(scheme, window, sinks)
    if window is not None or sinks:
        its_own = scheme.window or 0 if scheme.chunk is None else f"chunk={scheme.chunk}"
        refuse("window", window, f"the encoding has its own, {its_own}; leave one of them out")
    return scheme


@functools.lru_cache(512)
def title(encoding: Encoding) -> str:
    """The name of an encoding in messages, such as T5+RoPE for a sum."""
    encoding = without_window(encoding)
    parts = map(type, getattr(encoding, "parts", (encoding,)))
    return "+".join("NoPE" if part is Encoding else part.__name__ for part in parts)


def alike(encoding: Encoding) -> str:
    """The message, with the fix, for a one-sided scheme that sees later tokens."""
    fix = "pass causal=True"
    if any(hasattr(part, "bidirectional") for part in getattr(encoding, "parts", (encoding,))):
        fix = f"make it with bidirectional=True, or {fix}"
    return f"all later tokens look alike to {title(encoding)}; {fix}"


@functools.lru_cache(512)
def sizes(encoding: Encoding, dims: Dims) -> None:
    """Raises ValueError where the scheme does not support the sizes."""
    encoding.check(dims)


def embedded(encoding: Encoding, dims: Dims, embedded: bool) -> None:
    """Raises unless the caller says that a scheme which adds to the input was called there."""
    require_bool("embedded", embedded)
    if not embedded and adds_to_input(encoding, dims):
        fix = "call x = encoding.embed(params, x, positions) there, then pass embedded=True"
        where = "adds to the input of the first layer, which attention does not see"
        refuse("embedded", embedded, f"{title(encoding)} {where}; {fix}")


def params(encoding: Encoding, params: ParamsLike | None, dims: Dims) -> Params:
    """The parameters, of the shapes that `encoding.init` draws; None for a scheme without any.

    Other trees with the same names are put into that structure (`as_params`). Shapes that broadcast
    (the table of one head) are refused: they are another model.
    """
    want, shapes, structure = _drawn(encoding, dims)
    if params is None and not shapes:
        return want
    name = type(encoding).__name__
    if params is None:
        fix = f"{DRAW} (pe_jax.parse(name)[0] is the encoding of a name)"
        raise ValueError(f"params=None, but {name} has parameters; {fix}")
    leaves, given = jax.tree.flatten(params)
    if isinstance(params, Params) and given == structure:
        pairs = zip(leaves, shapes, strict=True)
        if all(getattr(x, "dtype", None) == np.float32 and x.shape == y for x, y in pairs):
            return params
    params = as_params(params, want)
    if not isinstance(params, Params):
        raise TypeError(f"params is a {type(params).__name__}; pass pe_jax.Params(shared, layer)")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.floating):
            dtype = getattr(leaf, "dtype", type(leaf).__name__)
            raise TypeError(f"params{jax.tree_util.keystr(path)} is of {dtype}; pass floats")
    for side, expected, actual in zip(Params._fields, want, params, strict=True):
        expected, actual = _shapes_by_path(expected), _shapes_by_path(actual)
        if missing := sorted(expected.keys() - actual.keys()):
            raise ValueError(f"params.{side} has no {', '.join(missing)} for {name}; {DRAW}")
        if more := sorted(actual.keys() - expected.keys()):
            raise ValueError(f"params.{side} has {', '.join(more)}, not of {name}; {DRAW}")
        for path, want_shape in expected.items():
            if actual[path] != want_shape:
                raise ValueError(
                    f"params.{side}.{path} has shape {list(actual[path])}; {title(encoding)} takes"
                    f" {list(want_shape)} for {dims}; {DRAW}, or the dims= that it was drawn for"
                )
    return params


def reads_positions(encoding: Encoding, dims: Dims, terms: Any, mask: Any) -> bool:
    """Whether the encoding, one of the terms of a call or its `Mask` may read where tokens are."""
    if isinstance(mask, kinds.Mask) or not isinstance(terms, tuple):
        return True
    return any(
        isinstance(term, kinds.Rotates) or not isinstance(term, kinds.AroundEngine)
        for term in (*abstract_terms(encoding, dims), *terms)
    )


@functools.lru_cache(256)
def _drawn(encoding: Encoding, dims: Dims) -> tuple[Params, list[tuple[int, ...]], Any]:
    """What `init` draws as abstract arrays, the shapes of the leaves, and the structure."""
    drawn = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))
    leaves, structure = jax.tree.flatten(drawn)
    return drawn, [x.shape for x in leaves], structure


def _shapes_by_path(tree: Any) -> dict[str, tuple[int, ...]]:
    name = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name(path): np.shape(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def at_length(encoding: Encoding, queries: int, given: dict, segments: Any = None) -> Encoding:
    """The scheme set for this call's length, if it depends on a length and none was set.

    `given` has explicit positions by argument name, or None. Without any the length is T, the
    number of `queries`, unless that is symbolic (`jax.export`). With segments each document has a
    length: the scheme stays unchanged, and its terms read the lengths (`by_length`).
    """
    valid = encoding.valid_length()
    if valid is None:
        return encoding
    given = {name: x for name, x in given.items() if x is not None}
    symbolic = jax.export.is_symbolic_dim(queries)
    if not valid and not given and (segments is not None or not symbolic):
        return encoding if segments is not None else encoding.at_length(max(queries, 1))
    if not valid:
        raise ValueError(
            f"encoding: {title(encoding)} depends on the length of the whole sequence, which"
            f" {'a symbolic length does' if symbolic else 'positions do'} not tell;"
            " pass encoding.at_length(total_length)"
        )
    if not given and segments is None and not symbolic:
        given = {"q": np.asarray(queries - 1)}
    for name, x in given.items():
        known = concrete(x)
        known = None if known is None else known[known != PADDING]
        if known is not None and known.size and (farthest := known.max()) >= valid:
            raise ValueError(
                f"{name} goes to position {farthest}, {title(encoding)} is set for {valid} tokens;"
                f" pass encoding.at_length({math.floor(farthest) + 1})"
            )
    return encoding
