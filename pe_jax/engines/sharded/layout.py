"""How the rows of tokens of a call lie on devices.

A layout gives default positions and indices, and what depends on the order of tokens (running sums,
positions that restart in each document). It does not choose the engine: see `dispatch`.

B batch, T tokens, D width, H heads, C numbers of a state, P blocks, c = T/P tokens in each.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pe_jax import positions as pos
from pe_jax.encodings.terms import State
from pe_jax.validation import require


@dataclasses.dataclass(frozen=True)
class Contiguous:
    """Tokens lie in order: element i of a row is token i."""

    def order(self, length: int) -> jax.Array:
        """The index of the token in each element: int32 [T]."""
        return pos.contiguous(length)

    def spread(self, x: jax.Array) -> jax.Array:
        """Moves rows [B, T, …] from the order of tokens to this layout."""
        return x

    def restore(self, x: jax.Array) -> jax.Array:
        """The inverse of `spread`."""
        return x

    def per_segment(self, segments) -> jax.Array:
        """`positions.per_segment` of segments [B, T] in this layout."""
        return self.spread(pos.per_segment(self.restore(jnp.asarray(segments))))

    def previous(self, x: jax.Array, axis: int, first: int = 0) -> jax.Array:
        """What the token before each has, `axis` being that of tokens; `first` before the first."""
        start = jnp.full_like(jax.lax.slice_in_dim(x, 0, 1, axis=axis), first)
        return jnp.concatenate([start, jax.lax.slice_in_dim(x, 0, -1, axis=axis)], axis)

    def state(self, state: State, x: jax.Array, positions) -> jax.Array:
        """The states [*B, T, H, C] of tokens in this layout."""
        return state(x, positions)


CONTIGUOUS = Contiguous()


@dataclasses.dataclass(frozen=True)
class RowSharded(Contiguous):
    """Each row lies whole on one device: under jit, `attention(…, layout=RowSharded(mesh, axes))`.

    Along axes that are not in `batch` each device computes the same.
    """

    mesh: Mesh  # the devices; its axes are Auto
    batch: tuple[str, ...]  # mesh axes that share the rows


@dataclasses.dataclass(frozen=True)
class BlockPermuted(Contiguous):
    """Devices share the tokens of a row: under jit, `attention(…, layout=BlockPermuted(mesh))`.

    A row is cut into P equal blocks. Under a causal mask the last tokens see most: device i of n
    holds blocks i and 2n - 1 - i of 2n, so that all have equal work (Llama 3, arXiv 2407.21783,
    §3.3.2; Brandon et al., "Striped Attention", arXiv 2311.09431, use another order). A sliding
    window is equal work for every token: pass `balanced=False`, and blocks lie in order.

    Tokens, segments, positions, q, k and v must lie as `spread` lays them, and so does the
    output. `spread` and `restore` move whole tokens between devices: they are for ids, positions
    and losses, a few bytes per token, once per step. Everything between stays where it is.
    """

    mesh: Mesh  # the devices; its axes are Auto
    axis: str = "seq"  # the mesh axis that shares the tokens of a row
    batch: tuple[str, ...] = ()  # mesh axes that share the rows
    heads: str | None = None  # the mesh axis that shares the heads
    balanced: bool = True  # a device holds a block from either half of a row, for causal attention

    def __post_init__(self):
        for axis in self.axes:
            names = self.mesh.axis_names
            require(axis in names, "mesh axis", axis, f"use {names}")
        auto = all(kind == AxisType.Auto for kind in self.mesh.axis_types)
        require(auto, "mesh", self.mesh, "make its axes Auto (jax.make_mesh(…, axis_types=…))")

    @property
    def axes(self) -> tuple[str, ...]:
        """All mesh axes that this layout names."""
        return self.axis, *self.batch, *((self.heads,) if self.heads else ())

    @property
    def devices(self) -> int:
        """Number of devices that share a row: n."""
        return self.mesh.shape[self.axis]

    @property
    def blocks(self) -> np.ndarray:
        """Blocks in this layout, int [P]: 0, 2n - 1, 1, 2n - 2, …; in order if not balanced."""
        first = np.arange(self.devices)
        return np.stack([first, 2 * len(first) - 1 - first], 1).ravel() if self.balanced else first

    def _cut(self, x, axis: int):
        """[..., T, …] → [..., P, c, …]; raises ValueError where T is no multiple of P."""
        length, blocks = x.shape[axis], len(self.blocks)
        if length % blocks:
            raise ValueError(f"{length} tokens: must divide into {blocks} blocks, for the ring")
        return x.reshape(*x.shape[:axis], blocks, length // blocks, *x.shape[axis + 1 :])

    def order(self, length):
        return self._cut(pos.contiguous(length), 0)[self.blocks].reshape(-1)

    def spread(self, x):
        rows = self._cut(x, 1)[:, self.blocks].reshape(x.shape)
        spec = PartitionSpec(self.batch or None, self.axis)
        return jax.lax.with_sharding_constraint(rows, NamedSharding(self.mesh, spec))

    def restore(self, x):
        return self._cut(x, 1)[:, np.argsort(self.blocks)].reshape(x.shape)

    def previous(self, x, axis, first=0):
        """Within each block, and of its first token the end of the block before: little travels."""
        blocks = self._cut(x, axis)
        ends = jax.lax.index_in_dim(blocks, -1, axis + 1, keepdims=False)
        in_order = jnp.take(ends, np.argsort(self.blocks), axis)
        before = jnp.take(super().previous(in_order, axis, first), self.blocks, axis)
        rest = jax.lax.slice_in_dim(blocks, 0, -1, axis=axis + 1)
        return jnp.concatenate([jnp.expand_dims(before, axis + 1), rest], axis + 1).reshape(x.shape)

    def state(self, state, x, positions):
        """Each block's states by themselves, continued from the block before: no token travels."""
        resume = state.after
        if resume is None:
            return state(x, positions)
        batch = x.ndim - 2
        states = state(self._cut(x, batch), None)  # [*B, P, c, H, C]
        ends = jnp.moveaxis(states[..., -1, :, :], batch, 0)

        def step(before, end):
            after = resume(before, end[..., None, :, :])
            return after[..., 0, :, :], before

        inverse = np.argsort(self.blocks)
        _, before = jax.lax.scan(step, jnp.zeros_like(ends[0]), ends[inverse])
        moved = resume(jnp.moveaxis(before[self.blocks], 0, batch), states)
        return moved.reshape(*x.shape[:-1], *moved.shape[-2:])
