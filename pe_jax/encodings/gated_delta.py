"""The gated delta rule: Yang et al., "Gated Delta Networks", arXiv 2412.06464, §3.1 and §3.3.

    S_t = (I - β_t k_t k_tᵀ) α_t S_{t-1} + β_t k_t v_tᵀ,     o_t = S_tᵀ q_t/sqrt(E)

A recurrent layer in the place of attention. The state S [E, F] forgets by α, drops what it returns
for the key and learns the value instead, so that the order of tokens is in it without positions.
`gated_delta*3,rope` is the pattern of Qwen3-Next, whose layer this is (transformers,
`Qwen3NextGatedDeltaNet`), `gated_delta(decay=channel)*3,nope` that of Kimi Linear (arXiv
2510.26692, §3, eq. 1): α is one number for a head there, one for each channel of the key here, from
a projection of rank E. (Kimi's gate of the output has that rank too, and a sigmoid for SiLU.)

B batch, T tokens, H heads, E width of q and k, F width of v, C channels, N chunks, L their tokens.
"""

import dataclasses

import jax
import jax.export
import jax.numpy as jnp

from pe_jax.config_fields import choice_field, int_field
from pe_jax.encodings.base import Recurrent
from pe_jax.numerics import fading
from pe_jax.numerics.arrays import align, varying_like
from pe_jax.numerics.linear_algebra import inverse_unit_lower
from pe_jax.numerics.products import einsum

CHUNK = 64  # tokens whose pairs are computed; a state passes from one chunk to the next
FORGOTTEN = -30.0  # ln α below which nothing of a state is left in float32; sums stay exact


@dataclasses.dataclass(frozen=True)
class GatedDelta(Recurrent):
    """A recurrent layer in the place of attention.

    `taps` is the width of its short convolution; `decay` says whether each head has one decay or
    each channel of its keys.
    """

    taps: int = int_field(4, 1)
    decay: str = choice_field("head", ("head", "channel"))


def delta_rule(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    documents: jax.Array | None = None,
    state: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The outputs of all tokens and the last state, in time and memory of O(T).

    Within a chunk the values that the state learns solve a triangular system (the UT transform),
    whose inverse is made of products.

    Args:
      q: float32 [B, T, H, E], T ≥ 1.
      k: float32 [B, T, H, E], of length 1.
      v: float32 [B, T, H, F].
      log_decay: ln α, at most 0, also -inf; 0 for padding: float32 [B, T, H], or by channel
        [B, T, H, E].
      beta: in [0, 1], 0 for padding: float32 [B, T, H].
      documents: int32 [B, T], which never fall: a token sees those of its own number; None: all 0.
      state: before the first token, of document 0: float32 [B, H, E, F]; None: zeros.

    Returns:
      float32 [B, T, H, F], and the state after the last token [B, H, E, F].
    """
    q, k, v, log_decay, beta = (jnp.asarray(x, jnp.float32) for x in (q, k, v, log_decay, beta))
    batch, length, _, width = q.shape
    size = CHUNK
    if not jax.export.is_symbolic_dim(length):
        size = min(CHUNK, 1 << (length - 1).bit_length())
    count = -(-length // size)

    def chunks(x: jax.Array, mode: str = "constant") -> jax.Array:
        """[B, T, H, …] → [N, B, H, L, …]."""
        x = jnp.pad(x, [(0, 0), (0, count * size - length)] + [(0, 0)] * (x.ndim - 2), mode)
        x = x.reshape(batch, count, size, *x.shape[2:])
        return jnp.moveaxis(x, (1, 2), (0, 3)) if x.ndim > 3 else jnp.moveaxis(x, 1, 0)[:, :, None]

    documents = jnp.zeros((1, length), jnp.int32) if documents is None else documents
    documents = jnp.broadcast_to(documents, (batch, length))
    of, keys = chunks(documents, "edge"), chunks(k)  # documents [N, B, 1, L]
    last = of[..., -1:]
    before = jnp.concatenate([jnp.zeros_like(last[:1]), last[:-1]])
    by_channel = log_decay.ndim == q.ndim
    steps = log_decay if by_channel else log_decay[..., None]
    total = jnp.cumsum(jnp.maximum(chunks(steps), FORGOTTEN), -2)  # [N, B, H, L, E or 1]
    from_state = jnp.where((of == before)[..., None], jnp.exp(total), 0)
    to_end = jnp.where((of == last)[..., None], jnp.exp(total[..., -1:, :] - total), 0)
    pairs = jnp.tril(of[..., None] == of[..., None, :])

    def products(x, y):
        """Of two tokens of a document, faded by those between: [N, B, H, L, L]."""
        if by_channel:
            sums = jnp.concatenate([total, jnp.zeros_like(total)], -1)
            return jnp.where(pairs, fading.near(x, y, sums, sums), 0)
        between = jnp.where(pairs, total - jnp.swapaxes(total, -1, -2), -1e30)
        return einsum("...le,...me->...lm", x, y) * jnp.exp(between)

    rates, queries = chunks(beta)[..., None], width**-0.5 * chunks(q)
    system = rates * products(keys, keys)
    inverse = inverse_unit_lower(jnp.tril(system, -1))
    learned = einsum("...lm,...mf->...lf", inverse, rates * chunks(v))
    dropped = einsum("...lm,...me->...le", inverse, rates * from_state * keys)
    weights = products(queries, keys)

    def step(state, chunk):
        learned, dropped, weights, queries, keys, kept = chunk
        new = learned - einsum("...le,...ef->...lf", dropped, state)
        out = einsum("...le,...ef->...lf", queries, state)
        out += einsum("...lm,...mf->...lf", weights, new)
        return kept[..., None] * state + einsum("...le,...lf->...ef", keys, new), out

    if state is None:  # on the devices of what is added to it
        added = einsum("n...le,n...lf->...ef", keys[:1], learned[:1])
        state = varying_like(jnp.zeros_like(added), added)
    queries, keys = from_state * queries, to_end * keys
    inputs = (learned, dropped, weights, queries, keys, from_state[..., -1, :])
    state, out = jax.lax.scan(step, jnp.asarray(state), inputs)
    out = jnp.moveaxis(out, (0, 3), (1, 2)).reshape(batch, count * size, *v.shape[2:])
    return out[:, :length], state


def convolve(
    kernel: jax.Array, x: jax.Array, before: jax.Array, documents: jax.Array | None = None
) -> jax.Array:
    """Each channel's weighted sum over the last tokens of its document: [B, T, *C].

    Args:
      kernel: [n, *C]; the last row is for the token itself.
      x: [B, T, *C].
      before: the n - 1 tokens before, zeros where there are none: [B, n - 1, *C].
      documents: as for `delta_rule`; those of the tokens before are 0.
    """
    taps, length = kernel.shape[0], x.shape[1]
    rows = jnp.concatenate([before, x], 1)
    of = None if documents is None else jnp.pad(documents, ((0, 0), (taps - 1, 0)))
    out = jnp.zeros_like(x)
    for tap in range(taps):
        row = rows[:, tap : tap + length]
        if of is not None:
            same = of[:, tap : tap + length] == documents
            row = jnp.where(same.reshape(*same.shape, *(1,) * (x.ndim - 2)), row, 0)
        out += align(kernel[tap].astype(x.dtype), row) * row
    return out
