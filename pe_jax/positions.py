"""Positions of tokens: counted, drawn, or those of `image_positions`.

Positions say where a token is; what it may attend to is decided by token indices and segments
(`pe_jax.engines.mask`), never by positions, which may repeat or run backwards. Schemes that change
the positions themselves are therefore functions here, and combine with every encoding:
`randomized`, `pose`, `random_floats`, `shifted`, `cape`, `augmented` draw from a key, `bilevel`
counts in the text (`pe_jax.position_schemes` has them under the names that configs use). `grid`,
`cameras`, `multimodal` and others of images are in `pe_jax.image_positions`, and here too.
B batch, T tokens. A position of several axes has them last: (row, column), (time, row, column).
"""

import functools
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from pe_jax.image_positions import cameras as cameras
from pe_jax.image_positions import circle as circle
from pe_jax.image_positions import grid as grid
from pe_jax.image_positions import multimodal as multimodal
from pe_jax.image_positions import rays as rays
from pe_jax.image_positions import resized as resized
from pe_jax.image_positions import v2pe as v2pe
from pe_jax.numerics.arrays import require_key
from pe_jax.numerics.position_arrays import EXACT, as_positions
from pe_jax.validation import is_int, is_real, python_ints, require


@python_ints
def contiguous(length: int, offset: int | jax.Array = 0) -> jax.Array:
    """`offset, offset + 1, …`: int32 [length]. Decoding passes the number of tokens before.

    Raises:
      ValueError: `length` is not an integer of at least 0.
      TypeError: `offset` is not an integer.
    """
    ok = is_int(length, 0) or jax.export.is_symbolic_dim(length)
    require(ok, "length", length, "pass an integer of at least 0")
    index = jnp.arange(length, dtype=jnp.int32)
    return (
        index if type(offset) is int and not offset else index + as_positions(offset, name="offset")
    )


def per_segment(segments) -> jax.Array:
    """Positions that restart at 0 in each run of equal segment ids: int32 [*B, T]."""
    segments = as_positions(segments, name="segments")
    require(segments.ndim > 0, "segments", segments.shape, "pass ids [*B, T]")
    index = jnp.broadcast_to(contiguous(segments.shape[-1]), segments.shape)
    return index - jax.lax.cummax(jnp.where(_begins(segments), index, 0), axis=segments.ndim - 1)


def since_first(segments) -> jax.Array:
    """Positions from the first token of each segment id: int32 [*B, T].

    Distances within a segment are those of the row, also where documents come in turns; elsewhere
    these are the positions of `per_segment`.
    """
    segments = as_positions(segments, name="segments")
    rows = segments.reshape(-1, segments.shape[-1])
    index = jnp.broadcast_to(contiguous(rows.shape[-1]), rows.shape)
    ids = jnp.where(rows < 0, jnp.iinfo(jnp.int32).max, rows)  # padding sees nothing
    found = jax.lax.cond(
        (ids[:, 1:] >= ids[:, :-1]).all(),
        per_segment,
        lambda rows: rank_of(index, rows, index, rows),
        rows,
    )
    return found.reshape(segments.shape)


def rank_of(index, segments, k_index, k_segments) -> jax.Array:
    """How far each token is from the first key of its segment: int32 [B, T].

    Args:
      index: of the tokens in their row, int32 [B or 1, T].
      segments: their ids [B, T].
      k_index: those of the keys, int32 [B or 1, S].
      k_segments: their ids [B, S].
    """

    @jax.vmap
    def of_row(index, ids, k_index, k_ids):
        order = jnp.lexsort((k_index, k_ids))
        first = jnp.searchsorted(k_ids[order], ids, method="sort")
        return index - k_index[order[jnp.minimum(first, len(k_ids) - 1)]]

    index = jnp.broadcast_to(index, segments.shape)
    return of_row(index, segments, jnp.broadcast_to(k_index, k_segments.shape), k_segments)


def document_lengths(segments, k_segments) -> jax.Array:
    """How many tokens each token's document has, on the side that has more: int32 [*B, T].

    Args:
      segments: ids of documents [*B, T]; for padding (a negative id) the result is undefined.
      k_segments: those of the other side, [*B, S].
    """

    @functools.partial(jnp.vectorize, signature="(t),(s)->(t)")
    def of_row(ids, k_ids):
        counts, k_counts = (
            jnp.searchsorted(row, ids, side="right", method="sort")
            - jnp.searchsorted(row, ids, method="sort")
            for row in (jnp.sort(ids), jnp.sort(k_ids))
        )
        return jnp.maximum(counts, k_counts)

    return of_row(segments, k_segments)


