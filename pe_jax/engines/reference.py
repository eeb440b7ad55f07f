"""The dense engine: one block with every term's definition; other engines are tested against it.

Heads lead here and in every engine: q [B, H, T, E], k [B, K, S, E], v [B, K, S, F]; each of the K
key heads serves H/K query heads. An engine is a function `attend(spec, terms, q, k, v)` that
returns the output, float32 [B, H, T, F], and the logarithm of each row's sum of exponentials,
float32 [B, H, T, 1]; a row that sees nothing gets zeros and `LOWEST`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Side
from pe_jax.engines import block
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.block import LOWEST

LEAST = jnp.finfo(jnp.float32).min  # finite, for `jax_debug_infs`


def scores(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    pairs: Any = None,
    bias: Any = None,
    lines: Any = None,
) -> jax.Array:
    """The scores of all pairs before the mask: float32 [B, H, T, S].

    Args:
      spec: the sizes and options.
      terms: what the encoding adds.
      q: the queries.
      k: the keys.
      pairs: which pairs are visible, bool [B or 1, H or 1, T, S]; read by sums along rows.
      bias: a further bias, or None.
      lines: as in `block.scores`.
    """
    block.require_known(terms, "the dense engine")
    q, k = block.prepare(spec, terms, q, k)
    before = block.start_of_rows(terms, q.x.shape[:3])
    return block.scores(spec, terms, q, k, pairs, lines=lines, bias=bias, before=before)[0]


@functools.partial(jax.jit, inline=True)  # outside of jit one program, not fifteen
def softmax(s: jax.Array, pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The weights of scores [B, H, T, S] where `pairs` are visible, and the log-sum-exp of rows."""
    s = jnp.where(pairs, s, LEAST)
    top = jnp.maximum(jax.lax.stop_gradient(jnp.max(s, axis=-1, keepdims=True)), LEAST)
    e = jnp.where(pairs, jnp.exp(s - top), 0)
    total = e.sum(-1, keepdims=True)
    safe = jnp.where(total > 0, total, 1)
    return e / safe, jnp.where(total > 0, top + jnp.log(safe), LOWEST)


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    dropout: Any = None,
    change: Callable[[jax.Array], jax.Array] | None = None,
    lines: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """Output and log-sum-exp with all scores in memory; shapes as at the head of this file.

    Only this engine takes matrices, which broadcast to [B, H, T, S]: `mask` (bool) hides more than
    `spec` does, `bias` is added to the scores and hides where it is -inf. `change` maps the weights
    [B, H, T, S] before they average the values: dropout of another library. `lines` are as in
    `block.scores`, for one token and a cache.
    """
    # Outside of jit one program, except where a term may look at positions, or `change` record.
    run = _compiled if spec.contiguous and change is None else _attend
    return run(spec, terms, q, k, v, mask, bias, dropout, change, lines)


def _attend(spec, terms, q, k, v, mask, bias, dropout, change, lines):
    pairs = block.visible(spec, terms, q.tokens, k.tokens)
    pairs = pairs if mask is None else pairs & mask
    if bias is not None:  # a cap would make -inf finite
        bias = bias.astype(jnp.float32)
        hidden = bias < LEAST
        pairs, bias = pairs & ~hidden, jnp.where(hidden, 0, bias)
    weights, lse = softmax(scores(spec, terms, q, k, pairs, bias, lines), pairs)
    if dropout is not None:
        weights = weights * dropout.factors(q.tokens, k.tokens)
    weights = weights if change is None else change(weights)
    return block.values(terms, weights, q.tokens, k.tokens, v, lines=lines), lse


_compiled = jax.jit(_attend, static_argnums=(0, 8), inline=True)
