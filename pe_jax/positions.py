"""Where a token is: positions, and the checks that every scheme makes of them.

Positions say where a token is; what it may see is decided by token indices and segments
(`pe_jax.engines.mask`), never by positions, which may repeat or run backwards.
B batch, T tokens.
"""

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

EXACT = 2**24  # float32 holds every integer up to here; beyond, neighbouring positions collide


def concrete(x) -> np.ndarray | None:
    """The values of `x` as NumPy, or None where they are not known (under a trace)."""
    return None if isinstance(x, jax.core.Tracer) else np.asarray(x)


def contiguous(length: int, offset: int | jax.Array = 0) -> jax.Array:
    """`offset, offset + 1, …`: int32 [length]. Decoding passes the number of tokens before."""
    return jnp.arange(length, dtype=jnp.int32) + jnp.asarray(offset, jnp.int32)


def per_segment(segments) -> jax.Array:
    """Positions that restart at 0 in each run of equal segment ids: int32 [*B, T]."""
    segments = jnp.asarray(segments)
    index = jnp.broadcast_to(contiguous(segments.shape[-1]), segments.shape)
    begins = jnp.concatenate(
        [jnp.zeros_like(segments[..., :1], bool), segments[..., 1:] != segments[..., :-1]], axis=-1
    )
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=segments.ndim - 1)


def as_positions(positions, *, real: bool = False, name: str = "positions") -> jax.Array:
    """Positions (or distances) as int32, or as float32 where `real` allows it.

    Args:
      positions: integers of any width, or float32 if `real`; any shape.
      real: whether the caller's mathematics is defined between the integers.
      name: what to call them in an error.

    Raises:
      TypeError: for bool, float16, bfloat16, complex; for float32 unless `real`.
      ValueError: for a known value that does not fit int32, or a float that is not finite or not
        below 2**24.
    """
    if not isinstance(positions, jax.Array):
        positions = np.asarray(positions)
        if positions.size == 0 and positions.dtype == np.float64:  # np.asarray([]) is float64
            positions = positions.astype(np.int32)
    dtype = positions.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        if dtype in (jnp.uint32, jnp.uint64, jnp.int64):
            known = concrete(positions)
            if (
                known is not None
                and known.size
                and not -(2**31) <= known.min() <= known.max() < 2**31
            ):
                worst = known.max() if known.max() >= 2**31 else known.min()
                raise ValueError(f"{name}: {worst} does not fit int32; keep |position| below 2**31")
        return jnp.asarray(positions).astype(jnp.int32)
    if real and dtype in (jnp.float32, jnp.float64):
        known = concrete(positions)
        if known is not None and not np.isfinite(known).all():
            raise ValueError(f"{name}: holds a value that is not finite; pass finite positions")
        check_exact(positions, name)
        return jnp.asarray(positions, jnp.float32)
    allowed = "integers or float32" if real else "integers"
    raise TypeError(f"{name} has dtype {dtype}; pass {allowed} (half precision merges positions)")


def check_exact(positions, name: str = "positions") -> None:
    """Raises ValueError where a known position is not exact in float32 (|p| ≥ 2**24)."""
    known = concrete(positions)
    if known is None or not known.size:
        return
    size = np.abs(known.astype(np.float64))  # |-2**31| is not an int32
    if size.max() >= EXACT:
        worst = known.flat[size.argmax()]
        raise ValueError(f"{name}: {worst} is not exact in float32; keep |position| below 2**24")


def check_near(positions, name: str = "positions") -> None:
    """Raises ValueError where a known position is so far out that a difference overflows int32."""
    known = concrete(positions)
    if known is not None and known.size and np.abs(known.astype(np.float64)).max() >= 2**30:
        raise ValueError(f"{name}: distances overflow int32; keep |position| below 2**30")
