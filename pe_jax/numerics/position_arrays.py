"""Positions as arrays: their dtype, whether they are exact, and their axes, checked."""

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from pe_jax.validation import shown

EXACT = 2**24  # float32 holds every integer up to here; above, neighbouring positions collide
PADDING = 2**30  # a position by which code bases mark padding


def concrete(x) -> np.ndarray | None:
    """The values of `x` as NumPy, or None under a trace, where they are not known."""
    return None if isinstance(x, jax.core.Tracer) else np.asarray(x)


def as_positions(positions, *, real: bool = False, name: str = "positions") -> jax.Array:
    """Positions (or distances) as int32, or as float32 where `real` allows it.

    Args:
      positions: integers of any width, or float32 if `real`; any shape.
      real: whether the caller's mathematics is defined between the integers.
      name: used in error messages.

    Raises:
      TypeError: for bool, float16, bfloat16, complex; for float32 unless `real`.
      ValueError: for a known value that does not fit int32, or a float that is not finite or not
        below 2**24.
    """
    if not isinstance(positions, jax.Array):
        try:
            positions = np.asarray(positions)
        except ValueError:  # lists of several lengths
            fix = "pass an array, or lists of one length"
            raise ValueError(f"{name}={shown(positions, 80)}: {fix}") from None
        if positions.size == 0 and positions.dtype == np.float64:  # np.asarray([]) is float64
            positions = positions.astype(np.int32)
    dtype = positions.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        values = concrete(positions) if dtype in (jnp.uint32, jnp.uint64, jnp.int64) else None
        if values is not None and (wrong := values[values.astype(np.int32) != values]).size:
            raise ValueError(f"{name}: {wrong[0]} does not fit int32; keep |position| below 2**31")
        return jnp.asarray(positions).astype(jnp.int32)
    if real and dtype in (jnp.float32, jnp.float64):
        values = concrete(positions)
        if values is not None and not np.isfinite(values).all():
            raise ValueError(f"{name}: holds a value that is not finite; pass finite positions")
        check_exact(positions, name)
        return jnp.asarray(positions, jnp.float32)
    allowed = "integers or float32" if real else "integers"
    note = " (half precision merges positions)" * (dtype in (jnp.float16, jnp.bfloat16))
    raise TypeError(f"{name} has dtype {dtype}; pass {allowed}{note}")


def padding_at_zero(positions):
    """The positions with 0 for `PADDING`, where a table or a power may have no value."""
    values = concrete(positions)
    if values is not None and not (values == PADDING).any():
        return positions
    positions = jnp.asarray(positions)
    return jnp.where(positions == PADDING, 0, positions)


def check_exact(positions, name: str = "positions") -> None:
    """Raises ValueError where a known position is not exact in float32 (|p| ≥ 2**24).

    `PADDING` is left out, here and in `check_near`.
    """
    worst = _farthest(positions)
    if worst is not None and abs(float(worst)) >= EXACT:
        raise ValueError(f"{name}: {worst} is not exact in float32; keep |position| below 2**24")


def check_near(positions, name: str = "positions") -> None:
    """Raises ValueError where a known position is so large that a difference overflows int32."""
    worst = _farthest(positions)
    if worst is not None and abs(float(worst)) >= 2**30:
        raise ValueError(f"{name}: distances overflow int32; keep |position| below 2**30")


def _farthest(positions):
    """The position farthest from 0, or None where none is known."""
    values = concrete(positions)
    values = None if values is None else values[values != PADDING]
    if values is None or not values.size:
        return None
    return values.flat[np.abs(values.astype(np.float64)).argmax()]  # |-2**31| is not an int32


def on_axes(positions, count: int) -> list[jax.Array]:
    """The positions on each of `count` axes, integers or float32: [...] each from [..., count].

    Raises:
      ValueError: another number of axes, and what `as_positions` raises.
      TypeError: half-precision positions.
    """
    positions = as_positions(positions, real=True)
    check_axes(positions, count)
    return [positions[..., axis] for axis in range(count)]


def check_axes(positions: jax.Array, count: int, name: str = "positions") -> None:
    """Raises ValueError unless the last axis has this size."""
    if positions.shape[-1:] != (count,):
        raise ValueError(f"{name} has shape {list(positions.shape)}; pass {count} axes last")
