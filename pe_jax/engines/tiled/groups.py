"""Groups of heads that take turns: how operands are cut into groups and results are joined."""

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Axes(enum.Enum):
    """The leading axes of an array, along which groups are cut from it."""

    BATCH_AND_HEADS = enum.auto()  # [B, H or K, …]
    HEADS = enum.auto()  # [H or 1, …], or any axes where every group has all heads
    BATCH = enum.auto()  # [B or 1, …]
    NONE = enum.auto()  # every group has the whole array


class Groups(NamedTuple):
    """How many groups of batch rows and heads take turns, and how large they are."""

    batch: int  # number of cuts of the batch
    heads: int  # number of cuts of the heads
    batch_size: int  # rows of the batch in each
    heads_size: int  # heads in each

    @property
    def total(self) -> int:
        """Number of groups."""
        return self.batch * self.heads

    def map(self, f: Callable, axes: tuple, args: tuple, out_axes: Any, out_shapes: Any) -> Any:
        """f(*args) of every group, joined.

        Args:
          f: a function of a group's arrays.
          axes: for each argument a pytree of `Axes`, which may be a prefix of the argument.
          args: pytrees of arrays.
          out_axes: the same for f's result.
          out_shapes: of the joined results: arrays, or `jax.ShapeDtypeStruct`s.
        """
        if self.total == 1:
            return f(*args)

        def of_group(u):
            return f(*map_by_axes(functools.partial(self._cut, u), axes, args))

        results = jax.lax.map(of_group, jnp.arange(self.total, dtype=jnp.int32))
        return map_by_axes(self._join, out_axes, results, out_shapes)

    def _cut(self, u, axes: Axes, x: jax.Array) -> jax.Array:
        """The cut of x for group u."""
        row, head = u // self.heads, u % self.heads
        cut = jax.lax.dynamic_slice_in_dim
        if axes is Axes.NONE:
            return x
        if axes is Axes.HEADS:
            whole = self.heads == 1 or len(x) == 1
            return x if whole else cut(x, head * self.heads_size, self.heads_size, 0)
        x = x if len(x) == 1 else cut(x, row * self.batch_size, self.batch_size, 0)
        if axes is Axes.BATCH:
            return x
        heads = self.heads * self.heads_size
        count = x.shape[1] * self.heads_size // heads  # key heads of a group; 0: part of one
        return cut(x, head * self.heads_size * x.shape[1] // heads, max(count, 1), 1)

    def _join(self, axes: Axes, results: jax.Array, whole: Any) -> jax.Array:
        """Results [groups, …] in the shape of `whole`; shared entries are summed."""
        x = results.reshape(self.batch, self.heads, *results.shape[1:])
        if axes is Axes.HEADS:
            x = x.sum(0)
            one = self.heads == 1 or len(whole) > 1
            return x.reshape(whole.shape) if one else x.sum(0)
        count = whole.shape[1] // x.shape[3]  # groups with separate key heads
        x = x.reshape(self.batch, count, -1, *x.shape[2:]).sum(2)
        return jnp.swapaxes(x, 1, 2).reshape(whole.shape)


def map_by_axes(f: Callable, axes: Any, *trees: Any) -> Any:
    """f(axes, x, …) of every array; `axes` may be a prefix of the trees."""

    def subtree(axes, *trees):
        return jax.tree.map(functools.partial(f, axes), *trees)

    return jax.tree.map(subtree, axes, *trees)
