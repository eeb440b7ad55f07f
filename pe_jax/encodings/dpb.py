"""Dynamic position bias: Wang et al., "CrossFormer", arXiv 2108.00154, in x-transformers' form.

    score = q·k/sqrt(E) + f_h(x),      x = d, or sign(d)·ln(1 + |d|) with `log_distance`

for the distance d = i - j and a perceptron f with `depth` layers of SiLU units, which all layers
share. The paper's is of two axes, with ReLU after layer norm; x-transformers' `DynamicPositionBias`
has one axis, SiLU, no norm by default, and the choice of the logarithm.

f is not bounded. As a function of the distance it is almost linear far out, like ALiBi with a
learned slope on each side, and begins with about ±12 at distance 128; as a function of the
logarithm it is like KERPLE's, and begins with about ±0.4. A float32 score of 10,000 holds q·k to
0.001 only: use the logarithm for long contexts. Weights begin uniform in ±1/sqrt(fan-in).
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import flag_field, int_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import DistanceBias
from pe_jax.numerics.arrays import align
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.numerics.products import einsum
from pe_jax.validation import is_int, require


def bias(
    distance, w_in, b_in, w_out, b_out, w_hidden=(), b_hidden=(), *, log_distance=False
) -> jax.Array:
    """f(d), a number per head and distance: float32 [H, *n].

    Args:
      distance: query - key, integers or float32 [*n].
      w_in: [N].
      b_in: [N].
      w_out: [N, H].
      b_out: [H].
      w_hidden: those of the layers between, [depth - 1, N, N].
      b_hidden: [depth - 1, N].
      log_distance: whether f is of sign(d)·ln(1 + |d|).

    Raises:
      TypeError: half-precision distances.
    """
    x = as_positions(distance, real=True, name="distance").astype(jnp.float32)[..., None]
    if log_distance:
        x = jnp.sign(x) * jnp.log1p(jnp.abs(x))
    x = jax.nn.silu(x * align(w_in, x) + align(b_in, x))
    for w, b in zip(w_hidden, b_hidden, strict=True):
        x = einsum("...n,nm->...m", x, w)
        x = jax.nn.silu(x + align(b, x))
    out = einsum("...n,nh->...h", x, w_out)
    return jnp.moveaxis(out + align(b_out, out), -1, 0)


@dataclasses.dataclass(frozen=True)
class DPB(Encoding):
    """A bias from a small network of the distance; `hidden` None: a quarter of the model's width.

    It is evaluated once per distance where positions are contiguous, else for each pair.
    """

    hidden: int | None = None
    depth: int = int_field(2, 1)
    log_distance: bool = flag_field(False)

    claims = Claims(real_positions=True)

    def __post_init__(self):
        ok = self.hidden is None or is_int(self.hidden, 1)
        require(ok, "hidden", self.hidden, "pass an integer of at least 1, or None")

    def init_shared(self, key, dims):
        """w_in, b_in [N]; w_out [N, H], b_out [H]; with a `depth` above 1, w_hidden, b_hidden."""
        size, inner = self.hidden or max(dims.width // 4, 1), self.depth - 1
        shapes = {"w_in": (size,), "b_in": (size,)}
        shapes |= {"w_hidden": (inner, size, size), "b_hidden": (inner, size)} if inner else {}
        shapes |= {"w_out": (size, dims.heads), "b_out": (dims.heads,)}
        keys = jax.random.split(key, len(shapes))

        def uniform(key, name):
            fan_in = 1 if name.endswith("in") else size
            return jax.random.uniform(key, shapes[name], jnp.float32, -1, 1) * fan_in**-0.5

        return {name: uniform(key, name) for key, name in zip(keys, shapes, strict=True)}

    def terms(self, params, dims):
        return (DistanceBias(self.bias, params.shared),)

    def bias(self, arrays, distance):
        """f(d): [H, *n]."""
        return bias(distance, **arrays, log_distance=self.log_distance)
