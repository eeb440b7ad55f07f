"""Which keys each query may see: by token indices and segment ids, never by positions.

Padding tokens have a negative segment id: they see nothing, and nothing sees them.

Positions may repeat or run backwards (M-RoPE, grouped and shuffled positions); a mask made from
them would leak. B batch, T queries, S keys.
"""

import functools

import jax
import jax.numpy as jnp


# Outside of jit the rule is one program, not ten.
@functools.partial(jax.jit, static_argnames=("causal", "window", "sinks"), inline=True)
def allowed(
    q_index: jax.Array,
    k_index: jax.Array,
    q_segments: jax.Array | None = None,
    k_segments: jax.Array | None = None,
    *,
    causal: bool = True,
    window: int | None = None,
    sinks: int = 0,
    k_rank: jax.Array | None = None,
) -> jax.Array:
    """Which keys each query may attend to: bool [*B, T, S].

    Args:
      q_index: int32 [*B, T], the index of each query among the tokens.
      k_index: int32 [*B, S], the same for the keys.
      q_segments: int32 [*B, T] or None: equal ids see one another; a negative id is padding.
      k_segments: int32 [*B, S] or None, given together with `q_segments`.
      causal: whether keys of a later index are hidden.
      window: at most this many keys back, the token itself included (and as many ahead, if not
        causal).
      sinks: how many keys at the start of each document every window keeps visible: attention
        sinks (the mask of StreamingLLM, arXiv 2309.17453, §3.2, not its positions), the Λ-shaped
        mask of LM-Infinite (arXiv 2308.16137).
      k_rank: int32 [*B, S], the index of each key within its document; None: `k_index`.
    """
    ahead = q_index[..., :, None] - k_index[..., None, :]
    visible = jnp.ones(ahead.shape, bool)
    if causal:
        visible &= ahead >= 0
    if window is not None:
        inside = jnp.abs(ahead) < window
        if sinks:
            inside |= (k_index if k_rank is None else k_rank)[..., None, :] < sinks
        visible &= inside
    if q_segments is not None and k_segments is not None:
        ids = q_segments[..., :, None]
        visible &= (ids == k_segments[..., None, :]) & (ids >= 0)
    return visible
