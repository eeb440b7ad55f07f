"""Dual chunk attention: An et al., "Training-Free Long-Context Scaling", arXiv 2402.17463.

RoPE (arXiv 2104.09864) with positions that restart in each chunk of c = chunk_size - local_size
tokens, so that no angle exceeds those of training. A key at j has position j mod c, a query at i

    i mod c                       for keys of its own chunk
    min(i mod c + c, chunk_size)  for those of the chunk before: exact for the local_size nearest
    min(2c - 1, chunk_size)       for all others

Each query is rotated three times, each key once. This follows the authors' code (ChunkLlama) and
vLLM's. For Qwen2.5-1M (arXiv 2501.15383) chunk_size is three quarters of the trained length and
local_size a sixteenth of it. The paper caps the last two at chunk_size - 1. Causal only: keys of a
later chunk have no position here.
"""

import dataclasses

import jax.numpy as jnp

from pe_jax.config_fields import int_field
from pe_jax.encodings.base import Claims
from pe_jax.encodings.rope import RoPE, rotate
from pe_jax.encodings.terms import Rotation, Views
from pe_jax.validation import is_int, require


@dataclasses.dataclass(frozen=True)
class DualChunk(RoPE):
    """RoPE within chunks; between chunks, distances are at most `chunk_size`."""

    chunk_size: int = int_field(3072, 2)
    local_size: int = 256

    claims = Claims(causal_only=True, absolute_rotation=True)

    def __post_init__(self):
        ok = is_int(self.local_size, 0) and self.local_size < self.chunk_size
        fix = f"pass an integer from 0 to {self.chunk_size - 1}, below chunk_size"
        require(ok, "local_size", self.local_size, fix)

    @property
    def chunk(self) -> int:
        """c, the number of tokens per chunk."""
        return self.chunk_size - self.local_size

    def terms(self, params, dims):
        views = Views((1, 2), unit=self.chunk, shared_keys=True)
        return (Rotation(self.rotate_q, self.rotate_k, views=views, by_length=self.waits),)

    def rotate_q(self, _, q, positions, lengths=None):
        """Three views of q side by side: [..., T, H, 3E]."""
        inside = jnp.remainder(jnp.asarray(positions), self.chunk)
        before = jnp.minimum(inside + self.chunk, self.chunk_size)
        farthest = jnp.asarray([min(2 * self.chunk - 1, self.chunk_size)], jnp.int32)
        views = [self._rotated(q, at, lengths) for at in (inside, before, farthest)]
        return jnp.concatenate(views, axis=-1)

    def rotate_k(self, _, k, positions, lengths=None):
        """k rotated at n mod c: [..., S, K, E]."""
        return self._rotated(k, jnp.remainder(jnp.asarray(positions), self.chunk), lengths)

    def _rotated(self, x, positions, lengths):
        theta = self.frequencies(x.shape[-1], lengths)
        return rotate(x, positions, theta, self.layout, self.factors(lengths))
