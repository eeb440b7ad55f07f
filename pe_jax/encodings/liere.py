"""LieRE: Ostmeier et al., arXiv 2406.10322: learned rotations of blocks of channels, on any axes.

    R(p) = exp(Σ_a p_a·A_a),     A_a skew-symmetric, in blocks of `block` channels

A position turns each block by the exponential of generators, which are learned for each layer and
head. RoPE-Mixed is the case of blocks of 2 channels, which have one generator up to a factor.
Larger generators do not commute: q·k then depends on both positions, unless there is one axis.

ComRoPE (Yu et al., arXiv 2506.03737) makes them commute, so that q·k depends on the displacement
alone: `commuting` is its linearly dependent form, A_a = m_a·A with learned m. In its axial form
each block has generators on one axis, and 0 on the others.

Coordinates are those of the papers, in [0, 1]: indices divided by the longer side, as
`positions.grid(h, w) / max(h, w)`; tokens of a prefix, at 0, do not turn. Eigenvalues are the
angles: at far positions they lose digits as RoPE's do. Each token needs its own exponential of E/b
matrices for each key head: 262,144 of 8 by 8 take 2.3 s on two cores of a CPU. Use it with few
tokens, or with blocks of 2.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pe_jax.config_fields import above_field, flag_field, int_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles, linear_algebra
from pe_jax.numerics.arrays import align, explicit_axes, require_array
from pe_jax.numerics.position_arrays import as_positions, check_axes, check_exact
from pe_jax.numerics.products import einsum, matmul
from pe_jax.validation import require


@jax.custom_jvp
def exponential(skew: jax.Array) -> jax.Array:
    """exp(A) of skew-symmetric A: float32 [*n, b, b], orthogonal, off by about |A|·3e-7.

    From the eigenvectors of the Hermitian i·A. JAX's `expm` in float32 squares too seldom at some
    norms, and is not a rotation there: off by 4e-3 at 15.6 (jax 0.10). No second derivatives.
    """
    return _exponential(*_eigen(skew))


@jax.custom_jvp
def _eigen(skew: jax.Array) -> tuple[jax.Array, jax.Array]:
    hermitian = jax.lax.complex(jnp.zeros_like(skew), skew)
    angles, vectors = linear_algebra.eigh(hermitian)
    return (angles - angles[..., ::-1]) / 2, vectors  # pairs of ±: else the product is not real


@_eigen.defjvp
def _no_derivative(primals, tangents):
    """Eigenvectors have none where eigenvalues are equal, as at position 0: all would be NaN."""
    raise NotImplementedError("liere has no second derivatives by generators or positions")


def _wave(angles: jax.Array) -> jax.Array:
    return jax.lax.complex(jnp.cos(angles), jnp.sin(angles))


def _sin_over(x: jax.Array) -> jax.Array:
    """sin(x) / x, 1 at 0: jnp.sinc of jax 0.12 raises in a shard_map where x varies."""
    zero = x == 0
    return jnp.where(zero, 1.0, jnp.sin(x) / jnp.where(zero, 1.0, x))


def _exponential(angles: jax.Array, vectors: jax.Array) -> jax.Array:
    turn = vectors * _wave(-angles)[..., None, :]
    return matmul(turn, vectors.conj().swapaxes(-1, -2)).real


@exponential.defjvp
def _exponential_jvp(primals, tangents):
    """The formula of Daleckii and Krein, exact also where eigenvalues are equal."""
    angles, vectors = _eigen(*primals)
    a, b = angles[..., :, None] / 2, angles[..., None, :] / 2
    quotient = _wave(-(a + b)) * _sin_over(a - b).astype(vectors.dtype)
    back = vectors.conj().swapaxes(-1, -2)
    inner = matmul(matmul(back, tangents[0].astype(vectors.dtype)), vectors)
    change = matmul(matmul(vectors, quotient * inner), back).real
    return _exponential(angles, vectors), change


def rotate(x: jax.Array, positions, generators: jax.Array) -> jax.Array:
    """Multiplies block m of head h by the exponential of Σ_a position[a]·A[a, h, m].

    Args:
      x: [..., T, H, E].
      positions: integers or float32 [T, A] or [..., T, A], any sign.
      generators: float32 [A, K, M, b, b], M·b = E and K a divisor of H: consecutive heads share.
        Only the part above the diagonal is read: A is that part minus its transpose.

    Returns:
      The shape and dtype of x (the rotation is float32).

    Raises:
      ValueError: generators of other shapes; positions of another number of axes, or not exact in
        float32 (≥ 2**24).
      TypeError: half-precision positions or generators; arrays that are not of floats.
      NotImplementedError: a second derivative by positions or generators.
    """
    require_array("x", x, 3)
    require_array("generators", generators, 5)
    *more, axes, heads, blocks, size, other = generators.shape
    fix = f"pass [A, K, M, b, b] for {x.shape[-2]} heads of {x.shape[-1]} = M·b channels"
    ok = heads > 0 and x.shape[-2] % heads == 0 and blocks * size == x.shape[-1] and size == other
    require(ok and not more, "generators.shape", generators.shape, fix)
    angles.require_exact("generators", generators)
    positions = as_positions(positions, real=True)
    check_axes(positions, axes)
    check_exact(positions)
    upper = jnp.triu(generators.astype(jnp.float32), 1)
    skew = upper - jnp.swapaxes(upper, -1, -2)
    coordinates = positions.astype(jnp.float32)
    turn = exponential(einsum("...a,akmij->...kmij", coordinates, skew))
    turn = jnp.repeat(turn, x.shape[-2] // heads, axis=-4)
    vectors = x.astype(jnp.float32).reshape(*x.shape[:-1], blocks, size)
    if explicit_axes():  # a product needs one sharding of both: that of the vectors
        spec = jax.typeof(vectors).sharding.spec[1 - turn.ndim : -1]
        spec = [None if n == 1 else y for n, y in zip(turn.shape[:-2], spec, strict=True)]
        turn = jax.sharding.reshard(turn, PartitionSpec(*spec, None, None))
    turned = einsum("...hmij,...hmj->...hmi", turn, vectors)
    return turned.reshape(x.shape).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class LieRE(Encoding):
    """Rotates blocks of q and k by exponentials of learned generators.

    Generators begin uniform in [0, `initial`): 2π is the authors', for coordinates in [0, 1]; for
    indices divide it by the length of a side. `commuting` is ComRoPE, whose factors per axis begin
    normal.
    """

    axes: int = int_field(2, 1)
    block: int = int_field(8, 2)
    initial: float = above_field(2 * np.pi, 0)
    commuting: bool = flag_field(False)

    @property
    def claims(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Claims of real positions with this number of axes."""
        relative = self.commuting or self.axes == 1 or self.block == 2
        return Claims(axes=self.axes, real_positions=True, absolute_rotation=not relative)

    def check(self, dims):
        """Blocks must fill the head."""
        fix = f"a head is made of blocks of {self.block} channels"
        require(dims.head_dim % self.block == 0, "head_dim", dims.head_dim, fix)

    def init_layer(self, key, dims):
        """`generators` [A, K, E/b, b, b], or [1, …] and `factors` [A, K, E/b]; keep float32."""
        blocks = dims.head_dim // self.block
        drawn, factors = jax.random.split(key)
        shape = (1 if self.commuting else self.axes, dims.kv_heads, blocks, self.block, self.block)
        params = {"generators": jax.random.uniform(drawn, shape, jnp.float32, 0, self.initial)}
        if self.commuting:
            shape = (self.axes, dims.kv_heads, blocks)
            params["factors"] = jax.random.normal(factors, shape, jnp.float32)
        return params

    def terms(self, params, dims):
        return (Rotation(self.rotate, self.rotate, params.layer, heads=1),)

    def rotate(self, arrays, x, positions):
        """R_position x: [..., T, H, E]."""
        positions = positions[..., None] if self.axes == 1 else positions
        generators = arrays["generators"]
        if self.commuting:
            generators = generators * align(arrays["factors"][..., None, None], generators)
        return rotate(x, positions, generators)
