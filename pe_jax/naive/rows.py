"""What the naive forms share: a row of tokens, dot products, the softmax."""

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray


class Row(NamedTuple):
    """One row of tokens, as `make_row` makes it: all that a scheme may read."""

    q: Array  # queries [H, T, E]
    k: Array  # keys [H, T, E]
    positions: Array  # [T], or [T, A] of several axes
    x: Any = None  # the layer's input [T, D], for schemes that read it
    causal: bool = True  # whether a query sees no later key. Sums along the row read it
    shared: int = 1  # how many query heads each key head serves

    @property
    def distance(self) -> Array:
        """`q_pos - k_pos` of all pairs, positive where the key is behind: [T, T] or [T, T, A]."""
        return self.positions[:, None] - self.positions[None]


def make_row(q, k, positions=None, x=None, causal: bool = True) -> Row:
    """The row of q [T, H, E] and k [T, K, E], in float64; each key head serves H/K query heads.

    Positions are 0, 1, 2, … unless they are given.
    """
    q, k = (np.moveaxis(np.asarray(y, np.float64), 1, 0) for y in (q, k))
    positions = np.arange(q.shape[1]) if positions is None else np.asarray(positions)
    x, shared = None if x is None else np.asarray(x, np.float64), len(q) // len(k)
    return Row(q, np.repeat(k, shared, axis=0), positions, x, causal, shared)


def products(row: Row, scale: float | None = None) -> Array:
    """q·k times `scale`, by default 1/sqrt(E): [H, T, T]. NoPE: arXiv 2305.19466."""
    scale = row.q.shape[-1] ** -0.5 if scale is None else scale
    return scale * np.einsum("hte,hse->hts", row.q, row.k)


def exponentials(scores: Array, causal: bool) -> Array:
    """exp(score) [..., T, T]; if `causal`, keys after the query get 0."""
    return np.exp(scores) * (np.tri(*scores.shape[-2:]) if causal else 1)


def softmax(scores: Array, causal: bool, sink: Array | None = None) -> Array:
    """The weights of scores [..., T, T]; if `causal`, keys after the query get none.

    A `sink` [..., T or 1] is one more logit of each row, whose weight is left out.
    """
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - top)
    return e / (e.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink[..., None] - top)))


def inside(index: Array, length: int) -> Array:
    """The index of a table; IndexError outside of it (NumPy counts negative ones from the end)."""
    if not ((index >= 0) & (index <= length - 1)).all():
        raise IndexError(f"{index.min()} … {index.max()}: the table has 0 … {length - 1}")
    return index


def sigmoid(x: Array) -> Array:
    """1/(1 + e^-x)."""
    return 1 / (1 + np.exp(-x))
