"""Tiles that a decaying bias makes negligible are left out.

As q·k ≤ |q|·max|k|, every score of a tile has a bound; where it is far below the score of each
query's own key, the tile changes nothing. The bound holds if only biases that decay are added to
q·k and each query sees its own key. `ScoreTerm.bound` is the most that a bias is in a
tile: for biases of distances at the nearest distance, for running sums of the input (FoX; Lin et
al., "Adaptive Computation Pruning", arXiv 2504.06949) from the sums at the nearest two tokens.

To skip more: give a kind a tighter `bound`, take smaller tiles (`TileSizes`), or raise NEGLIGIBLE
towards 0, which costs accuracy: keys left out have weights below exp(NEGLIGIBLE).

b, h batch and heads of a group, T queries.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.numerics.arrays import fit, repeat_heads

NEGLIGIBLE = -30.0  # a key whose score is so far below another's has a weight below 2⁻⁴³


def can_skip(spec: AttentionSpec, terms: tuple) -> bool:
    """Whether negligible tiles can be found: not where a term may hide a query's own key."""
    inside = kinds.in_engine(terms)
    decay = bool(inside) and all(isinstance(t, kinds.ScoreTerm) and t.decays for t in inside)
    placed = spec.contiguous or not kinds.select(terms, kinds.ByDistance)
    plain = kinds.views(terms) is None and spec.logit_cap is None
    return decay and placed and plain and spec.aligned


def can_stop(spec: AttentionSpec, terms: tuple) -> bool:
    """Whether a row can end where a sum along it makes all further keys negligible.

    Far keys are compared with the scores of visible pairs, so terms may hide some pairs.
    """
    inside = [term for term in kinds.in_engine(terms) if not isinstance(term, kinds.Mask)]
    decay = bool(inside) and all(isinstance(t, kinds.RowTerm) and t.decays for t in inside)
    return decay and kinds.views(terms) is None and spec.logit_cap is None


def largest_product(q: jax.Array, k: jax.Array, scale: float) -> jax.Array:
    """A bound on the products of each query [b, h, T, E] and any key: float32 [b, h, T, 1]."""
    q, k = (jnp.linalg.norm(x.astype(jnp.float32), axis=-1) for x in (q, k))
    longest = repeat_heads(k.max(-1, keepdims=True)[..., None], q.shape[1])
    return scale * q[..., None] * longest


def own_scores(q: jax.Array, k: jax.Array, scale: float) -> jax.Array:
    """The score of each query [B, H, T, E] and its own key: float32 [B, H, T, 1]."""
    q, k = (jax.lax.stop_gradient(x).astype(jnp.float32) for x in (q, k))
    k = fit(repeat_heads(k, q.shape[1]), 2, q.shape[2])
    return scale * (q * k).sum(-1, keepdims=True)


def block_bounds(
    excess: jax.Array, sizes: tuple[int, int], count: int, bound: Callable, base: Any = 0
) -> jax.Array:
    """The most by which scores of a block exceed that of a query's own key: [b, h, blocks, blocks].

    Args:
      excess: of the products of each query over its own score, [b, h, T, 1].
      sizes: queries and keys of a block.
      count: blocks of keys.
      bound: `bound(distance, row, column)`, the most that biases are for tokens `distance`
        [blocks, blocks] apart, the first (0) or the last (-1) of each block of queries and of keys.
      base: the distance of the first query and the first key.
    """
    rows, columns = sizes
    excess = excess.reshape(*excess.shape[:2], -1, rows).max(-1)
    first_q = rows * jnp.arange(excess.shape[2], dtype=jnp.int32)[:, None]
    first_k = columns * jnp.arange(count, dtype=jnp.int32)[None]
    gap = first_q - first_k + base
    behind, ahead = gap - (columns - 1), gap + rows - 1
    past, future = bound(behind, 0, -1), bound(ahead, -1, 0)
    return excess[..., None] + jnp.where(behind > 0, past, jnp.where(ahead < 0, future, 0))


def negligible_tiles(plan: Any, operands: Any, nondiff: Any) -> jax.Array:
    """Tiles whose keys are all negligible against the query's own: bool [q_blocks, k_blocks]."""
    grid, q, k = plan.grid, operands.q, operands.k
    excess = largest_product(q.x, k.x, plan.spec.scale_of(operands.terms)) - nondiff.own_scores

    def bound(distance, row, column):
        bounds = [
            term.bound(distance, (_ends(x, grid.rows, row), _ends(y, grid.columns, column)))
            for term, x, y in zip(operands.terms, q.states, k.states, strict=True)
            if isinstance(term, kinds.ScoreTerm)
        ]
        return functools.reduce(jnp.add, bounds)

    base = 0 if nondiff.base is None else nondiff.base
    most = block_bounds(excess, grid[:2], grid.k_blocks, bound, base)
    return (most < NEGLIGIBLE).all((0, 1))


def _ends(x: Any, size: int, end: int) -> Any:
    """The state of the first (0) or last (-1) token of each block, [b, h, blocks, C]; or None."""
    return None if x is None else x[:, :, end % size :: size]
