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

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.numerics.arrays import fit, repeat_heads

NEGLIGIBLE = -30.0  # a key whose score is so far below another's has a weight below 2⁻⁴³


def can_skip(spec: AttentionSpec, terms: tuple) -> bool:
    """Whether negligible tiles can be found: not where a term may hide a query's own key."""
    inside = kinds.inside(terms)
    decay = bool(inside) and all(isinstance(t, kinds.ScoreTerm) and t.decays for t in inside)
    placed = spec.contiguous or not kinds.select(terms, kinds.ByDistance)
    plain = kinds.views(terms) is None and spec.logit_cap is None
    return decay and placed and plain and spec.aligned


def can_stop(spec: AttentionSpec, terms: tuple) -> bool:
    """Whether a row can end where a sum along it makes all further keys negligible.

    Far keys are compared with the scores of visible pairs, so terms may hide some pairs.
    """
    inside = [term for term in kinds.inside(terms) if not isinstance(term, kinds.Mask)]
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


def negligible_tiles(plan: Any, operands: Any, fixed: Any) -> jax.Array:
    """Tiles whose keys are all negligible against the query's own: bool [q_blocks, k_blocks]."""
    grid, scale, q = plan.grid, plan.spec.scale_of(operands.terms), operands.q.x
    excess = largest_product(q, operands.k.x, scale) - fixed.own_scores
    excess = excess.reshape(*q.shape[:2], grid.q_blocks, -1).max(-1)
    first_q = grid.rows * jnp.arange(grid.q_blocks, dtype=jnp.int32)[:, None]
    first_k = grid.columns * jnp.arange(grid.k_blocks, dtype=jnp.int32)[None]
    gap = first_q - first_k + (0 if fixed.base is None else fixed.base)
    behind, ahead = gap - (grid.columns - 1), gap + grid.rows - 1
    most = excess[..., None]
    for term, *states in zip(operands.terms, operands.q.states, operands.k.states, strict=True):
        if isinstance(term, kinds.Outside):
            continue
        (first, last), (k_first, k_last) = (
            _ends(x, size) for x, size in zip(states, (grid.rows, grid.columns), strict=True)
        )
        past, future = term.bound(behind, (first, k_last)), term.bound(ahead, (last, k_first))
        most = most + jnp.where(behind > 0, past, jnp.where(ahead < 0, future, 0))
    return (most < NEGLIGIBLE).all((0, 1))


def _ends(x: Any, size: int) -> tuple[Any, Any]:
    """The states of the first and the last token of each block, [b, h, blocks, C]; or None."""
    return (None, None) if x is None else (x[:, :, ::size], x[:, :, size - 1 :: size])
