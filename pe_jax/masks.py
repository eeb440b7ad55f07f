"""Masks as functions of tokens, for `attention(…, mask=…)`: no T×S array is held.

Each gives a `pe_jax.Mask`; write another as `pe_jax.Mask(f, arrays)`, where f(arrays, q, k) reads
the indices of queries and keys and gives booleans [B or 1, T, S]. What windows, packed documents
and padding hide needs no mask: `window`, `q_segments`. Chunks and prefixes count within each
document (`place`), a tree along the row.

B batch (all batch axes as one), T queries, S keys.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.terms import Mask, Tokens
from pe_jax.numerics.arrays import require_array
from pe_jax.numerics.position_arrays import as_positions, concrete
from pe_jax.numerics.products import einsum
from pe_jax.validation import is_int, require

QUERIES = 32  # whose scores an indexer holds at a time
HIDDEN = np.finfo(np.float32).min  # the score of a key that is hidden
NONE = np.int32(2**31 - 1)  # the index of no token


def place(tokens: Tokens) -> jax.Array:
    """The index of each token within its document, or its row without documents: [B or 1, T]."""
    return tokens.index if tokens.rank is None else tokens.rank


def prefix(lengths: Any) -> Mask:
    """Prefix LM: all tokens see the first ones, which see each other; the others are causal.

    UniLM (arXiv 1905.03197), T5 (arXiv 1910.10683, §3.2.1).

    Args:
      lengths: tokens in the prefix of each row, or of each document in it, integers [B] or [].

    Raises:
      ValueError: a known length below 0; another number of axes.
      TypeError: lengths that are not integers.
    """
    lengths = as_positions(lengths, name="lengths")
    require(lengths.ndim < 2, "lengths", lengths.shape, "pass integers [B] or []")
    values = concrete(lengths)
    if values is not None and values.size:
        require(values.min() >= 0, "lengths", values.min(), "pass integers of at least 0")
    return Mask(_prefix, jnp.atleast_1d(lengths), looks_ahead=True)


def _prefix(lengths: jax.Array, q: Tokens, k: Tokens) -> jax.Array:
    rows, columns = place(q)[:, :, None], place(k)[:, None, :]
    return (columns < lengths[:, None, None]) | (columns <= rows)


def tree(parents: Any) -> Mask:
    """A tree of drafts: each token sees itself and its ancestors (SpecInfer, arXiv 2305.09781).

    Args:
      parents: the index of each token's parent, known integers [T]; -1 for a root.

    Raises:
      ValueError: a parent that is not a token, or does not come before its child.
    """
    parents = np.asarray(parents)
    ok = parents.ndim == 1 and np.issubdtype(parents.dtype, np.integer)
    require(ok, "parents", parents.shape, "pass integers [T], as np.asarray([-1, 0, 0])")
    valid = (parents >= -1) & (parents < np.arange(len(parents)))
    require(bool(valid.all()), "parents", parents.tolist(), "a parent comes before its child")
    sizes = np.ones(len(parents), np.int32)
    for token, parent in reversed([*enumerate(parents)]):
        if parent >= 0:
            sizes[parent] += sizes[token]
    first, next_free = np.zeros(len(parents), np.int32), {-1: 0}
    for token, parent in enumerate(parents):  # indices in depth-first order
        first[token] = next_free[int(parent)]
        next_free[int(parent)] += int(sizes[token])
        next_free[token] = int(first[token]) + 1
    spans = jnp.asarray(np.stack([first, first + sizes], axis=-1)[None])
    return Mask(_tree, spans, length=len(parents))


def _tree(spans: jax.Array, q: Tokens, k: Tokens) -> jax.Array:
    """`spans` [1, T, 2]: where a token's subtree begins and ends in depth-first order."""
    rows, columns = (jnp.take(spans[0], x.index, axis=0) for x in (q, k))
    index = rows[:, :, None, 0]
    return (columns[:, None, :, 0] <= index) & (index < columns[:, None, :, 1])


