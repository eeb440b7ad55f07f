"""FoX, the Forgetting Transformer: Lin et al., arXiv 2503.02130.

    f_t = sigmoid(w_h·x_t + b_h)                        a forget gate for each token and head
    score_ij = q_i·k_j/sqrt(E) + Σ_{l = j+1 … i} log f_l

ALiBi with distances that depend on the data. With c the running sum of log f, the bias is
c_i - c_j. Without a causal mask it is the same sum over the tokens between, -|c_i - c_j|; the paper
is causal only. The gate reads x, the layer's normalised input, in float32.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import stddev_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import State, TokenBias
from pe_jax.numerics import running_sums
from pe_jax.numerics.arrays import align
from pe_jax.numerics.products import matmul


def project(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """w_h·x_t + b_h in float32: [*B, T, H] for x [*B, T, D], weight [D, H] and bias [H]."""
    product = matmul(x.astype(jnp.float32), weight)
    return product + align(bias, product)


def log_forget(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """log sigmoid(w_h·x_t + b_h), at most 0: float32 [*B, T, H]; arguments as for `project`."""
    return jax.nn.log_sigmoid(project(x, weight, bias))


def forgetting(log_gates: jax.Array) -> jax.Array:
    """Σ_{l = j+1 … i} log f_l, for i < j over the tokens between: float32 [*B, H, T, T].

    Args:
      log_gates: float32 [*B, T, H], as `log_forget` gives them.
    """
    sums = jnp.moveaxis(running_sums.total(log_gates), -2, -3)  # [*B, H, T, 2]
    rows, columns = ([x[..., 0], x[..., 1]] for x in (sums[..., None, :], sums[..., None, :, :]))
    return -running_sums.between(rows, columns)


@dataclasses.dataclass(frozen=True)
class FoX(Encoding):
    """Tokens fade by forget gates that each token and head computes from the layer's input."""

    stddev: float = stddev_field()

    def init_layer(self, key, dims):
        """Weight [D, H], bias [H] of zeros: gates begin near 1/2."""
        shape = (dims.width, dims.heads)
        weight = self.stddev * jax.random.normal(key, shape, jnp.float32)
        return {"weight": weight, "bias": jnp.zeros(dims.heads, jnp.float32)}

    def terms(self, params, dims):
        after, width = running_sums.after, running_sums.WIDTH
        sums = State(self.sums, params.layer, width=width, after=after)
        return (TokenBias(fade, sums, decays=True, of_token=negative),)

    def steps(self, arrays, x):
        """What each token adds to the sum, log f: float32 [*B, T, H]."""
        return log_forget(x, **arrays)

    def sums(self, arrays, x, before):
        """c_t, the running sum of the steps: [*B, T, H, 2]."""
        return running_sums.total(self.steps(arrays, x), before)


def fade(q_state, k_state):
    """-|c_i - c_j|."""
    return -running_sums.between(q_state, k_state)


def negative(state):
    """-c: as c never rises, -|c_i - c_j| is -c_j + c_i for j before i."""
    return -state[0], -state[1]
