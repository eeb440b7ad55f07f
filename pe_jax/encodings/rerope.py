"""ReRoPE: Su, "Rectified Rotary Position Embeddings" (2023), a blog post.

https://kexue.fm/archives/9708 (code: https://github.com/bojone/rerope); there is no paper.

RoPE (arXiv 2104.09864) with capped distances,

    distance' = min(distance, window)

so that every distance was seen in training. Rotations act on tokens, not on pairs, so each token is
rotated twice: as in RoPE, for distances below the window; and with every query at position `window`
and every key at 0, for the others. Keys ahead (distance < 0) keep their distance; the author's code
caps it too, a difference that a causal mask hides. His factor log n on long queries is left out.

The ceiling of LM-Infinite (arXiv 2308.16137) is the same function: with L the length of training,
`attention(encoding=ReRoPE(window=L), window=L, sinks=n)` is that paper, where the ceiling affects
the n first tokens only. StreamingLLM (arXiv 2309.17453) numbers the tokens in its cache, so that
sink j is L + n - 1 - j away and not L.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import int_field
from pe_jax.encodings.rope import RoPE, rotate
from pe_jax.encodings.terms import Rotation, Views


def rotate_twice(
    x: jax.Array,
    near,
    far,
    frequencies: jax.Array,
    layout: str = "half",
    attention_factor: float | jax.Array = 1.0,
) -> jax.Array:
    """Two rotations of x [..., T, H, E] side by side: [..., T, H, 2E].

    Args:
      x: queries or keys.
      near: positions [T] or [..., T] of the first view.
      far: positions of the second; [1] if all tokens share one.
      frequencies: as for `rope.rotate`, which also says what is raised.
      layout: as for `rope.rotate`.
      attention_factor: as for `rope.rotate`.
    """
    settings = frequencies, layout, attention_factor
    return jnp.concatenate([rotate(x, at, *settings) for at in (near, far)], axis=-1)


@dataclasses.dataclass(frozen=True)
class ReRoPE(RoPE):
    """RoPE up to a distance of `window`; all keys from there on are `window` away."""

    window: int = int_field(512, 1)

    def terms(self, params, dims):
        views = Views((self.window,))
        return (Rotation(self.rotate_q, self.rotate_k, views=views, by_length=self.waits),)

    def rotate_q(self, _, q, positions, lengths=None):
        """R_m q, and R_w q."""
        return self._twice(q, positions, jnp.asarray([self.window], jnp.int32), lengths)

    def rotate_k(self, _, k, positions, lengths=None):
        """R_n k, and R_0 k."""
        return self._twice(k, positions, jnp.zeros(1, jnp.int32), lengths)

    def _twice(self, x, near, far, lengths):
        settings = self.frequencies(x.shape[-1], lengths), self.layout, self.factors(lengths)
        return rotate_twice(x, near, far, *settings)
