"""Tiles that a decaying bias makes negligible are left out.

As q·k ≤ |q|·max|k|, every score of a tile has a bound; where it is far below the score of each
query's own key, the tile changes nothing. It is known where biases that decay are all that is added
to q·k and each query sees its own key. Biases of distances are told from positions, those of
running sums of the input (FoX; Lin et al., "Adaptive Computation Pruning", arXiv 2504.06949) from
the sums at the nearest two tokens of a tile.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import DistanceFormula, ScoreTerm, Tokens, repeat_heads, select
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.tiled.grid import Grid, ranges
from pe_jax.engines.tiled.ways import add_up
from pe_jax.numerics.arrays import fit

NEGLIGIBLE = -30.0  # a key whose score is so far below another's has a weight below 2⁻⁴³


def can_skip(spec: AttentionSpec, terms: tuple) -> bool:
    """Whether negligible tiles can be told."""
    others = kinds.RowSum, kinds.RelativeValues, kinds.Mask
    biases = select(terms, ScoreTerm, *others)
    known = DistanceFormula, kinds.TokenBias
    decay = bool(biases) and all(type(term) in known and term.decays for term in biases)
    placed = spec.contiguous or not select(terms, DistanceFormula)
    decay &= spec.logit_cap is None
    return decay and spec.aligned and placed and kinds.views(terms) is None


def can_stop(terms: tuple) -> bool:
    """Whether a row can be left where a sum along it makes all further keys negligible."""
    sums = select(terms, kinds.RowSum)
    others = select(terms, ScoreTerm, kinds.RelativeValues)
    return bool(sums) and all(term.decays for term in sums) and not others


def reach(q: jax.Array, k: jax.Array, scale: float) -> jax.Array:
    """What no product of a query [b, h, T, E] and a key exceeds: float32 [b, h, T, 1]."""
    q, k = (jnp.linalg.norm(x.astype(jnp.float32), axis=-1) for x in (q, k))
    longest = repeat_heads(k.max(-1, keepdims=True)[..., None], q.shape[1])
    return scale * q[..., None] * longest


def own_scores(q: jax.Array, k: jax.Array, scale: float) -> jax.Array:
    """The score of each query [B, H, T, E] and its own key: float32 [B, H, T, 1]."""
    q, k = (jax.lax.stop_gradient(x).astype(jnp.float32) for x in (q, k))
    k = fit(repeat_heads(k, q.shape[1]), 2, q.shape[2])
    return scale * (q * k).sum(-1, keepdims=True)


def max_bias(grid: Grid, formulas: list[DistanceFormula], q: Tokens, k: Tokens) -> Any:
    """The most that a tile's bias exceeds that of distance 0 by: [H, q_blocks, k_blocks].

    None where there is no formula.
    """
    if not formulas:
        return None
    rows = jnp.arange(grid.q_blocks, dtype=jnp.int32)
    low, high = jax.vmap(lambda i: grid.distances(q, k, i))(rows)
    nearest = jnp.where(low > 0, low, jnp.minimum(high, 0))
    zero = jnp.zeros((1, 1), jnp.int32)
    return jax.lax.stop_gradient(add_up(term.at(nearest) - term.at(zero) for term in formulas))


def max_token_bias(
    grid: Grid, biases: list[tuple], q: Tokens, k: Tokens, heads: tuple[int, int]
) -> jax.Array:
    """No bias of two tokens' states in a tile exceeds this: [b, h, q_blocks, k_blocks].

    Args:
      grid: the tiles.
      biases: terms that decay, with the states of queries and of keys [b, h, T, C].
      q: the queries' tokens.
      k: the keys'.
      heads: b and h.
    """
    rows, columns = ranges(q.index, grid.q_blocks), ranges(k.index, grid.k_blocks)
    # Of blocks apart the nearest two tokens; padding has the last index, so it is not among them.
    behind = (rows.low[:, None] > columns.high[None])[None, None]
    ahead = (rows.high[:, None] < columns.low[None])[None, None]
    most = jnp.zeros((*heads, grid.q_blocks, grid.k_blocks), jnp.float32)
    for term, *states in biases:
        left, right = jax.lax.stop_gradient(states)
        rows_at, columns_at = _edges(left, grid.q_blocks), _edges(right, grid.k_blocks)
        past = term.scores(None, None, (rows_at[0], columns_at[1]))
        future = term.scores(None, None, (rows_at[1], columns_at[0]))
        most += jnp.where(behind, past, jnp.where(ahead, future, 0))
    return most


def _edges(x: jax.Array, blocks: int) -> tuple[jax.Array, jax.Array]:
    """The first and the last token of each block: [b, h, T, C] → [b, h, blocks, C] each."""
    size = x.shape[2] // blocks
    return x[:, :, ::size], x[:, :, size - 1 :: size]


def negligible_tiles(
    grid: Grid, q: jax.Array, k: jax.Array, own: jax.Array, max_biases: list[Any], scale: float
) -> jax.Array:
    """Tiles in which each key is negligible beside the query's own: bool [q_blocks, k_blocks].

    `max_biases` are bounds of what is added, [b or 1, h, q_blocks, k_blocks].
    """
    over = reach(q, k, scale) - own
    over = over.reshape(*over.shape[:2], grid.q_blocks, -1).max(-1, keepdims=True)
    return (over + add_up(max_biases) < NEGLIGIBLE).all((0, 1))
