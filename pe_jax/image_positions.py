"""Positions of images, videos and cameras: grids of patches, and sequences of them with text.

A position of several axes has them last: (row, column), (time, row, column). T tokens, C images.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.numerics.position_arrays import as_positions, concrete
from pe_jax.numerics.products import einsum
from pe_jax.validation import is_int, is_real, python_ints, require, require_bool

FLOAT32_ROUNDING = 2**-22  # of a product of three numbers of float32, relative


@python_ints
def grid(
    height: int, width: int, *, normalized: bool = False, prefix: int = 0, numbered: bool = False
) -> jax.Array:
    """(row, column) of each patch of an image, row by row: [prefix + height·width, 2].

    Args:
      height: patches in a column.
      width: patches in a row.
      normalized: False gives indices (int32): the unit is the patch, and larger images have larger
        positions. True gives the patches' centres on an image whose sides span -1 to 1 (float32,
        each axis separately): the unit is the image, and larger images have denser positions.
      prefix: number of prefix tokens without a position (a class token, registers). They are put at
        (0, 0), where a rotation is the identity, as in DINOv3; for schemes of distances (0, 0) is
        an ordinary position.
      numbered: the prefix is at (-prefix, -prefix), …, (-1, -1) instead, for schemes that have
        parameters for such tokens (`learned_grid` with a prefix, `swin` with a class token).

    Raises:
      ValueError: a size below 1, a negative prefix, `numbered` and `normalized` together.
    """
    _sizes("height, width", (height, width))
    require(is_int(prefix, 0), "prefix", prefix, "pass an integer of at least 0")
    require_bool("numbered", numbered)
    require_bool("normalized", normalized)
    require(not (numbered and normalized), "numbered", numbered, "pass normalized=False with it")
    cells = np.indices((height, width), np.int32).reshape(2, -1).T
    if normalized:
        cells = np.asarray((2 * cells + 1) / (height, width) - 1, np.float32)
    cells = np.pad(cells, ((prefix, 0), (0, 0)))
    if numbered:
        cells[:prefix] = np.arange(-prefix, 0)[:, None]
    return jnp.asarray(cells)


@python_ints
def resized(height: int, width: int, to: tuple[int, int]) -> jax.Array:
    """The patches of an image in the indices of another grid: float32 [height·width, 2].

    A table of size `to`, interpolated at these positions, is the bilinearly resized table: pixel
    centres aligned, edges repeated.

    Raises:
      ValueError: a size below 1.
    """
    _sizes("height, width", (height, width))
    require(np.shape(to) == (2,), "to", to, "pass (height, width)")
    _sizes("to", to)
    centres = (np.asarray(grid(height, width)) + 0.5) * np.divide(to, (height, width)) - 0.5
    return jnp.asarray(np.clip(centres, 0, np.subtract(to, 1)), jnp.float32)


@python_ints
def cameras(poses, height: int, width: int, intrinsics=None, image: Any = None) -> jax.Array:
    """A camera and a patch of its image, for `prope`: float32 [*B, C·height·width, 14].

    12 numbers are the rows of [A b], which takes a point of the world to image coordinates: x = y =
    0 is the middle of an image, whose sides are 1 long. Then come the row and the column.

    Args:
      poses: world to camera, [*B, C, 3 or 4, 4] (a last row 0 0 0 1 is left out): of C images.
      height: patches in a column.
      width: patches in a row.
      intrinsics: focal lengths and centres in pixels, [*B, C, 3, 3]; None: [A b] is the pose.
      image: (height, width) in pixels, with `intrinsics`.

    Raises:
      ValueError: a size below 1; arrays of other shapes; a known last row that is not 0 0 0 1;
        one of intrinsics and `image` without the other.
    """
    _, projections = _projections(poses, height, width, intrinsics, image)
    *batch, count = projections.shape[:-2]
    rows = projections.reshape(*batch, count, 1, 12)
    patches = grid(height, width).astype(jnp.float32)
    shape = (*batch, count, height * width)
    rows, patches = (jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (rows, patches))
    return jnp.concatenate([rows, patches], axis=-1).reshape(*batch, -1, 14)


NEAREST, FURTHEST = 0.01, 100.0  # depths of points on rays
FROM_CAMERA = 10.0  # the greatest depth from the camera that looks
CORNERS = {1: [(0.5, 0.5)], 2: [(0, 0), (1, 1)], 3: [(0, 0), (1, 0), (0, 1)]}  # (x, y) of a patch


@python_ints
def rays(
    poses, height: int, width: int, near, far, intrinsics=None, image: Any = None, rays: int = 3
) -> tuple[jax.Array, jax.Array]:
    """Patches as each camera sees them, for `rayrope`: float32 [*B, C, N, A], [*B, C, C·N, A].

    Wu et al., "RayRoPE", arXiv 2601.15275, as in its released code. N = height·width, A = 3 +
    6·rays. The first are the patches of a camera in its own frame, for queries, the others those of
    all cameras in its frame, for keys: the centre of the patch's camera; for each ray x and y of
    the direction in which that frame's camera sees the point at `near`, then for each its depth, at
    most 10; the same at `far`. A point behind that camera has the depth of its mirror image.

    A layer that predicts depths gives, of x, two numbers m and s: exp(min(m - s, 3)) and
    exp(min(m + s, 3)). Where they are known, pass them twice.

    Args:
      poses: as for `cameras`.
      height: patches in a column.
      width: patches in a row.
      near: depth of the nearest point, [*B, C, N] or [*B, C, N, rays]: between 0.01 and 100, beyond
        which it is cut.
      far: the furthest, of the same shape.
      intrinsics: as for `cameras`.
      image: as for `cameras`.
      rays: 1 through a patch's middle, 2 or 3 through its corners.

    Raises:
      ValueError: as for `cameras`; depths of another shape; a number of rays that is none of these.
    """
    require(is_int(rays, 1) and rays in CORNERS, "rays", rays, "pass 1, 2 or 3")
    poses, projections = _projections(poses, height, width, intrinsics, image)
    shape = (*poses.shape[:-2], height * width)
    fix = f"pass {[*shape]} or {[*shape, rays]}"
    depths = []
    for name, depth in {"near": near, "far": far}.items():
        depth = jnp.asarray(depth, jnp.float32)
        require(depth.shape in (shape, (*shape, rays)), f"{name}.shape", depth.shape, fix)
        depth = depth.reshape(*shape, -1).clip(NEAREST, FURTHEST)
        depths.append(jnp.broadcast_to(depth, (*shape, rays)))
    cells = np.stack(np.divmod(np.arange(height * width), width)[::-1], -1)  # (x, y), under jit too
    corners = cells[:, None] + np.array(CORNERS[rays])
    pixels = np.pad(corners / (width, height) - 0.5, ((0, 0), (0, 0), (0, 1)), constant_values=1)
    on_rays = jnp.stack(depths)[..., None] * pixels.astype(np.float32)  # [2, *B, C, N, rays, 3]
    x, y, z = jnp.moveaxis(_in_each_frame(projections, on_rays), -1, 0)
    length = jnp.sqrt(x**2 + y**2 + z**2 + 1e-12)
    direction = jnp.stack([x / length, y / length], axis=-1)
    ends = [direction.reshape(*x.shape[:-1], -1), jnp.minimum(abs(z), FROM_CAMERA)]
    ends = jnp.concatenate(ends, axis=-1)  # [2, *B, C, C, N, 3·rays]
    centres = _in_each_frame(poses, jnp.zeros((*poses.shape[:-2], 1, 1, 3), jnp.float32))
    centres = jnp.broadcast_to(centres[..., 0, :], (*ends.shape[1:-1], 3))
    seen = jnp.concatenate([centres, *ends], axis=-1)
    own = jnp.moveaxis(jnp.diagonal(seen, axis1=-4, axis2=-3), -1, -3)
    return own, seen.reshape(*shape[:-1], -1, seen.shape[-1])


def _in_each_frame(maps: jax.Array, points: jax.Array) -> jax.Array:
    """Points [..., C, N, R, 3], of C frames in every frame: [..., C, C, N, R, 3].

    `maps` [*B, C, 3, 4] are [A b] from the world to the frames.
    """
    matrices, shifts = maps[..., :3], maps[..., 3]
    back = einsum(
        "...cij,...cnrj->...cnri", jnp.linalg.inv(matrices), points - shifts[..., None, None, :]
    )
    moved = einsum("...qij,...cnrj->...qcnri", matrices, back)
    return moved + shifts[..., None, None, None, :]


def _projections(poses, height, width, intrinsics, image) -> tuple[jax.Array, jax.Array]:
    """Poses and [A b] of `cameras` from its arguments, checked: float32 [*B, C, 3, 4]."""
    _sizes("height, width", (height, width))
    poses = jnp.asarray(poses, jnp.float32)
    ok = poses.ndim > 2 and poses.shape[-2:] in ((3, 4), (4, 4))
    require(ok, "poses.shape", poses.shape, "pass [*B, C, 3, 4] or [*B, C, 4, 4]")
    poses, last = poses[..., :3, :], concrete(poses[..., 3:, :])
    off = () if last is None else last[(abs(last - (0, 0, 0, 1)) > 1e-3).any(-1)]
    fix = "pass [A b; 0 0 0 1], which maps columns; transpose a matrix that maps rows"
    require(len(off) == 0, "poses: last row", [*off[:1]], fix)
    projections = poses
    if intrinsics is None:
        require(image is None, "image", image, "pass intrinsics with it")
    else:
        lenses = jnp.asarray(intrinsics, jnp.float32)
        fix = f"pass {[*poses.shape[:-2], 3, 3]}"
        require(lenses.shape == (*poses.shape[:-2], 3, 3), "intrinsics.shape", lenses.shape, fix)
        require(np.shape(image) == (2,), "image", image, "pass (height, width) in pixels")
        _sizes("image", image)
        rows, columns = image
        scale = jnp.asarray([[1 / columns, 0, -0.5], [0, 1 / rows, -0.5], [0, 0, 1]], jnp.float32)
        projections = einsum("ij,...jk,...kl->...il", scale, lenses, projections)
    return poses, projections


@python_ints
def multimodal(spans, interval=1, centred: bool = False) -> jax.Array:
    """(time, row, column) of text, images and videos in one sequence: int32 [T, 3].

    Wang et al., "Qwen2-VL", arXiv 2409.12191, §2.1: text has the same position on all axes; all
    patches of an image have the same time; its rows and columns, and the frames of a video, count
    from its start; what follows starts one past the largest position so far. (Hugging Face's code
    starts one past the rows and columns only, which differs for a video with more frames.)

    Qwen2.5-VL counts seconds: frame n is at floor(n · `interval`), and the interval is the config's
    `tokens_per_second` times the seconds from one frame (in patches) to the next. A product
    within float32's rounding of an integer is that integer: with 25 positions per second, of 3
    frames per 2 seconds the third is at 50, not at floor(49.999…). (Hugging Face's code computes
    in float32, and is one below in a few cases.)

    `centred` is the diagonal layout of VideoRoPE (arXiv 2502.05173, §4, `interval` 2 in its code)
    and of Ling 3.0 VL: frame n has the time t = start + n · `interval`, not rounded; row r of H is
    at t + r - ⌊(H-1)/2⌋, a column in the same way, so that the middle of each frame is on the
    diagonal, as text is; what follows starts one past the last frame's time, as in the released
    code (the paper: one interval past). Positions of tall images may be negative. Float32 where an
    interval is not an integer. `mrope(time_last=True)` has the frequencies of both.

    Args:
      spans: in order; each is `n` text tokens, `(height, width)` of an image, or `(frames, height,
        width)` of a video, in patches as the language model sees them.
      interval: positions from one frame to the next, a number above 0, or one for each video.
      centred: whether rows and columns count from the middle of a frame.

    Raises:
      ValueError: a span that is none of these, or a size below 1; an interval that is not above 0,
        or not one per video.
    """
    sizes = _spans(spans)
    require_bool("centred", centred)
    videos = sum(len(size) == 3 for size in sizes)
    scalar = np.ndim(interval) == 0
    intervals: Any = [interval] * max(videos, 1) if scalar else interval
    ok = (scalar or len(intervals) == videos) and all(is_real(x) and x > 0 for x in intervals)
    fix = f"pass a number above 0, or one for each of {videos} videos"
    require(ok, "interval", interval, fix)
    steps, start, blocks = iter(map(float, intervals)), 0, [np.zeros((0, 3))]
    for size in sizes:
        cells = np.repeat(np.arange(size[0])[:, None], 3, axis=1).astype(float)
        if len(size) > 1:
            cells = np.indices((1, *size)[-3:], float).reshape(3, -1).T
            time = cells[:, 0] * (next(steps) if len(size) == 3 else 1)
            cells[:, 0] = time if centred else np.floor(time * (1 + FLOAT32_ROUNDING))
            if centred:
                cells[:, 1:] += time[:, None] - (np.array(size[-2:]) - 1) // 2
        blocks.append(start + cells)
        start += cells[:, : 1 if centred else 3].max() + 1
    places = np.concatenate(blocks)
    whole = not centred or all(float(x).is_integer() for x in intervals)
    return as_positions(places.astype(np.int64 if whole else np.float32), real=True)


@python_ints
def v2pe(spans, step: float) -> jax.Array:
    """p_0 = 0, p_i = p_(i-1) + 1 for text and p_(i-1) + `step` for patches: float32 [T].

    Ge et al., "V2PE", arXiv 2412.09616: patches are dense, and long sequences stay inside the
    trained positions. InternVL 3 draws 1, 1/2, …, or 1/256 for each sequence in training; in tests
    the step is chosen by length. (The released code also rounds up where text goes on, which
    changes nothing for images of 256 patches and these steps.)

    Args:
      spans: see `multimodal`; patches count row by row, frame by frame.
      step: above 0 and at most 1.

    Raises:
      ValueError: a span that is none of these, or a size below 1; a step outside (0, 1].
    """
    require(is_real(step) and 0 < step <= 1, "step", step, "pass a number in (0, 1]")
    sizes = _spans(spans)
    blocks = [np.full(math.prod(n), 1.0 if len(n) == 1 else float(step)) for n in sizes]
    steps = np.concatenate([np.zeros(0), *blocks])
    return as_positions(np.float32(np.cumsum(steps) - steps[:1]), real=True)


@python_ints
def circle(spans, radius: float = 10.0, alpha: float = 0.5) -> jax.Array:
    """(time, row, column) of text and images, each image on a ring around the text: float32 [T, 3].

    Circle-RoPE: Wang et al., arXiv 2505.16416. A patch at (x, y) from the middle of its image
    is moved to r (u cos θ + v sin θ), where u and v are orthonormal and orthogonal to the diagonal
    of text, whose tokens hence have one distance to all patches of an image:

        θ = α·φ + (1-α)·2π·index/(H·W),    φ = atan2(y, x), stretched over the image to 0 … 2π

    The middle of the ring is where a text token would be; what follows starts one past the largest
    coordinate. The defaults are those of the released config; its layers alternate between these
    positions and those of `multimodal`.

    Args:
      spans: see `multimodal`; no videos, which the released code has no rings for.
      radius: r, above 0, in positions.
      alpha: 0 spaces patches evenly in reading order, 1 keeps their directions.

    Raises:
      ValueError: a video, a span that is none of these, or a size below 1; a radius that is not
        above 0; an alpha outside [0, 1].
    """
    require(is_real(radius) and radius > 0, "radius", radius, "pass a number above 0")
    require(is_real(alpha) and 0 <= alpha <= 1, "alpha", alpha, "pass a number in [0, 1]")
    start, blocks = 0, [np.zeros((0, 3))]
    across, along = np.array([[0, 1, -1], [2, -1, -1]]) / np.sqrt([[2], [6]])  # (time, row, column)
    for size in _spans(spans):
        require(len(size) < 3, "spans", size, "pass images, or the positions of multimodal")
        cells = np.repeat(np.arange(size[0])[:, None], 3, axis=1).astype(float)
        if len(size) == 2:
            y, x = np.indices(size).reshape(2, -1) - (np.array(size)[:, None] - 1) / 2
            direction = np.arctan2(y, x)
            if len(direction) > 1:
                direction = 2 * np.pi * (direction - direction.min()) / np.ptp(direction)
            even = 2 * np.pi * np.arange(len(x)) / len(x)
            angle = (alpha * direction + (1 - alpha) * even)[:, None]
            cells = radius * (across * np.cos(angle) + along * np.sin(angle))
        blocks.append(start + cells)
        start += cells.max() + 1
    return as_positions(np.float32(np.concatenate(blocks)), real=True)


def _spans(spans) -> list[tuple[int, ...]]:
    """Spans of `multimodal` as tuples, checked."""
    fix = "pass a list of spans, as [5, (2, 3), 4]"
    require(isinstance(spans, list | tuple | np.ndarray), "spans", spans, fix)
    sizes = [tuple(np.atleast_1d(span).tolist()) for span in spans]
    for span, size in zip(spans, sizes, strict=True):
        if len(size) > 3:
            raise ValueError(f"spans: {span!r}: pass n, (height, width) or (frames, height, width)")
        _sizes("spans", size)
    return sizes


def _sizes(name: str, sizes) -> None:
    ok = all(is_int(n, 1) for n in sizes)
    require(ok, name, tuple(sizes), "pass integers of at least 1")
