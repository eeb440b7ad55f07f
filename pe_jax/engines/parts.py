"""An encoding's rotation and its bias by themselves, for an attention or a cache of one's own.

    q, k = pe_jax.rotate(encoding, q, k, positions, params)
    bias = pe_jax.bias(encoding, positions, positions, params, dims=dims)
    out = softmax(scale·q·k + bias)·v          # = pe_jax.attention, under the same mask

`decompose` says which of the two an encoding has, and what else: its terms are sorted by what they
do (`pe_jax.encodings.terms.term`), and evaluated as `attention` evaluates them.

B batch (any number of axes), T queries, S keys, H query heads, K key heads, E head width, F value
width, D model width, A axes of a position.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import (
    Dims,
    Encoding,
    ParamsLike,
    abstract_terms,
    adds_to_input,
    require_dims,
)
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.encodings.windowed import Windowed
from pe_jax.engines import block, checks, encoding_checks, pipeline
from pe_jax.engines.sharded.layout import CONTIGUOUS
from pe_jax.numerics.arrays import require_array
from pe_jax.numerics.position_arrays import concrete
from pe_jax.validation import refuse, require

SIZES = Dims(512, 8, 8, 64)  # stand-in sizes, to ask for a scheme's terms before its own are known


class Parts(NamedTuple):
    """What an encoding adds to a Transformer.

    Attributes:
      rotated: which of "q", "k", "v" and "out" `rotate` changes (query biases, factors and decays
        of vectors included).
      bias: whether there is a `bias`.
      embedded: whether `encoding.embed` adds to the input of the first layer.
      scales: whether it sets the scale, what q·k is multiplied by: the scale is not 1/sqrt(E).
      scale: the scale, for the E of `dims`: rotated queries may be wider (PoPE); None without dims.
      reads_input: whether a part reads the layer's input, `x`.
      others: the names of the terms that are neither, as "RelativeKeys", with "window=512" and
        "chunk=512": only `pe_jax.attention` has them.
    """

    rotated: tuple[str, ...]
    bias: bool
    embedded: bool
    scales: bool
    scale: float | None
    reads_input: bool
    others: tuple[str, ...]


def decompose(
    encoding: Encoding | tuple[Encoding, ...] | str | None, dims: Dims | None = None
) -> Parts:
    """Which parts an encoding has: a rotation, a bias, what it adds to the input, something else.

    Args:
      encoding: the scheme, or its spec string; None is NoPE.
      dims: sizes of the model; None: the scale is not known.

    Raises:
      ValueError: an encoding of several layers, or a string that cannot be read.
      TypeError: `encoding` is not an encoding, `dims` not a `Dims`.
    """
    if dims is not None:
        require_dims(dims)
    layer = encoding_checks.layer(encoding, None, 0)
    terms = abstract_terms(layer.encoding, dims or SIZES)
    seen = {name: n for name in ("window", "chunk") if (n := getattr(layer, name)) is not None}
    others = [f"{name}={n}" for name, n in seen.items()]
    rotated = set()
    for term in terms:
        if isinstance(term, kinds.QueryBias):
            rotated.add("q")
        elif isinstance(term, kinds.Rotates) and getattr(term, "views", None) is None:
            rotated |= {side for side in ("q", "k", "v", "out") if getattr(term, side, None)}
        elif not isinstance(term, kinds.Scale) and not _is_bias(term):
            others.append("Views" if isinstance(term, kinds.Rotates) else type(term).__name__)
    return Parts(
        tuple(side for side in ("q", "k", "v", "out") if side in rotated),
        any(map(_is_bias, terms)),
        adds_to_input(layer.encoding, dims or SIZES),
        bool(kinds.select(terms, kinds.Scale)),
        None if dims is None else kinds.scale(terms, dims.head_dim),
        kinds.reads_input(terms),
        tuple(dict.fromkeys(others)),
    )


def rotate(
    encoding: Encoding | tuple[Encoding, ...] | str | None,
    q: jax.Array,
    k: jax.Array,
    positions: Any,
    params: ParamsLike | None = None,
    *,
    v: jax.Array | None = None,
    out: jax.Array | None = None,
    x: Any = None,
    embedded: bool = False,
    dims: Dims | None = None,
) -> tuple[jax.Array, ...]:
    """Queries and keys as an encoding rotates them: what plain attention multiplies.

    The scale is `decompose(encoding, dims).scale`; the softmax also needs the `bias`, if there is
    one. A key's rotation depends on its own position alone, so a cache may hold rotated keys.

    Args:
      encoding: the scheme, or its spec string; one without a rotation returns what it is given.
      q: [*B, T, H, E]; float32, bfloat16 or float16.
      k: [*B, S, K, E].
      positions: integers [T] or [*B, T] (floats if the scheme declares `real_positions`), with a
        last axis A if it has several; or a tuple of two such arrays, of the queries and of the
        keys.
      params: its parameters, as `encoding.init(key, dims)` draws; None where it has none.
      v: values [*B, S, K, F]: required where they are rotated (`rotated_values`).
      out: outputs of attention [*B, T, H, F], to be rotated back by the positions of the queries.
      x: the layer's input [*B, T, D], whole rows, for schemes that read it; then T = S.
      embedded: says that `encoding.embed` was called on the input of the first layer.
      dims: sizes of the model; None: those of q and k, and D of x or H·E.

    Returns:
      (q, k), then v and out if they are given, in their dtypes and shapes; q and k may be wider. A
      traced position beyond the length that a scheme was set for (`at_length`) gives NaN.

    Raises:
      ValueError: something in the scheme is neither a rotation nor a bias; shapes, positions or
        parameters that do not fit or are missing; a length that is not set.
      TypeError: an argument of another type or dtype.
    """
    layer, parts = _layer(encoding, dims)
    sizes = checks.sizes(q, k, k if v is None else v)
    if v is None and "v" in parts.rotated:
        refuse("v", None, f"{encoding_checks.title(layer)} rotates values too; pass v=, later out=")
    if out is not None:
        require_array("out", out)
        checks.shape("out", out, (*sizes.batch, sizes.queries, sizes.heads, sizes.value_width))
    dims = checks.dims(dims, sizes, x)
    pair = positions if isinstance(positions, tuple) else (positions, positions)
    made, places, states = _evaluated(layer, sizes, dims, params, pair, x, embedded)
    valid = made.encoding.valid_length()
    result = []
    for side, vectors in {"q": q, "k": k, "v": v, "out": out}.items():
        if vectors is not None:
            of_keys = side in ("k", "v")
            at, state = places[of_keys], states[of_keys]
            vectors = pipeline.rotate(made.terms, side, jnp.asarray(vectors), at, state)
            if valid is not None and concrete(at) is None:
                at = at if made.encoding.claims.axes == 1 else at.max(-1)
                vectors = jnp.where((at >= valid)[..., None, None], jnp.nan, vectors)
            result.append(vectors)
    return tuple(result)


def bias(
    encoding: Encoding | tuple[Encoding, ...] | str | None,
    q_positions: Any,
    k_positions: Any,
    params: ParamsLike | None = None,
    *,
    dims: Dims,
    x: Any = None,
    embedded: bool = False,
) -> jax.Array | None:
    """What an encoding adds to the scores scale·q·k of all pairs, before any mask.

    The scale is `decompose(encoding, dims).scale`, and q and k those that `rotate` returns.

    Args:
      encoding: the scheme, or its spec string.
      q_positions: integers [T] or [*B, T] (floats if the scheme declares `real_positions`), with a
        last axis A if it has several.
      k_positions: the same for the keys, [S] or [*B, S].
      params: its parameters, as `encoding.init(key, dims)` draws; None where it has none.
      dims: sizes of the model.
      x: the layer's input [*B, T, D], whole rows, for schemes that read it (FoX); then T = S.
      embedded: says that `encoding.embed` was called on the input of the first layer.

    Returns:
      Float32 [*B, H, T, S], or [1, H, T, S] without a batch; None where the scheme has no bias.

    Raises:
      ValueError: something in the scheme is neither a rotation nor a bias; shapes, positions or
        parameters that do not fit or are missing.
      TypeError: an argument of another type or dtype.
    """
    require_dims(dims)
    layer, parts = _layer(encoding, dims)
    axes = 1 + (layer.claims.axes > 1)
    pair = q_positions, k_positions
    shapes = [_shape(at, axes) for at in pair]
    counts = queries, keys = [shape[-axes] for shape in shapes]
    batch = max((shape[:-axes] for shape in shapes), key=len)
    if x is not None:
        require_array("x", x, 2)
        batch = x.shape[:-2]
    width = dims.head_dim
    sizes = checks.Sizes(batch, queries, keys, dims.heads, dims.kv_heads, width, width)
    made, places, states = _evaluated(layer, sizes, dims, params, pair, x, embedded)
    if not parts.bias:
        return None
    terms = tuple(filter(_is_bias, made.terms))
    sides = []
    for at, count, of_side in zip(places, counts, pipeline.heads_first(states), strict=True):
        at = at.reshape(-1, *at.shape[-axes:])
        nothing = jnp.zeros((sizes.rows, dims.heads, count, 0), jnp.float32)  # q·k = 0
        own = tuple(s for s, t in zip(of_side, made.terms, strict=True) if _is_bias(t))
        tokens = Tokens(at, jnp.arange(count, dtype=jnp.int32)[None])
        sides.append(Side(nothing, None, own, tokens))
    scores, _ = block.scores(made.spec, terms, *block.prepare(made.spec, terms, *sides))
    return scores.reshape(*(batch or (1,)), *scores.shape[1:])


def _is_bias(term: kinds.Term) -> bool:
    """Whether a term adds to a score what follows from positions and the layer's input alone."""
    return isinstance(term, kinds.ScoreTerm) and not term.reads_raw


