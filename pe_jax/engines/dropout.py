"""Dropout of attention weights: the same draws in every engine, tile by tile.

B batch, T queries, S keys, H query heads.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """Drops weights and divides the others by 1 - rate.

    A pair is dropped by a hash of its row's seed and of the two tokens' indices: every engine drops
    the same pairs, and the backward pass draws them again.
    """

    seeds: jax.Array  # uint32 [B, H], drawn for each call
    # the fraction that is dropped
    rate: float = dataclasses.field(metadata={"static": True}, kw_only=True)

    def factors(self, q: Tokens, k: Tokens) -> jax.Array:
        """The factors on the weights: 0 or 1 / (1 - rate), float32 [B, H, T, S]."""
        golden, mixed = jnp.uint32(0x9E3779B9), jnp.uint32(0x85EBCA6B)
        rows, columns = (tokens.index.astype(jnp.uint32) for tokens in (q, k))
        bits = self.seeds[..., None] ^ (rows * golden)[:, None]
        bits = mix_bits(bits)[..., None] ^ (columns * mixed)[:, None, None]
        kept = mix_bits(bits) >= jnp.uint32(round(self.rate * 2**32))
        return jnp.where(kept, jnp.float32(1 / (1 - self.rate)), 0)


def mix_bits(x: jax.Array) -> jax.Array:
    """Bits that look random, one to one: the finalizer of MurmurHash3 (Appleby), uint32."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
