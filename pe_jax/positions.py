"""Where a token is: positions, and the checks that every scheme makes of them.

Positions say where a token is; what it may see is decided by token indices and segments
(`pe_jax.engines.mask`), never by positions, which may repeat or run backwards.
B batch, T tokens. A position of several axes has them last: (row, column), (time, row, column).
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


def grid(height: int, width: int, *, normalized: bool = False, prefix: int = 0) -> jax.Array:
    """(row, column) of each patch of an image, row by row: [prefix + height·width, 2].

    Args:
      height: patches in a column.
      width: patches in a row.
      normalized: False gives indices (int32): the patch is the unit, a larger image has further
        positions. True gives the patches' centres on an image whose sides span -1 to 1 (float32,
        each axis by itself): the image is the unit, a larger one has positions closer together.
      prefix: so many tokens in front that stand nowhere (a class token, registers). They are put at
        (0, 0), where a rotation turns by nothing, as DINOv3 leaves them; to schemes that look at
        distances (0, 0) is a place like any other.

    Raises:
      ValueError: a size below 1, a negative prefix.
    """
    _sizes("height, width", (height, width))
    if not 0 <= prefix:
        raise ValueError(f"prefix={prefix!r}: pass an integer of at least 0")
    places = np.indices((height, width), np.int32).reshape(2, -1).T
    if normalized:
        places = np.asarray((2 * places + 1) / (height, width) - 1, np.float32)
    return jnp.asarray(np.pad(places, ((prefix, 0), (0, 0))))


def resized(height: int, width: int, to: tuple[int, int]) -> jax.Array:
    """Where the patches of an image fall on the indices of another grid: float32 [height·width, 2].

    A table of `to` places, read between them at these, is the table resized as usual: bilinear,
    pixel centres aligned, the edge repeated.

    Raises:
      ValueError: a size below 1.
    """
    _sizes("height, width", (height, width))
    _sizes("to", to)
    centres = (np.asarray(grid(height, width)) + 0.5) * np.divide(to, (height, width)) - 0.5
    return jnp.asarray(np.clip(centres, 0, np.subtract(to, 1)), jnp.float32)


def multimodal(spans) -> jax.Array:
    """(time, row, column) of text, images and videos in one sequence: int32 [T, 3].

    Wang et al., "Qwen2-VL", arXiv 2409.12191, §2.1: text counts on all axes alike; an image stands
    at one time; its rows and columns, and the frames of a video, count from where it begins; what
    follows begins one past the largest position so far. (Hugging Face's code begins one past the
    rows and columns alone, which differs for a video of more frames than either.)

    Args:
      spans: in order; each `n` text tokens, `(height, width)` of an image, or `(frames, height,
        width)` of a video, in patches as the language model sees them.

    Raises:
      ValueError: a span that is none of these, or a size below 1.
    """
    found, start = [np.zeros((0, 3), np.int32)], 0
    for span in spans:
        sizes = tuple(np.atleast_1d(span).tolist())
        if len(sizes) > 3:
            raise ValueError(f"spans: {span!r}: pass n, (height, width) or (frames, height, width)")
        _sizes("spans", sizes)
        if len(sizes) == 1:
            places = np.repeat(np.arange(sizes[0], dtype=np.int32)[:, None], 3, axis=1)
        else:
            sizes = (1,) * (3 - len(sizes)) + sizes
            places = np.indices(sizes, np.int32).reshape(3, -1).T
        found.append(start + places)
        start += int(places.max()) + 1
    return jnp.asarray(np.concatenate(found))


def _sizes(name: str, sizes) -> None:
    ok = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in sizes)
    if not ok:
        raise ValueError(f"{name}={tuple(sizes)}: pass integers of at least 1")


def on_axes(positions, count: int) -> list[jax.Array]:
    """The positions on each of `count` axes, integers or float32: [...] each from [..., count].

    Raises:
      ValueError: another number of axes, and what `as_positions` raises.
      TypeError: half-precision positions.
    """
    positions = as_positions(positions, real=True)
    if positions.shape[-1:] != (count,):
        raise ValueError(f"positions has shape {list(positions.shape)}; pass {count} axes last")
    return [positions[..., axis] for axis in range(count)]


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
