"""The dense engine: every formula in full, one T×S matrix per head; others are tested against it.

Heads lead here and in every engine: q [B, H, T, E], k [B, K, S, E], v [B, K, S, F]; each of the K
key heads serves H/K query heads. An engine is a function `attend(spec, terms, q, k, v)` that
returns the output, float32 [B, H, T, F], and the logarithm of each row's sum of exponentials,
float32 [B, H, T, 1]; a row that sees nothing gets zeros and `LOWEST`. Where weights are dropped, it
is also given `dropout=`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import (
    RelativeValues,
    RowRescore,
    RowSum,
    ScoreTerm,
    Side,
    repeat_heads,
    select,
)
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.dropout import Dropout

LOWEST = -1e30  # below any score; finite, so that differences are never NaN
# base classes and kinds that this engine takes
TERMS = (
    *(ScoreTerm, RelativeValues, RowSum, RowRescore, kinds.ChannelDecay),
    *(kinds.PathProduct, kinds.Mask),
)


def products(terms: tuple, q: Side, k: Side) -> jax.Array:
    """q·k after rotations, in the view that scores each pair, or faded: [B, H, T, S]."""
    place = kinds.decay(terms)
    if place is not None:
        return terms[place].products(q, k, (q.states[place], k.states[place]))
    views = kinds.views(terms)
    if views is None:
        return multiply(q.x, k.x)
    of_queries = jnp.split(q.x, views.count, axis=-1)
    of_keys = [k.x] * views.count if views.shared_keys else jnp.split(k.x, views.count, axis=-1)
    view = views.of(q.tokens.positions[:, :, None], k.tokens.positions[:, None])[:, None]
    scores = multiply(of_queries[0], of_keys[0])
    for n in range(1, views.count):
        scores = jnp.where(view == n, multiply(of_queries[n], of_keys[n]), scores)
    return scores


def multiply(q: jax.Array, k: jax.Array) -> jax.Array:
    """[B, H, T, E] and [B, K, S, E]: float32 [B, H, T, S]."""
    k = repeat_heads(k, q.shape[1])
    return jnp.einsum("bhte,bhse->bhts", q, k, preferred_element_type=jnp.float32)


def scores(
    spec: AttentionSpec, terms: tuple, q: Side, k: Side, seen: Any = None, more: Any = None
) -> jax.Array:
    """The scores of all pairs before the mask: float32 [B, H, T, S].

    Args:
      spec: the sizes.
      terms: what the encoding adds.
      q: the queries.
      k: the keys.
      seen: bool [B or 1, H or 1, T, S], what the mask shows; read by `RowSum`s and `RowRescore`s.
      more: a bias that is added too, or None.
    """
    kinds.check_known(terms, TERMS, "the dense engine")
    scale = spec.scale_of(terms)
    paths = [n for n, term in enumerate(terms) if isinstance(term, kinds.PathProduct)]
    s, bias = products(terms, q, k), 0.0 if more is None else more
    for n in paths:
        s = terms[n].products(q, k, (q.states[n], k.states[n]))
    content = scale * s
    for term, *states in zip(terms, q.states, k.states, strict=True):
        if isinstance(term, RowSum):
            bias = bias + term.bias(content, q, scale, states, seen)
        elif isinstance(term, ScoreTerm):
            more = term.scores(q, k, states)
            s, bias = (s + more, bias) if term.scaled else (s, bias + more)
    s = s * scale
    if rescores := select(terms, RowRescore):
        bias = jnp.broadcast_to(jnp.asarray(bias, jnp.float32), s.shape)
        raw = scale * q.raw.astype(jnp.float32)
        bias = bias + sum(term.fn(term.arrays, s, bias, raw, seen) for term in rescores)
    s, cap = s + bias, spec.logit_cap
    return s if cap is None else cap * jnp.tanh(s / cap)


def average(weights: jax.Array, v: jax.Array) -> jax.Array:
    """Weights [B, H, T, S] times values [B, K, S, F]: float32 [B, H, T, F]."""
    return jnp.einsum(
        "bhts,bhsf->bhtf",
        weights.astype(v.dtype),
        repeat_heads(v, weights.shape[1]),
        preferred_element_type=jnp.float32,
    )


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    dropout: Dropout | None = None,
    change: Callable[[jax.Array], jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Attention with everything written out: output and log-sum-exp, see the head of this file.

    Only this engine takes what has no form but that of a matrix, of a shape that broadcasts to
    [B, H, T, S]: `mask` (bool) hides more than `spec` does, `bias` is added to the scores. `change`
    maps the weights [B, H, T, S], after `dropout`, before they average the values.
    """
    seen = spec.mask(q.tokens, k.tokens)
    for term in select(terms, kinds.Mask):
        seen = seen & term.shows(q.tokens, k.tokens)
    seen = seen if mask is None else seen & mask
    s = scores(spec, terms, q, k, seen, bias)
    s = jnp.where(seen, s, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(s, axis=-1, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0)
    e = jnp.where(seen, jnp.exp(s - top), 0)
    total = e.sum(-1, keepdims=True)
    safe = jnp.where(total > 0, total, 1)
    lse = jnp.where(total > 0, top + jnp.log(safe), LOWEST)
    weights = e / safe
    if dropout is not None:
        weights = weights * dropout.factors(q.tokens, k.tokens)
    weights = weights if change is None else change(weights)
    out = average(weights, v)
    for term in select(terms, RelativeValues):
        out = out + term.values(weights, q, k)
    return out, lse
