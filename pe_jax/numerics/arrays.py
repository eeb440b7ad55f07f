"""Broadcasting and indexing that work under any of JAX's settings and meshes."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from pe_jax.validation import require, shown

F = TypeVar("F", bound=Callable)
FEW_ROWS = 256  # of a table that a TPU multiplies, at more than one axis of indices


def in_32_bits(function: F) -> F:
    """The function with JAX's usual 32-bit types: with `jax_enable_x64` it would draw others."""

    @functools.wraps(function)
    def call(*args, **options):
        with jax.enable_x64(False):
            return function(*args, **options)

    return call  # pyright: ignore[reportReturnType]


def require_array(name: str, x: Any, least: int = 0) -> None:
    """Raises TypeError unless x is an array of floats, of JAX or NumPy, traced or not.

    `least` is how many axes it must have, else a ValueError is raised.
    """
    if not hasattr(x, "ndim"):
        raise TypeError(f"{name}={shown(x, 80)} is a {type(x).__name__}; pass an array")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name} has dtype {x.dtype}; pass floats, as float32")
    require(x.ndim >= least, name, x.shape, f"pass at least {least} axes")


def require_key(name: str, key: Any) -> None:
    """Raises TypeError unless `key` is one PRNG key, of `jax.random.key` or `PRNGKey`."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (typed and shape == ()) and not (dtype == jnp.uint32 and len(shape or ()) == 1):
        given = shown(key, 80) if shape is None else f"{dtype}{list(shape)}"
        raise TypeError(f"{name}={given}: pass one key, as jax.random.key(0)")


def align(x: Any, like: jax.Array) -> jax.Array:
    """`x` with axes of size 1 in front, until it has as many as `like`: [n] → [1, …, 1, n].

    NumPy's rules add them implicitly, which `jax_numpy_rank_promotion="raise"` forbids.
    """
    return jax.lax.broadcast_to_rank(jnp.asarray(x), like.ndim)


def fit(x: jax.Array, axis: int, length: int) -> jax.Array:
    """Cuts or pads one axis of x to `length`."""
    if x.shape[axis] >= length:
        return jax.lax.slice_in_dim(x, 0, length, axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths)


def repeat_heads(x: jax.Array, heads: int) -> jax.Array:
    """Key heads as often as query heads share them: [B, K, S, E] → [B, H, S, E]."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def varying_like(tree: Any, like: Any) -> Any:
    """`tree` typed as varying over the mesh axes that `like` varies over (inside shard_map)."""
    axes = frozenset().union(*(jax.typeof(x).mat.varying for x in jax.tree.leaves(like)))

    def vary(x):
        missing = tuple(axes - jax.typeof(x).mat.varying)
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(vary, tree)


def take(
    table: jax.Array,
    index: jax.Array,
    axis: int = 0,
    rows: int | None = None,
    mode: str | None = None,
) -> jax.Array:
    """The rows of a table at `index` [*n]: one axis of the table becomes the axes *n.

    Under Explicit mesh axes the result is sharded as the index is, which JAX requires to be given.
    On a TPU a table [H, few] at the indices of pairs is a product: by its compiler's estimate a
    gather there takes eight times as long, its gradient twenty times, and 16 times the memory.

    Raises:
      ValueError: the table does not have `rows` rows (None: any): an index could be clamped.
    """
    table, spec = jnp.asarray(table), None
    if rows is not None:
        require(table.shape[axis] == rows, "table", table.shape, f"axis {axis} must have {rows}")
    explicit = explicit_axes()
    of_pairs = table.ndim == 2 and axis == 1 and index.ndim > 1
    few = rows is not None and rows <= FEW_ROWS
    if of_pairs and few and not explicit and jax.default_backend() == "tpu":
        ones = jax.nn.one_hot(index, table.shape[1], dtype=table.dtype)
        return jnp.einsum("hn,...n->h...", table, ones, precision=jax.lax.Precision.HIGHEST)
    if explicit:
        of_table, of_index = (jax.typeof(x).sharding.spec for x in (table, index))
        spec = PartitionSpec(*of_table[:axis], *of_index, *of_table[axis + 1 :])
    return table.at[(*[slice(None)] * axis, index)].get(mode=mode, out_sharding=spec)


def pick(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[b, index[b]] of each row b of a batch: [B, n, …] for x [B, T, …] and index [B, n]."""
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), 1)


def explicit_axes() -> bool:
    """Whether the mesh in force has Explicit axes."""
    return AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types


@functools.partial(jax.jit, static_argnames="axis", inline=True)
def write_rows(old: jax.Array, new: jax.Array, start, axis: int) -> jax.Array:
    """Puts `new`, of the same batch or one for all, at rows `start` and on."""
    new = jnp.broadcast_to(new, (old.shape[0], *new.shape[1:])).astype(old.dtype)

    def put(old, new, start):
        return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis)

    def put_apart(old, new, start):
        # XLA for CPU fuses an update with each of its readers, for which it copies the cache over
        # and over: wrapped in a one-iteration loop to block fusion.
        return jax.lax.fori_loop(start, start + 1, lambda i, old: put(old, new, i), old)

    return jax.lax.platform_dependent(old, new, start, cpu=put_apart, default=put)
