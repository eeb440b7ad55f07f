"""Self-Extend: Jin et al., "LLM Maybe LongLM", arXiv 2401.01325.

RoPE (arXiv 2104.09864) with far positions in groups of G, so that a model trained on L tokens reads
(L - w)·G + w of them without training:

    distance' = distance                                     for distance < w (neighbours)
                ⌊i/G⌋ + w - ⌊w/G⌋ - ⌊j/G⌋                    from w on

The shift w - ⌊w/G⌋ of the queries joins the two. Each token is rotated twice, once for each line.
Which tokens share a group depends on their positions: shifting all by a multiple of G changes
nothing, any other shift does.
"""

import dataclasses

import jax.numpy as jnp

from pe_jax.config_fields import int_field
from pe_jax.encodings.base import Claims
from pe_jax.encodings.rerope import ReRoPE


@dataclasses.dataclass(frozen=True)
class SelfExtend(ReRoPE):
    """RoPE among the `window` nearest tokens, positions in groups of `group` beyond."""

    group: int = int_field(8, 1)
    window: int = int_field(1024, 1)

    claims = Claims(absolute_rotation=True)

    def _shifted(self, x, positions, shift: int, lengths):
        near = jnp.asarray(positions)
        far = jnp.floor_divide(near, self.group) + shift
        return self._twice(x, near, far, lengths)

    def rotate_q(self, _, q, positions, lengths=None):
        """At m, and at ⌊m/G⌋ + w - ⌊w/G⌋."""
        return self._shifted(q, positions, self.window - self.window // self.group, lengths)

    def rotate_k(self, _, k, positions, lengths=None):
        """At n, and at ⌊n/G⌋."""
        return self._shifted(k, positions, 0, lengths)
