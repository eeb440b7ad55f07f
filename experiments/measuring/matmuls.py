"""The matmuls of attention's visible tiles and nothing else: a lower bound for every engine.

N = batch · heads, T tokens, E head width.
"""

import functools

import jax
import jax.numpy as jnp

TILE = 512  # side of a tile


class Matmuls:
    """Attention without softmax, mask within tiles, or bias.

    Operands are [N, T, E] with T a multiple of the tile. Keys and values are multiplied from
    transposed copies and their gradients accumulated transposed, which is the fastest here.
    """

    def __init__(self, length: int, causal: bool):
        self.side, self.causal = min(TILE, length), causal
        self.blocks = -(-length // self.side)

    def _cut(self, x, i, axis=1):
        return jax.lax.dynamic_slice_in_dim(x, i * self.side, self.side, axis)

    def _add(self, total, j, part):
        part = self._cut(total, j, 2) + part
        return jax.lax.dynamic_update_slice_in_dim(total, part, j * self.side, 2)

    def _visit(self, tile, i, start):
        return jax.lax.fori_loop(0, i + 1 if self.causal else self.blocks, tile, start)

    def forward(self, q, k, v):
        """q·kᵀ and s·v."""
        transposed = jnp.swapaxes(k, 1, 2)

        def row(i):
            def tile(j, out):
                s = _mm("nte,nes->nts", self._cut(q, i), self._cut(transposed, j, 2)).astype(
                    v.dtype
                )
                return out + _mm("nts,nse->nte", s, self._cut(v, j))

            return self._visit(tile, i, jnp.zeros(self._cut(q, i).shape, jnp.float32))

        return jax.lax.map(row, jnp.arange(self.blocks))

    def backward(self, q, k, v, d_out):
        """q·kᵀ again, d_out·sᵀ, d_out·vᵀ, ds·k, q·dsᵀ."""
        k_transposed, v_transposed = (jnp.swapaxes(x, 1, 2) for x in (k, v))

        def row(carry, i):
            q_i, d_i = self._cut(q, i), self._cut(d_out, i)

            def tile(j, carry):
                d_q, d_k, d_v = carry
                s = _mm("nte,nes->nts", q_i, self._cut(k_transposed, j, 2)).astype(v.dtype)
                d_s = _mm("nte,nes->nts", d_i, self._cut(v_transposed, j, 2)).astype(v.dtype)
                d_k = self._add(d_k, j, _mm("nts,nte->nes", d_s, q_i))
                d_v = self._add(d_v, j, _mm("nts,nte->nes", s, d_i))
                return d_q + _mm("nts,nse->nte", d_s, self._cut(k, j)), d_k, d_v

            zeros = jnp.zeros(q_i.shape, jnp.float32)
            d_q, *carry = self._visit(tile, i, (zeros, *carry))
            return tuple(carry), d_q

        zeros = jnp.zeros(k_transposed.shape, jnp.float32)
        return jax.lax.scan(row, (zeros, zeros), jnp.arange(self.blocks))


_mm = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