def _begins(segments: jax.Array) -> jax.Array:
    """Whether a run of equal ids begins at each token, except the first one: bool [*B, T]."""
    return jnp.concatenate(
        [jnp.zeros_like(segments[..., :1], bool), segments[..., 1:] != segments[..., :-1]], axis=-1
    )


@python_ints
def randomized(key: jax.Array, length: int, maximum: int, segments=None) -> jax.Array:
    """`length` of the positions 0 … maximum - 1, drawn without replacement, in order: int32 [T].

    Ruoss et al., "Randomized Positional Encodings", arXiv 2305.16843: all subsets are equally
    likely. Long sequences then have no position that was not trained on short ones.

    Args:
      key: PRNG key of this sequence; `jax.vmap` over keys draws a batch.
      length: T.
      maximum: N, at least the length of the longest sequence.
      segments: ids [T] of documents packed into the sequence: each gets a separate, equally likely
        subset; the subsets of one sequence are disjoint.

    Raises:
      ValueError: `maximum` is below `length`, or either is not an integer of at least 0.
    """
    require(is_int(length, 0), "length", length, "pass an integer of at least 0")
    require(is_int(maximum, length), "maximum", maximum, f"pass at least the length {length}")
    require_key("key", key)
    drawn = jax.random.permutation(key, maximum)[:length].astype(jnp.int32)
    return _in_order(drawn, segments)


def _in_order(drawn: jax.Array, segments) -> jax.Array:
    """Numbers [T], sorted within each run of equal ids [T]; None: all."""
    if segments is None:
        return jnp.sort(drawn)
    shape = np.shape(segments)
    require(shape == drawn.shape, "segments", shape, f"pass ids {list(drawn.shape)}")
    runs = jnp.cumsum(_begins(jnp.asarray(segments)), dtype=jnp.int32)
    return jax.lax.sort((runs, drawn), num_keys=2)[1]


