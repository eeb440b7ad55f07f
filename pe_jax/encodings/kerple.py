"""KERPLE: Chi et al., "Kernelized Relative Positional Embedding", arXiv 2205.09921, §4.

    logarithmic    b = -r₁·ln(1 + r₂·|d|)         r₁, r₂ > 0
    power          b = -r₁·|d|^r₂                 r₁ > 0, 0 < r₂ ≤ 2

Both are conditionally positive definite kernels of the distance d. r₁ and r₂ are learned, one of
each per head and layer; they begin as in the authors' code (p ~ U(0, 2), a ~ U(0, 1)), which writes
p·ln(1 + a·|d|) and a·|d|^p.

After every step the authors clip each parameter to its range (at least 0.01; the power at most 2).
A pure function cannot, so this one clips what it reads and passes the gradient straight through: a
parameter that has left the range can return.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import checked
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import DistanceFormula
from pe_jax.numerics.position_arrays import as_positions

KINDS = ("log", "power")
LEAST = 1e-2  # of p and a, in the authors' code


def _magnitude(distance) -> jax.Array:
    distance = as_positions(distance, real=True, name="distance")
    return jnp.abs(distance).astype(jnp.float32)


def logarithmic(distance, p, a) -> jax.Array:
    """-p·ln(1 + a·|d|): float32, of the shape to which distances, p and a broadcast.

    Raises:
      TypeError: half-precision distances.
    """
    return -p * jnp.log1p(a * _magnitude(distance))


def power(distance, p, a) -> jax.Array:
    """-a·|d|^p: float32, of the shape to which distances, p and a broadcast.

    Raises:
      TypeError: half-precision distances.
    """
    size = _magnitude(distance)
    # ∂|d|^p/∂p = |d|^p·ln|d| is 0·(-inf) at 0: no power of 0 is ever taken
    return -a * jnp.where(size > 0, jnp.where(size > 0, size, 1) ** p, 0)


def _within(x: jax.Array, low: float, high: float = jnp.inf) -> jax.Array:
    """clip(x, low, high) with a straight-through gradient."""
    still = jax.lax.stop_gradient
    return still(jnp.clip(x, low, high)) + (x - still(x))


@dataclasses.dataclass(frozen=True)
class KERPLE(Encoding):
    """Subtracts a learned logarithm of the distance (`kind="log"`), or a power of it ("power")."""

    kind: str = checked("log", f"choose one of {', '.join(KINDS)}", KINDS.__contains__)

    claims = Claims(real_positions=True)

    def init_layer(self, key, dims):
        """p and a, [H] each: U(0, 2) and U(0, 1)."""
        p, a = jax.random.uniform(key, (2, dims.heads), jnp.float32)
        return {"p": 2 * p, "a": a}

    def terms(self, params, dims):
        p = _within(params.layer["p"], LEAST, 2.0 if self.kind == "power" else jnp.inf)
        numbers = jnp.stack([p, _within(params.layer["a"], LEAST)], axis=-1)
        return (DistanceFormula(self.formula, numbers, decays=True),)

    def formula(self, numbers, distance):
        """The bias of distances for p and a, of any shapes that broadcast."""
        return {"log": logarithmic, "power": power}[self.kind](distance, *numbers)
