"""Masks as functions of tokens, for `attention(…, mask=…)`: no T×S array is held.

Each gives a `pe_jax.Mask`; write another as `pe_jax.Mask(f, arrays)`, where f(arrays, q, k) reads
the indices of queries and keys and gives booleans [B or 1, T, S]. What windows, packed documents
and padding hide needs no mask: `window`, `q_segments`. Chunks and prefixes count within each
document (`place`), a tree along the row.

B batch (all batch axes as one), T queries, S keys.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.terms import Mask, Tokens
from pe_jax.numerics.position_arrays import as_positions, concrete
from pe_jax.validation import is_int, require


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
