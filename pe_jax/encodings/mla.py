"""Decoupled RoPE of latent attention (MLA): DeepSeek-V2, arXiv 2405.04434, §2.1.3.

    score_mn = (q_m^content·k_n^content + R_m q_m^rotary · R_n k_n^rotary)/sqrt(C + R)

Keys are projected from a latent vector, which a cache keeps; a rotation after that projection would
keep it from being merged with the query's. So positions have separate channels: R more for each
query, and one key of R channels that all heads share. `join` concatenates them, the rotated ones
first, for `rope` with the fraction R/(C + R), which `scheme` makes: all R channels turn, and a
config's `partial_rotary_factor` does not apply to them (vLLM #41185).

B batch (any number of axes), T queries, S keys, H heads, C content and R rotary channels of a head.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.rope import RoPE
from pe_jax.validation import is_int, python_ints, require


def join(
    q_content: jax.Array, q_rotary: jax.Array, k_content: jax.Array, k_rotary: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Queries [*B, T, H, R + C] and keys [*B, S, K, R + C] for attention with `scheme`.

    Args:
      q_content: [*B, T, H, C].
      q_rotary: [*B, T, H, R], not rotated.
      k_content: [*B, S, K, C], of each key head.
      k_rotary: [*B, S, R], one for all heads, not rotated.

    Raises:
      ValueError: shapes that do not fit together.
    """
    lead, (rotary_dim, content) = q_content.shape[:-1], (q_rotary.shape[-1], q_content.shape[-1])
    require(q_rotary.shape[:-1] == lead, "q_rotary", q_rotary.shape, f"pass {[*lead, rotary_dim]}")
    tokens = k_content.shape[:-2]
    fix = f"pass {[*tokens, rotary_dim]}, one key for all heads"
    require(k_rotary.shape == (*tokens, rotary_dim), "k_rotary", k_rotary.shape, fix)
    fix = f"pass {content} channels, as q_content has"
    require(k_content.shape[-1] == content, "k_content", k_content.shape, fix)
    shared = jnp.broadcast_to(k_rotary[..., None, :], (*k_content.shape[:-1], rotary_dim))
    q = jnp.concatenate([q_rotary, q_content], axis=-1)
    return q, jnp.concatenate([shared, k_content], axis=-1)


@python_ints
def scheme(
    content: int = 128, rotary: int = 64, layout: str = "interleaved", **fields: Any
) -> RoPE:
    """RoPE of the first `rotary` of `rotary + content` channels, interleaved as DeepSeek's.

    `fields` are RoPE's other fields: base and scaling.

    Raises:
      ValueError: `content` is not a positive integer, `rotary` not a positive even one.
    """
    require(is_int(content, 1), "content", content, "pass an integer of at least 1")
    ok = is_int(rotary, 2) and rotary % 2 == 0
    require(ok, "rotary", rotary, "pass an even number of channels")
    return RoPE(fraction=rotary / (rotary + content), layout=layout, **fields)