@python_ints
def pose(key: jax.Array, segments, maximum: int, chunks: int = 2) -> jax.Array:
    """Positions of a long text on a short row: i + u_c for token i, in chunk c, of n: int32 [T].

    PoSE: Zhu et al., arXiv 2309.10400. A document of n tokens is cut into `chunks` pieces; u_0 = 0,
    and u_c is uniform on u_(c-1) … maximum - n, so that each piece is contiguous, all distances
    below `maximum` occur, and no position is at or beyond it. Each piece but the last has 1 …
    ⌈n/chunks⌉ tokens, all equally likely, as in the released code for two pieces. Content stays as
    it is: that code also leaves out the text between the pieces (v = u in the paper; here v = 0).

    Traps: `maximum` is the target length, and the encoding's scaling must reach it. Windows count
    tokens: a layer with one sees distances in training that it never sees in tests. A document of
    `maximum` tokens has contiguous positions.

    Args:
      key: PRNG key of this row; `jax.vmap` over keys draws a batch.
      segments: ids [T] of documents packed into the row; each is cut and moved separately.
      maximum: the target length, at least T.
      chunks: pieces of each document, at least 2.

    Raises:
      ValueError: `maximum` is below T, or `chunks` below 2; segments that are not [T].
    """
    ids = as_positions(segments, name="segments")
    require(ids.ndim == 1, "segments", ids.shape, "pass ids [T]")
    length = len(ids)
    require(is_int(maximum, length), "maximum", maximum, f"pass at least the length {length}")
    require(is_int(chunks, 2), "chunks", chunks, "pass an integer of at least 2")
    require_key("key", key)
    places, runs = per_segment(ids), jnp.cumsum(_begins(ids), dtype=jnp.int32)
    count = jnp.zeros(length, jnp.int32).at[runs].add(1)  # of tokens, by the number of the document
    longest = jnp.maximum(-(-count // chunks), 1)
    cut, skip, moved = (jnp.zeros(length, jnp.int32) for _ in range(3))
    for piece_key in jax.random.split(key, chunks - 1):
        cut_key, skip_key = jax.random.split(piece_key)
        cut += jax.random.randint(cut_key, (length,), 1, longest + 1)
        skip = jax.random.randint(skip_key, (length,), skip, maximum - count + 1)
        moved = jnp.where(places >= cut[runs], skip[runs], moved)
    return places + moved


@python_ints
def random_floats(key: jax.Array, length: int, maximum: float, segments=None) -> jax.Array:
    """`length` numbers drawn uniformly from [0, maximum), in order: float32 [T].

    Random Float Sampling: Shimizu et al., arXiv 2602.14050, whose range is [0, 1). Tests then take
    `evenly_spaced` positions of the same range.

    Args:
      key: PRNG key of this sequence; `jax.vmap` over keys draws a batch.
      length: T.
      maximum: the end of the range, above 0.
      segments: ids [T] of documents packed into the sequence: each has positions in order.

    Raises:
      ValueError: a negative `length`, or a `maximum` that is not a finite number above 0.
    """
    require(is_int(length, 0), "length", length, "pass an integer of at least 0")
    check_range(maximum)
    require_key("key", key)
    return _in_order(jax.random.uniform(key, (length,), jnp.float32, 0, maximum), segments)


@python_ints
def evenly_spaced(segments, trained_length: int, maximum: float) -> jax.Array:
    """(i + 1/2)·maximum/max(trained_length, n) for token i of a document of n: float32 [*B, T].

    Where `random_floats` was the scheme in training (arXiv 2602.14050): longer documents lie closer
    together in the same range. Positions would move while a document grows, token by token: decode
    with the final length.

    Args:
      segments: ids [*B, T] of documents packed into rows.
      trained_length: tokens of the longest document in training.
      maximum: the end of the range, above 0.

    Raises:
      ValueError: `trained_length` is not an integer of at least 1; a `maximum` that is not a finite
        number above 0; segments without an axis, or that do not fit int32.
      TypeError: segments that are not integers.
    """
    require(is_int(trained_length, 1), "trained_length", trained_length, "pass at least 1")
    check_range(maximum)
    segments = as_positions(segments, name="segments")
    places = (per_segment(segments).astype(jnp.float32) + 0.5) * float(maximum)
    longest = jnp.maximum(document_lengths(segments, segments), trained_length)
    return places / longest.astype(jnp.float32)


def check_range(maximum: float) -> None:
    """Raises ValueError unless `maximum` is above 0 and float32 holds halves up to it."""
    ok = is_real(maximum) and 0 < maximum <= EXACT / 2
    require(ok, "maximum", maximum, "pass a number above 0 and at most 2**23")


@python_ints
def shifted(key: jax.Array, positions, maximum: int) -> jax.Array:
    """All positions plus one shift drawn uniformly from 0 … maximum (inclusive); same shape.

    SHAPE: Kiyono et al., arXiv 2109.05644 (there maximum K = 500). Distances do not change.

    Raises:
      ValueError: `maximum` is not an integer of at least 0.
    """
    require(is_int(maximum, 0), "maximum", maximum, "pass an integer of at least 0")
    require_key("key", key)
    positions = as_positions(positions, real=True)
    move = jax.random.randint(key, (), 0, maximum + 1, jnp.int32)
    return positions + move.astype(positions.dtype)


def cape(
    key: jax.Array,
    positions,
    global_shift: float = 5.0,
    local_shift: float = 0.5,
    scaling: float = 1.03,
) -> jax.Array:
    """λ·(p_i + Δ + ε_i): float32, the shape of `positions`.

    CAPE: Likhomanenko et al., arXiv 2106.03143. One Δ ~ U(-global_shift, global_shift) and
    one ln λ ~ U(-ln scaling, ln scaling) for all positions, ε_i ~ U(-local_shift, local_shift) for
    each. Up to a local shift of 0.5, neighbours keep their order. The defaults are the paper's for
    text; for sound and images it also centres the positions first.

    Raises:
      ValueError: a negative shift, or `scaling` below 1, or a value that is not finite.
    """
    check_cape(global_shift, local_shift, scaling)
    require_key("key", key)
    positions = as_positions(positions, real=True).astype(jnp.float32)
    keys = jax.random.split(key, 3)

    def uniform(key, limit, shape=()):
        return jax.random.uniform(key, shape, jnp.float32, -limit, limit)

    shifted_positions = positions + uniform(keys[0], global_shift)
    shifted_positions += uniform(keys[1], local_shift, positions.shape)
    return jnp.exp(uniform(keys[2], float(np.log(scaling)))) * shifted_positions


def check_cape(global_shift: float, local_shift: float, scaling: float) -> None:
    """Raises ValueError for a negative shift, a scaling below 1, or a value that is not finite."""
    _check_least(0, global_shift=global_shift, local_shift=local_shift)
    _check_least(1, scaling=scaling)


def _check_least(low: int, **values: Any) -> None:
    for name, value in values.items():
        ok = is_real(value) and value >= low
        require(ok, name, value, f"pass a finite number of at least {low}")


def augmented(
    key: jax.Array, positions, shift: float = 0.0, jitter: float = 1.0, rescale: float = 1.0
) -> jax.Array:
    """(p + s)·j·r of positions on several axes [..., A], as DINOv3 trains: float32, the same shape.

    Siméoni et al., "DINOv3", arXiv 2508.10104 (released code): one s ~ U(-shift, shift) and one
    ln j ~ U(-ln jitter, ln jitter) for each axis, and one ln r ~ U(-ln rescale, ln rescale) for
    all. The released models were trained with rescale=2 on `grid(…, normalized=True)`, and tested
    without. A shift also moves tokens in front of the grid: augment the grid, then add them.

    Args:
      key: PRNG key of one draw; `jax.vmap` over keys augments each image separately.
      positions: [..., A]; `shift` is in their unit, the other two have none.
      shift: at least 0; 0 disables it.
      jitter: at least 1; 1 disables it.
      rescale: at least 1; 1 disables it.

    Raises:
      ValueError: a negative shift, `jitter` or `rescale` below 1, or a value that is not finite;
        positions without an axis.
    """
    _check_least(0, shift=shift)
    _check_least(1, jitter=jitter, rescale=rescale)
    require_key("key", key)
    positions = as_positions(positions, real=True).astype(jnp.float32)
    require(positions.ndim > 0, "positions", positions.shape, "pass axes last, [..., A]")
    keys, axes = jax.random.split(key, 3), positions.shape[-1:]

    def uniform(key, limit, shape=axes):
        drawn = jax.random.uniform(key, shape, jnp.float32, -limit, limit)
        return jax.lax.broadcast_to_rank(drawn, positions.ndim)

    factors = uniform(keys[1], float(np.log(jitter)))
    factors += uniform(keys[2], float(np.log(rescale)), (1,))
    return (positions + uniform(keys[0], shift)) * jnp.exp(factors)


@python_ints
def bilevel(tokens, separators, segments=None, longest: int | None = None) -> jax.Array:
    """(index of the piece of text, position inside it) of each token: int32 [*B, T, 2].

    BiPE: He et al., arXiv 2401.16421. A separator (a full stop, a line break) is the last
    token of its piece. Both numbers begin at 0.

    Args:
      tokens: ids [*B, T].
      separators: the ids that end a piece.
      segments: ids [*B, T] of documents packed into a row: both numbers restart with each.
      longest: positions are clipped to longest - 1, as in the authors' code, for a table of
        `longest` entries. None disables it.

    Raises:
      ValueError: no separator, or `longest` is not a positive integer.
      TypeError: tokens that are not integers.
    """
    check_bilevel(separators, longest)
    tokens = as_positions(tokens, name="tokens")
    if segments is not None:
        shape = np.shape(segments)
        require(shape == tokens.shape, "segments", shape, f"pass ids {list(tokens.shape)}")
    ended = jnp.isin(tokens, jnp.asarray(separators, tokens.dtype))
    new = jnp.concatenate([jnp.zeros_like(ended[..., :1]), ended[..., :-1]], axis=-1)
    document = jnp.zeros_like(ended) if segments is None else _begins(jnp.asarray(segments))
    count = jnp.cumsum(new & ~document, axis=-1, dtype=jnp.int32)
    before = jax.lax.cummax(jnp.where(document, count, 0), axis=tokens.ndim - 1)
    inner = per_segment(jnp.cumsum(new | document, axis=-1, dtype=jnp.int32))
    inner = inner if longest is None else jnp.minimum(inner, longest - 1)
    return jnp.stack([count - before, inner], axis=-1)


def check_bilevel(separators, longest: int | None) -> None:
    """Raises ValueError where there is no separator, or `longest` is not a positive integer."""
    ok = isinstance(separators, tuple | list) and len(separators) > 0
    ok = ok and all(is_int(s, 0) for s in separators)
    require(ok, "separators", separators, "pass the token ids that end a piece of text")
    ok = longest is None or is_int(longest, 1)
    require(ok, "longest", longest, "pass an integer of at least 1, or None")
