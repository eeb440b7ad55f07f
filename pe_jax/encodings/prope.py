"""PRoPE: Li et al., "Cameras as Relative Positional Encoding", arXiv 2507.10496.

    P = [A b; 0 1], the camera's projection: from world to image, in image coordinates
    q' = P_mᵀ q,   k' = P_n⁻¹ k,   v' = P_n⁻¹ v,   out = P_m Σ_n a_mn v'_n       (each 4 channels)

Tokens are patches of images from cameras with known poses and lenses. q·k and what is read from a
value depend on P_m P_n⁻¹, which takes one image to the other: not on the world's axes. The first
half of a head is made of such blocks; a quarter each is RoPE of column and of row, in values too.
Without intrinsics P is the pose alone, which is GTA (Miyato et al., arXiv 2310.10375); in one image
it is RoPE on two axes.

A position is 14 numbers: the rows of [A b], then row and column of the patch. `positions.cameras`
makes them, float32. A token without a camera is at 0, which leaves it as it is. No parameters. As
in the authors' code RoPE has base 100 and turns backwards. P is no rotation: scores grow with
translations, so scale scenes to a length of about 1.
`rayrope` has the rays of patches instead, in the frame of the camera that looks.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import above_field
from pe_jax.encodings import rope
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.terms import Rotation, ValueRotation
from pe_jax.numerics.arrays import align
from pe_jax.numerics.position_arrays import as_positions


def inverse(projection: jax.Array) -> jax.Array:
    """[A⁻¹, -A⁻¹ b] of [A b]: float32 [*n, 3, 4], by cross products of the rows of A."""
    (a, b, c), shift = jnp.moveaxis(projection[..., :3], -2, 0), projection[..., 3]
    columns = jnp.stack([jnp.cross(b, c), jnp.cross(c, a), jnp.cross(a, b)], axis=-1)
    back = columns / (a * columns[..., 0]).sum(-1)[..., None, None]
    return jnp.concatenate([back, -(back * shift[..., None, :]).sum(-1, keepdims=True)], axis=-1)


def projections(positions: jax.Array) -> jax.Array:
    """[A b] of float32 positions [*n, 14], [1 0] where A has no inverse: [*n, 3, 4]."""
    camera = positions[..., :12].reshape(*positions.shape[:-1], 3, 4)
    a, b, c = jnp.moveaxis(camera[..., :3], -2, 0)
    known = ((jnp.cross(a, b) * c).sum(-1) != 0)[..., None, None]
    return jnp.where(known, camera, align(jnp.eye(3, 4, dtype=jnp.float32), camera))


@dataclasses.dataclass(frozen=True)
class PRoPE(Encoding):
    """Maps q, k, v and the output by projections of cameras, and rotates them by patch."""

    base: float = above_field(100.0, 1)

    claims = Claims(axes=14, real_positions=True, absolute_rotation=True)
    multiples = (("head_dim", 8, "half is blocks of 4, a quarter each pairs: use a multiple of 8"),)

    def terms(self, params, dims):
        rotation = Rotation(self.rotate_queries, self.rotate_keys)
        return rotation, ValueRotation(self.rotate_keys, self.rotate_outputs)

    def rotate_queries(self, _, x, positions):
        """Pᵀ x and R x: [..., T, H, E]."""
        return self._map(x, positions, _transposed)

    def rotate_keys(self, _, x, positions):
        """P⁻¹ x and R x: [..., T, K, E]."""
        return self._map(x, positions, _inverted)

    def rotate_outputs(self, _, out, positions):
        """P x and R⁻¹ x: [..., T, H, E]."""
        return self._map(out, positions, _applied, back=True)

    def _map(self, x, positions, apply, back=False):
        size, positions = x.shape[-1] // 8, as_positions(positions, real=True).astype(jnp.float32)
        camera = projections(positions)[..., None, None, :, :]
        blocks = x[..., : 4 * size].astype(jnp.float32).reshape(*x.shape[:-1], size, 4)
        moved = apply(camera, blocks).reshape(*x.shape[:-1], 4 * size).astype(x.dtype)
        theta = rope.frequencies(2 * size, self.base) * (1 if back else -1)
        column, row = x[..., 4 * size : 6 * size], x[..., 6 * size :]
        turned = [
            rope.rotate(part, positions[..., axis], theta)
            for part, axis in ((column, 13), (row, 12))
        ]
        return jnp.concatenate([moved, *turned], axis=-1)


def _applied(projection: jax.Array, blocks: jax.Array) -> jax.Array:
    """P x for [A b] [..., T, 1, 1, 3, 4] and x [..., T, H, M, 4]."""
    x = blocks[..., None, :]
    return jnp.concatenate([(align(projection, x) * x).sum(-1), blocks[..., 3:]], axis=-1)


def _inverted(projection: jax.Array, blocks: jax.Array) -> jax.Array:
    """P⁻¹ x for the same shapes."""
    return _applied(inverse(projection), blocks)


def _transposed(projection: jax.Array, blocks: jax.Array) -> jax.Array:
    """Pᵀ x for the same shapes."""
    x = blocks[..., :3, None]
    moved = (align(projection, x) * x).sum(-2)
    return jnp.concatenate([moved[..., :3], moved[..., 3:] + blocks[..., 3:]], axis=-1)
