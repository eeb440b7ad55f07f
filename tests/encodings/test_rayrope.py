"""RayRoPE against arXiv 2601.15275, as its authors' released code computes it, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from pe_jax import positions as pos
from tests import util
from tests.encodings.test_prope import COLUMNS, IMAGE, ROWS, B, C, views

N = ROWS * COLUMNS  # patches of an image
OFFSETS = {1: [(0.5, 0.5)], 2: [(0, 0), (1, 1)], 3: [(0, 0), (1, 0), (0, 1)]}


def scene():
    """Poses [B, C, 4, 4], lenses in pixels, and depths [B, C, N] of a network's m and s."""
    rng, (poses, lenses) = np.random.default_rng(1), views()
    m, s = rng.standard_normal((B, C, N)), rng.uniform(0.1, 1, (B, C, N))
    return poses, lenses, np.exp(np.minimum(m - s, 3)), np.exp(np.minimum(m + s, 3))


def released(poses, lenses, near, far, rays):
    """Their coordinates of one row, [C, C, N, A], from homogeneous points (x, y, z, 1/depth)."""
    projections = np.tile(np.eye(4), (C, 1, 1))
    for projection, lens in zip(projections, lenses, strict=True):
        projection[0, [0, 2]] = lens[0, 0] / IMAGE[1], lens[0, 2] / IMAGE[1] - 0.5
        projection[1, [1, 2]] = lens[1, 1] / IMAGE[0], lens[1, 2] / IMAGE[0] - 0.5
    projections, to_world = projections @ poses, np.linalg.inv(projections @ poses)
    seen = np.zeros((C, C, N, 3 + 6 * rays))
    for q, c, n in np.ndindex(C, C, N):
        numbers = [(poses[q] @ np.linalg.inv(poses[c])[:, 3])[:3]]
        for depth in (near[c, n], far[c, n]):
            directions, depths = [], []
            for x, y in OFFSETS[rays]:
                u, v = (n % COLUMNS + x) / COLUMNS - 0.5, (n // COLUMNS + y) / ROWS - 0.5
                point = projections[q] @ to_world[c] @ [u, v, 1, 1 / np.clip(depth, 0.01, 100)]
                directions.append(point[:2] / np.linalg.norm(point[:3]))
                depths.append(min(abs(point[2] / point[3]), 10))
            numbers += [*directions, depths]
        seen[q, c, n] = np.concatenate(numbers)
    return seen


@pytest.mark.parametrize("rays", [1, 2, 3])
def test_positions_are_those_of_the_released_code(rays):
    poses, lenses, near, far = scene()
    near[0, 0, :2] = 0, 200  # cut at 0.01 and 100
    given = ROWS, COLUMNS, near, far, lenses, IMAGE, rays
    own, seen = jax.jit(lambda poses: pos.rays(poses, *given))(poses)
    assert own.dtype == seen.dtype == jnp.float32
    want = np.stack([released(*row, rays) for row in zip(poses, lenses, near, far, strict=True)])
    util.assert_close(seen, want.reshape(B, C, C * N, -1))
    np.testing.assert_array_equal(own, np.stack([seen[:, c, N * c :][:, :N] for c in range(C)], 1))
    each = np.repeat(near[..., None], rays, axis=-1)
    util.assert_close(pos.rays(poses, ROWS, COLUMNS, each, far, lenses, IMAGE, rays)[1], seen)


@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_attention_is_the_released_function(engine):
    rayrope, (q, k, v) = (
        pe_jax.make("rayrope"),
        (util.noise(B, C * N, 2, 48, seed=s) for s in (1, 2, 3)),
    )
    poses, lenses, near, far = scene()
    own, seen = pos.rays(poses, ROWS, COLUMNS, near, far, lenses, IMAGE)
    q = q.reshape(B, C, N, 2, 48)
    k, v = (np.broadcast_to(x[:, None], (B, C, *x.shape[1:])) for x in (k, v))
    how = {"encoding": rayrope, "implementation": engine, "causal": False}
    ours = pe_jax.attention(q, k, v, q_positions=own, k_positions=seen, **how)
    for b, c in np.ndindex(B, C):
        places = released(poses[b], lenses[b], near[b], far[b], 3).reshape(C, C * N, -1)[c]
        row = np.zeros((C * N, 2, 48))  # queries of the other cameras are not looked at
        row[N * c : N * (c + 1)] = q[b, c]
        options = {"positions": places, "causal": False}
        want = naive.attention("rayrope", row, k[b, c], v[b, c], **options)
        util.assert_close(ours[b, c], want[N * c : N * (c + 1)])


def test_the_frame_of_the_world_does_not_matter():
    poses, *rest = scene()
    world = np.eye(4)
    world[:3] = [[0, -1, 0, 0.5], [1, 0, 0, -2], [0, 0, 1, 1]]
    moved = (pos.rays(x, ROWS, COLUMNS, *rest[1:], rest[0], IMAGE) for x in (poses, poses @ world))
    util.assert_close(*moved)


def test_turning_around_attention_is_the_same_and_has_gradients_of_depths():
    rayrope, (poses, lenses, near, far) = pe_jax.make("rayrope"), scene()
    q, k, v = (util.noise(B, C, n, 2, 24, seed=n) for n in (N, C * N, C * N))

    def loss(far, around):
        own, seen = pos.rays(poses, ROWS, COLUMNS, near, far, lenses, IMAGE)
        if not around:
            how = {"q_positions": own, "k_positions": seen, "encoding": rayrope}
            return pe_jax.attention(q, k, v, causal=False, **how).sum()
        turned = (rayrope.rotate(None, *x) for x in ((q, own), (k, seen), (v, seen)))
        out = pe_jax.attention(*turned, causal=False)
        return rayrope.rotate_outputs(None, out, own).sum()

    far = jnp.asarray(far, jnp.float32)
    value, slopes = jax.value_and_grad(loss)(far, True)
    util.assert_close(value, loss(far, False))
    step = 1e-2 * util.noise(B, C, N)
    difference = (loss(far + step, True) - loss(far - step, True)) / 2
    util.assert_close((slopes * step).sum(), difference, 2e-3)
    assert abs((slopes * step).sum()) > 0.01
    assert np.isfinite(jax.grad(loss)(jnp.asarray(near, jnp.float32), True)).all()  # known depths
