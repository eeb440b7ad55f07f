"""Continuous position bias: Liu et al., "Swin Transformer V2", arXiv 2111.09883, §3.3, eq. 3–4.

    score = q·k/sqrt(E) + 16·sigmoid(MLP(d̂)),      d̂ = sign(d)·log2(1 + |8d/(window - 1)|)/log2(8)

for the distance d of each axis, query - key. The 8, the 16 and the sigmoid are the released code's.
(Its scores are cosines times a learned scale: another part of the paper, on which the bias does not
depend.) The window is the one trained on; the same function is used beyond it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import int_field, stddev_field
from pe_jax.encodings.base import Claims, Encoding, normal
from pe_jax.encodings.terms import DistanceBias
from pe_jax.numerics.arrays import align
from pe_jax.numerics.position_arrays import as_positions, check_axes
from pe_jax.numerics.products import einsum
from pe_jax.validation import python_ints


@python_ints
def log_spaced(distance, window: tuple[int, ...]) -> jax.Array:
    """d̂ of each axis: float32 [*n, A]; the window's edge is log2(9)/3 = 1.06.

    Args:
      distance: query - key, integers or float32 [*n, A].
      window: patches along each axis where the bias was trained; at least 2.

    Raises:
      ValueError: distances with another number of axes than the window.
      TypeError: half-precision distances.
    """
    distance = as_positions(distance, real=True, name="distance").astype(jnp.float32)
    check_axes(distance, len(window), "distance")
    wide = distance * align(jnp.asarray(8 / (np.array(window) - 1), jnp.float32), distance)
    return jnp.sign(wide) * jnp.log1p(jnp.abs(wide)) * np.float32(1 / np.log(8))


def bias(distance, window: tuple[int, ...], w1, b1, w2) -> jax.Array:
    """16·sigmoid(relu(d̂·w1 + b1)·w2): float32 [H, *n] for distances [*n, A].

    Args:
      distance: as for `log_spaced`.
      window: as for `log_spaced`.
      w1: [A, N].
      b1: [N].
      w2: [N, H].
    """
    x = log_spaced(distance, window)
    # few products: a matmul, which TF32 would round, is no faster
    row = x[..., :1]  # its last axis is that of the hidden units
    hidden = sum(x[..., a, None] * align(w1[a], row) for a in range(len(window))) + align(b1, row)
    logits = einsum("...n,nh->h...", jax.nn.relu(hidden), w2)
    return 16 * jax.nn.sigmoid(logits)


@dataclasses.dataclass(frozen=True)
class CPB(Encoding):
    """A bias from a small network of the log-spaced distance, in every layer.

    It is evaluated for each pair: N·T·S products per layer, a large cost where N = `hidden` exceeds
    the model's width.
    """

    height: int = int_field(8, 2)
    width: int = int_field(8, 2)
    hidden: int = int_field(512, 1)
    stddev: float = stddev_field()

    claims = Claims(axes=2, real_positions=True)

    def init_layer(self, key, dims):
        """w1 [2, N], b1 [N], w2 [N, H]."""
        weights = normal(key, self.stddev, w1=(2, self.hidden), w2=(self.hidden, dims.heads))
        return weights | {"b1": jnp.zeros(self.hidden, jnp.float32)}

    def terms(self, params, dims):
        return (DistanceBias(self.bias, params.layer),)

    def bias(self, arrays, distance):
        """16·sigmoid(MLP(d̂)): [H, *n]."""
        return bias(distance, (self.height, self.width), **arrays)
