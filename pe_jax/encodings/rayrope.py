"""RayRoPE: Wu et al., "RayRoPE: Projective Ray Positional Encoding", arXiv 2601.15275.

    x = (c, p_1, …),   p = (direction, depth) of a point on a ray, in the query's camera's frame
    R(x) = ⊕_f ⊕_i E[e^(-i·θ_{f,i}·x_i)],      θ_{f,i} = 2π/period_i · base^f,  f = 0 … F-1

Patches of images from cameras with known poses. A patch is the centre c of its camera (3 numbers)
and a point on each of its rays, of which the depth is known or predicted by a layer: two numbers
of the direction in which the query's camera sees that point, and how far before it. Queries, keys
and values turn by these numbers, and outputs turn back by those of the query, as in GTA.

A depth that is uncertain, from `near` to `far`, turns by the mean over the interval: angles a to b
give e^(i(a+b)/2)·sin(h)/h with h = (b-a)/2, so that fast frequencies fade. (The authors' code takes
a alone where they differ by less than 0.01.)

What a key is depends on the camera that looks, so each camera has queries, positions and a copy of
all keys of its own: an axis before the tokens, C times the keys for C cameras.

    own, seen = positions.rays(poses, height, width, near, far, lenses, image)    # [*B, C, …, 21]
    q = q.reshape(*B, C, height * width, H, E)                # the tokens of each camera
    k, v = (jnp.broadcast_to(x[..., None, :, :, :], (*B, C, *x.shape[-3:])) for x in (k, v))
    out = pe_jax.attention(q, k, v, encoding=pe_jax.make("rayrope"), causal=False,
                           q_positions=own, k_positions=seen)

`attention` passes no gradient to positions. For a layer that learns to predict depths turn the
vectors around it, which gives the same:

    rayrope = pe_jax.make("rayrope")
    q, k, v = (rayrope.rotate(None, *x) for x in ((q, own), (k, seen), (v, seen)))
    out = rayrope.rotate_outputs(None, pe_jax.attention(q, k, v, causal=False), own)

No parameters. Scenes are scaled to a length of about 1: centres have a period of 4, directions of
8, depths of 80. As in the authors' code it turns backwards.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, checked, flag_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.rope import turn
from pe_jax.encodings.terms import Rotation, ValueRotation
from pe_jax.numerics.arrays import align
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.validation import is_int, require

PERIODS = {"centre": 4.0, "direction": 8.0, "depth": 80.0}  # of the slowest frequency


def frequencies(head_dim: int, rays: int = 3, base: float = 3.0, centre: bool = True) -> np.ndarray:
    """Radians per unit of each coordinate, the slowest first: float64 [F, A], 2·F·A ≤ head_dim.

    A is 3 for the `centre` and 3 for each ray: directions (x, y) of the rays, then their depths.
    """
    periods = [PERIODS["centre"]] * 3 * centre
    periods += [PERIODS["direction"]] * 2 * rays + [PERIODS["depth"]] * rays
    count = head_dim // (2 * len(periods))
    fix = f"{len(periods)} coordinates turn pairs: use at least {2 * len(periods)} channels"
    require(count > 0, "head_dim", head_dim, fix)
    return 2 * np.pi / np.array(periods) * base ** np.arange(count)[:, None]


def waves(near: jax.Array, far: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The means of cos and sin over the angles from `near` to `far`, arrays of one shape."""
    middle, size = (near + far) / 2, jnp.sinc((far - near) / (2 * np.pi))
    return size * jnp.cos(middle), size * jnp.sin(middle)


@dataclasses.dataclass(frozen=True)
class RayRoPE(Encoding):
    """Rotates q, k, v and the output by rays in the frame of the query's camera.

    Positions are 3 + 6·`rays` numbers, which `positions.rays` makes: the camera's centre, the
    coordinates of the points at the least depths, and at the greatest. Without `centre` they are
    the last 6·`rays`. Channels beyond the pairs are unchanged.
    """

    rays: int = checked(3, "pass 1, 2 or 3", lambda v: is_int(v, 1) and v <= 3)
    base: float = above_field(3.0, 1)
    centre: bool = flag_field(True)

    @property
    def claims(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Claims of real positions, 3 + 6·`rays` numbers."""
        axes = 3 * self.centre + 6 * self.rays
        return Claims(axes=axes, real_positions=True, absolute_rotation=True)

    def check(self, dims):
        """Every coordinate needs a pair of channels."""
        frequencies(dims.head_dim, self.rays, self.base, self.centre)

    def terms(self, params, dims):
        rotation = Rotation(self.rotate, self.rotate)
        return rotation, ValueRotation(self.rotate, self.rotate_outputs)

    def rotate(self, _, x, positions):
        """R(positions) x: [..., T, H or K, E]."""
        return self._turned(x, positions, -1)

    def rotate_outputs(self, _, out, positions):
        """R*(positions) x: [..., T, H, E]."""
        return self._turned(out, positions, 1)

    def _turned(self, x, positions, sign):
        theta = frequencies(x.shape[-1], self.rays, self.base, self.centre)
        theta = jnp.asarray(sign * theta, jnp.float32)
        places = as_positions(positions, real=True).astype(jnp.float32)
        centre, ends = places[..., : -6 * self.rays], places[..., -6 * self.rays :]
        near, far = jnp.split(ends, 2, axis=-1)
        near, far = (jnp.concatenate([centre, end], axis=-1)[..., None, :] for end in (near, far))
        angles = (align(theta, x) * x for x in (near, far))
        cos, sin = (wave.reshape(*wave.shape[:-2], 1, theta.size) for wave in waves(*angles))
        return turn(x, cos, sin)
