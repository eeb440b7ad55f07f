"""ReRoPE: Su, "Rectified Rotary Position Embeddings" (2023), a blog post.

https://kexue.fm/archives/9708 (code: https://github.com/bojone/rerope); there is no paper.

RoPE (arXiv 2104.09864) whose distances stop growing,

    distance' = min(distance, window)

so that no distance is met that was not trained. Rotations are of tokens, not of pairs, so each
token is rotated twice. Below the window, as in RoPE; from there on, every query as if it stood at
`window` and every key at 0. Keys ahead (distance < 0) keep their distance; the author's code caps
them as if they were behind, which no causal mask shows. His factor log n on long queries is left
out.

The ceiling of LM-Infinite (arXiv 2308.16137) is the same function: with L the length of
training, `attention(encoding=ReRoPE(window=L), window=L, sinks=n)` is that paper, its ceiling felt
by the n first tokens alone. StreamingLLM (arXiv 2309.17453) numbers the tokens in its cache, so
that sink j is L + n - 1 - j away and not L.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.encodings.rope import RoPE, rotate
from pe_jax.encodings.terms import Rotation
from pe_jax.validation import is_int, require


def rotate_twice(
    x: jax.Array,
    near,
    far,
    frequencies: jax.Array,
    layout: str = "half",
    attention_factor: float = 1.0,
) -> jax.Array:
    """Two rotations of x [..., T, H, E] side by side: [..., T, H, 2E].

    Args:
      x: queries or keys.
      near: positions [T] or [..., T] of the first view.
      far: those of the second; [1] for all tokens alike.
      frequencies: as for `rope.rotate`, which also says what is raised.
      layout: likewise.
      attention_factor: likewise.
    """
    how = frequencies, layout, attention_factor
    return jnp.concatenate([rotate(x, at, *how) for at in (near, far)], axis=-1)


@dataclasses.dataclass(frozen=True)
class ReRoPE(RoPE):
    """RoPE up to a distance of `window`; all keys from there on are `window` away."""

    window: int = 512

    def __post_init__(self):
        super().__post_init__()
        require(is_int(self.window, 1), "window", self.window, "pass an integer of at least 1")

    def terms(self, params, dims):
        return (Rotation(self.rotate_q, self.rotate_k, split=self.window),)

    def rotate_q(self, _, q, positions):
        """R_m q, and R_w q."""
        return self._twice(q, positions, jnp.asarray([self.window], jnp.int32))

    def rotate_k(self, _, k, positions):
        """R_n k, and R_0 k."""
        return self._twice(k, positions, jnp.zeros(1, jnp.int32))

    def _twice(self, x, near, far):
        how = self.frequencies(x.shape[-1]), self.layout, self.attention_factor
        return rotate_twice(x, near, far, *how)
