"""RoPE++: Liu et al., "Beyond Real: Imaginary Extension of RoPE", arXiv 2512.07525, §3.

    real heads:        Re Σ_j q_j·conj(k_j)·e^(iθ_j·distance) = (R_m q)·(R_n k)           (RoPE)
    imaginary heads:   Im of the same sum = (-i·R_m q)·(R_n k)

for pairs of channels as complex numbers q_j and k_j. Each projected query makes two neighbouring
heads, as it is and turned back by a quarter, which attend to the same keys and values. A product of
equal vectors is Σ |q_j|² sin(θ_j·distance) in the imaginary one: 0 at distance 0, slow to decay.

Two variants, next to RoPE with H heads and K key heads of the same width:

    equal "heads"   H/2 queries, K/2 keys     H heads: half the projections and half the cache
    equal "cache"   H queries, K keys         2H heads: twice the output projection, the same cache

A Transformer here follows the variant (`layer_dims`, `query_heads`). `attention` takes the queries
of all heads: pass `jnp.repeat(q, 2, axis=-2)` for the projected q. With separate queries or keys
for the two heads, the imaginary one is RoPE in other coordinates.
"""

import dataclasses

import jax.numpy as jnp

from pe_jax.config_fields import one_of_field
from pe_jax.encodings import rope
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.terms import Rotation
from pe_jax.validation import require


@dataclasses.dataclass(frozen=True)
class RoPEPP(RoPE):
    """RoPE, where the queries of heads 1, 3, 5, … turn back by a quarter: imaginary heads.

    `equal` is what a Transformer has as many of as with RoPE. With a `fraction` below 1 the other
    channels are the same in both heads. Other fields are RoPE's.
    """

    equal: str = one_of_field("heads", ("heads", "cache"))

    multiples = (("heads", 2, "real and imaginary heads are pairs: pass an even number"),)

    def layer_dims(self, dims):
        """Half of the key heads, or twice the heads.

        Raises:
          ConfigError: equal "heads" and an odd number of key heads.
        """
        if self.equal == "cache":
            return dataclasses.replace(dims, heads=2 * dims.heads)
        fix = "equal='heads' halves them: pass an even number, or equal='cache'"
        require(dims.kv_heads % 2 == 0, "kv_heads", dims.kv_heads, fix)
        return dataclasses.replace(dims, kv_heads=dims.kv_heads // 2)

    def query_heads(self, dims):
        """Half of the heads."""
        return dims.heads // 2

    def terms(self, params, dims):
        imaginary = jnp.arange(dims.heads, dtype=jnp.float32) % 2
        return (
            Rotation(self.rotate_queries, self.rotate, imaginary, heads=0, by_length=self.waits),
        )

    def rotate_queries(self, imaginary, x, positions, lengths=None):
        """R_m x, times -i in the heads where `imaginary` [H] is 1, else 0: [..., T, H, E]."""
        turned = self.rotate(None, x, positions, lengths)
        shape = len(imaginary), self.rotary_dim(x.shape[-1]) // 2
        sin = jnp.broadcast_to(-imaginary[:, None], shape)
        return rope.turn(turned, 1 + sin, sin, self.layout)