def chunks(size: int) -> Mask:
    """Causal attention within chunks of `size` tokens (Llama 4's local layers)."""
    require(is_int(size, 1), "size", size, "pass an integer of at least 1")
    return Mask(Chunks(int(size)).visible)


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Runs of `size` tokens that see no other run."""

    size: int

    def visible(self, _, q: Tokens, k: Tokens) -> jax.Array:
        """Which pairs are visible: bool [B or 1, T, S]."""
        rows, columns = place(q)[:, :, None], place(k)[:, None, :]
        return (rows // self.size == columns // self.size) & (rows >= columns)


def best_keys(
    q: jax.Array,
    k: jax.Array,
    weights: jax.Array,
    count: int,
    *,
    rope: RoPE | None = None,
    positions: Any = None,
    segments: Any = None,
) -> Mask:
    """The keys that a lightning indexer selects: those with the greatest I of the keys before.

        I_ts = Σ_h w_th ReLU(q_th·k_s)

    DeepSeek Sparse Attention (DeepSeek-V3.2, GLM-5; arXiv 2512.02556, §2.1). The first channels of
    q and k turn: in halves in DeepSeek-V3.2, interleaved in GLM-5, whatever the layout of the
    attention beside it (which is interleaved in both). `pe_jax.hf.encodings` says which, as
    `LayerEncoding.indexer`. Of equal scores the first tokens are selected; nothing has a gradient.

    Args:
      q: floats [B, T, H, E], not rotated, of the last T of the S tokens.
      k: [B, S, E], after its norm; one head, not rotated.
      weights: [B, T, H]; factors that all have in common change nothing.
      count: how many keys each query sees, if there are so many before it, itself included.
      rope: the rotation of q and k, of E channels; None: none.
      positions: integers [S] or [B, S]; None: contiguous.
      segments: ids [S] or [B, S] of documents, negative for padding, as in `attention`; None: one
        each.

    Raises:
      ValueError: shapes that do not fit; a count below 1; a rotation that is no RoPE or needs a
        length.
      TypeError: q, k or weights that are not arrays of floats.
    """
    for name, x in {"q": q, "k": k, "weights": weights}.items():
        require_array(name, x)
    fits = q.ndim == 4 and weights.shape == q.shape[:3]
    require(fits, "weights", weights.shape, f"q has shape {list(q.shape)}: pass [B, T, H]")
    batch, queries, _, width = q.shape
    fits = k.ndim == 3 and (k.shape[0], k.shape[2]) == (batch, width) and k.shape[1] >= queries
    require(fits, "k", k.shape, f"pass [{batch}, S, {width}] with S of at least {queries}")
    require(is_int(count, 1), "count", count, "pass an integer of at least 1")
    require(rope is None or type(rope) is RoPE, "rope", rope, "pass a RoPE, or None")
    keys = k.shape[1]
    for name, x in {"positions": positions, "segments": segments}.items():
        shape = (keys,) if x is None else np.shape(x)
        fix = f"pass those of all keys, [{keys}] or [{batch}, {keys}]"
        require(shape in ((keys,), (1, keys), (batch, keys)), name, shape, fix)
    index = jnp.arange(keys, dtype=jnp.int32)
    if rope is not None:
        at = index if positions is None else as_positions(positions)
        q = rope.rotate(None, q, at[..., keys - queries :])
        k = rope.rotate(None, k[:, :, None], at)[:, :, 0]
    ids = as_positions(np.zeros(keys, int) if segments is None else segments)
    ids = jnp.atleast_2d(ids)
    in_float32 = functools.partial(einsum, preferred_element_type=jnp.float32)

    def of_query(query):  # [B, H, E], [B, H], [], [B or 1] → [B, n]
        q, weights, at, own = query
        scores = jax.nn.relu(in_float32("bhe,bse->bhs", q, k))
        scores = in_float32("bh,bhs->bs", weights, scores)
        visible = (index[None] <= at) & (ids == own[:, None]) & (ids >= 0)
        best, chosen = jax.lax.top_k(jnp.where(visible, scores, HIDDEN), min(count, keys))
        return jnp.sort(jnp.where(best > HIDDEN, chosen, NONE), axis=-1)

    last = index[keys - queries :], ids[:, keys - queries :].T
    moved = jnp.moveaxis(q, 1, 0), jnp.moveaxis(weights.astype(jnp.float32), 1, 0)
    chosen = jax.lax.map(of_query, (*moved, *last), batch_size=QUERIES)
    return Mask(Selected(keys - queries).visible, jnp.moveaxis(chosen, 0, 1), length=keys)


@dataclasses.dataclass(frozen=True)
class Selected:
    """For each query the keys that it sees, from the query with index `first` on."""

    first: int

    def visible(self, chosen: jax.Array, q: Tokens, k: Tokens) -> jax.Array:
        """Which pairs are visible, bool [B, T, S], by the `chosen` indices [B, T, n], rising."""
        rows, index = (x.index if x.row is None else x.row for x in (q, k))
        rows = jnp.broadcast_to(rows - self.first, (chosen.shape[0], rows.shape[1]))
        chosen = jnp.take_along_axis(chosen, rows[..., None], 1, mode="clip")
        index = jnp.broadcast_to(index, (chosen.shape[0], index.shape[1]))
        place = jax.vmap(jax.vmap(jnp.searchsorted, (0, None)))(chosen, index)
        found = jnp.take_along_axis(chosen, place, 2, mode="clip")
        return found == index[:, None]