def _layer(encoding: Any, dims: Dims | None) -> tuple[Windowed, Parts]:
    """The layer and its parts.

    Raises:
      ValueError: there are others than rotations and biases.
    """
    layer, parts = encoding_checks.layer(encoding, None, 0), decompose(encoding, dims)
    if parts.others:
        names = ", ".join(parts.others)
        raise ValueError(
            f"encoding: {encoding_checks.title(layer)} has {names}: neither a rotation nor a bias;"
            " call pe_jax.attention, or pass an encoding without what your attention does itself"
        )
    return layer, parts


def _shape(positions: Any, axes: int) -> tuple[int, ...]:
    """The shape of positions; the last `axes` are not the batch."""
    shape = jnp.shape(positions)
    require(len(shape) >= axes, "positions", positions, f"pass an array of at least {axes} axes")
    return shape


def _evaluated(
    layer: Windowed, sizes: checks.Sizes, dims: Dims, params: Any, pair: Any, x: Any, embedded: bool
) -> tuple[pipeline.Prepared, list[Any], list[Any]]:
    """The request as `attention` prepares it, positions and states of queries and of keys."""
    for at in pair:
        require(at is not None, "positions", None, "pass those of the tokens, from 0 in a new row")
    places = checks.positions(layer.encoding, sizes, *pair)
    made = pipeline.prepare(
        layer,
        sizes,
        dims,
        params,
        positions=dict(zip(("q_positions", "k_positions"), places, strict=True)),
        segments=None,
        terms=(),
        x=x,
        embedded=embedded,
        causal=True,  # the mask is the caller's
        mask=None,
        tokens=None,
        scale=None,
        logit_cap=None,
    )
    tokens = (*sizes.batch, sizes.queries), (*sizes.batch, sizes.keys)
    return made, places, pipeline.states(made.terms, CONTIGUOUS, made.x, places, tokens, dims.heads)
