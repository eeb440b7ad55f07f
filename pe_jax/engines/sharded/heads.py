"""Heads that devices share inside shard_map: each has some of q's, and parameters of all."""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class HeadsOfDevice:
    """Picks the heads that a device has along a mesh axis, of arrays with all heads, or one."""

    mesh_axis: str

    def __call__(self, x: jax.Array, axis: int) -> jax.Array:
        """[..., H or 1, …] → [..., h or 1, …]."""
        if x.shape[axis] == 1:
            return x
        count = x.shape[axis] // jax.lax.axis_size(self.mesh_axis)
        start = jax.lax.axis_index(self.mesh_axis) * count
        return jax.lax.dynamic_slice_in_dim(x, start, count, axis)
