"""Layers in the place of attention, token by token in float64."""

import numpy as np

from pe_jax.naive.rows import Array


def gated_delta(q, k, v, log_decay, beta, state=None) -> tuple[Array, Array]:
    """The gated delta rule (arXiv 2412.06464): outputs [T, H, F] and the last state [H, E, F].

        S_t = (I - β_t k_t k_tᵀ) α_t S_{t-1} + β_t k_t v_tᵀ,     o_t = S_tᵀ q_t/sqrt(E)

    Args:
      q: [T, H, E].
      k: [T, H, E].
      v: [T, H, F].
      log_decay: ln α, [T, H], or by channel [T, H, E].
      beta: [T, H].
      state: before the first token, [H, E, F]; None: zeros.
    """
    q, k, v, log_decay, beta = (np.asarray(x, np.float64) for x in (q, k, v, log_decay, beta))
    heads, width = q.shape[1:]
    state = np.zeros((heads, width, v.shape[-1])) if state is None else np.asarray(state, float)
    out = np.zeros(v.shape)
    for t in range(len(q)):
        for h in range(heads):
            forget = np.eye(width) - beta[t, h] * np.outer(k[t, h], k[t, h])
            kept = forget @ (np.exp(log_decay[t, h]).reshape(-1, 1) * state[h])
            state[h] = kept + beta[t, h] * np.outer(k[t, h], v[t, h])
            out[t, h] = q[t, h] @ state[h] / np.sqrt(width)
    return out, state
