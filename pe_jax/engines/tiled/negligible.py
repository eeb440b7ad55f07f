"""Tiles that a decaying bias makes negligible are left out.

As q·k ≤ |q|·max|k|, every score of a tile has a bound; where it is far below the score of each
query's own key, the tile changes nothing. It is known where biases that decay are all that is added
to q·k and each query sees its own key.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import DistanceFormula, ScoreTerm, Tokens, repeat_heads, select
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.tiled.grid import Grid
from pe_jax.engines.tiled.ways import add_up
from pe_jax.numerics.arrays import fit

NEGLIGIBLE = -30.0  # a key whose score is so far below another's has a weight below 2⁻⁴³


def can_skip(spec: AttentionSpec, terms: tuple) -> bool:
    """Whether negligible tiles can be told."""
    biases = select(terms, ScoreTerm, kinds.RelativeValues, kinds.LogitCap, kinds.Mask)
    decay = bool(biases) and all(type(term) is DistanceFormula and term.decays for term in biases)
    return decay and spec.aligned and spec.contiguous and kinds.views(terms) is None


def own_scores(q: jax.Array, k: jax.Array, scale: float) -> jax.Array:
    """The score of each query [B, H, T, E] and its own key: float32 [B, H, T, 1]."""
    q, k = (jax.lax.stop_gradient(x).astype(jnp.float32) for x in (q, k))
    k = fit(repeat_heads(k, q.shape[1]), 2, q.shape[2])
    return scale * (q * k).sum(-1, keepdims=True)


def max_bias(grid: Grid, formulas: list[DistanceFormula], q: Tokens, k: Tokens) -> jax.Array:
    """The most that a tile's bias exceeds that of distance 0 by: [H, q_blocks, k_blocks]."""
    rows = jnp.arange(grid.q_blocks, dtype=jnp.int32)
    low, high = jax.vmap(lambda i: grid.distances(q, k, i))(rows)
    nearest = jnp.where(low > 0, low, jnp.minimum(high, 0))
    zero = jnp.zeros((1, 1), jnp.int32)
    return jax.lax.stop_gradient(add_up(term.at(nearest) - term.at(zero) for term in formulas))


def negligible_tiles(
    grid: Grid, q: jax.Array, k: jax.Array, own: jax.Array, max_bias: Any, scale: float
) -> jax.Array:
    """Tiles in which each key is negligible beside the query's own: bool [q_blocks, k_blocks]."""
    q, k = (jnp.linalg.norm(x.astype(jnp.float32), axis=-1) for x in (q, k))
    longest = repeat_heads(k.max(-1, keepdims=True), q.shape[1])
    over = scale * q * longest - own[..., 0]
    over = over.reshape(*over.shape[:2], grid.q_blocks, -1).max((0, 3))
    return (over[..., None] + max_bias < NEGLIGIBLE).all(0)
