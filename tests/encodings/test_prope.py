"""PRoPE against arXiv 2507.10496, as the authors' released function computes it, in float64."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from pe_jax import positions as pos
from tests import util

PROPE = pe_jax.make("prope")
B, C, ROWS, COLUMNS, E = 2, 3, 2, 3, 16  # batch, cameras, patches, head width
IMAGE = (48, 80)  # pixels: height, width
RNG = np.random.default_rng(0)
QKV = [RNG.standard_normal((B, C * ROWS * COLUMNS, h, E)).astype("f") for h in (4, 2, 2)]


def views():
    """Poses [B, C, 4, 4], proper rotations and shifts, and intrinsics [B, C, 3, 3] in pixels."""
    rng, poses = np.random.default_rng(1), np.tile(np.eye(4), (B, C, 1, 1))
    turns = np.linalg.qr(rng.standard_normal((B, C, 3, 3)))[0]
    poses[..., :3, :3] = turns * np.linalg.det(turns)[..., None, None]
    poses[..., :3, 3] = rng.standard_normal((B, C, 3))
    lenses = np.tile(np.diag([70.0, 60, 1]), (B, C, 1, 1))
    lenses[..., :2, 2] = rng.uniform(20, 40, (B, C, 2))
    return poses, lenses


def released(q, k, v, poses, lenses):
    """Theirs for [T, H, E] of one row: intrinsics in units of the image, matrices by camera."""
    projections = poses
    if lenses is not None:
        height, width = IMAGE
        unit = np.zeros_like(lenses)
        unit[:, 0, 0], unit[:, 1, 1], unit[:, 2, 2] = (
            lenses[:, 0, 0] / width,
            lenses[:, 1, 1] / height,
            1,
        )
        unit[:, 0, 2], unit[:, 1, 2] = lenses[:, 0, 2] / width - 0.5, lenses[:, 1, 2] / height - 0.5
        lifted = np.tile(np.eye(4), (C, 1, 1))
        lifted[:, :3, :3] = unit
        projections = lifted @ poses
    theta = 100.0 ** (-np.arange(E // 8) / (E // 8))
    x = np.tile(np.arange(COLUMNS), ROWS * C)[:, None, None] * theta
    y = np.tile(np.repeat(np.arange(ROWS), COLUMNS), C)[:, None, None] * theta

    def turn(part, angle):
        a, b = np.split(part, 2, axis=-1)
        return [np.cos(angle) * a + np.sin(angle) * b, np.cos(angle) * b - np.sin(angle) * a]

    def apply(part, matrices, sign=1):
        tiles = part[..., : E // 2].reshape(C, ROWS * COLUMNS, -1, E // 8, 4)
        tiles = np.einsum("cij,cpkej->cpkei", matrices, tiles).reshape(*part.shape[:2], -1)
        first, second = np.split(part[..., E // 2 :], 2, axis=-1)
        return np.concatenate([tiles, *turn(first, sign * x), *turn(second, sign * y)], axis=-1)

    inverses = np.linalg.inv(projections)
    q, k, v = apply(q, projections.swapaxes(-1, -2)), apply(k, inverses), apply(v, inverses)
    k, v = (np.repeat(z, q.shape[1] // z.shape[1], axis=1) for z in (k, v))
    weights = naive.softmax(np.einsum("the,she->hts", q, k) / E**0.5, causal=False)
    return apply(np.einsum("hts,she->the", weights, v), projections, -1)


@pytest.mark.parametrize("engine", ["dense", "tiled"])
@pytest.mark.parametrize("known", [True, False], ids=["lenses", "poses alone"])
def test_it_is_the_released_function(engine, known):
    poses, lenses = views()
    given = (lenses, IMAGE) if known else ()
    places = pos.cameras(poses, ROWS, COLUMNS, *given)
    assert places.shape == (B, C * ROWS * COLUMNS, 14) and places.dtype == np.float32
    how = {"encoding": PROPE, "q_positions": places, "implementation": engine}
    ours = pe_jax.attention(*QKV, causal=False, **how)
    for b in range(B):
        row = [x[b].astype(float) for x in QKV]
        want = released(*row, poses[b], lenses[b] if known else None)
        np.testing.assert_allclose(ours[b], want, atol=2e-5)


def test_the_frame_of_the_world_does_not_matter():
    poses, lenses = views()
    world = np.eye(4)
    world[:3] = [[0, -1, 0, 0.5], [1, 0, 0, -2], [0, 0, 1, 1]]

    def run(poses):
        places = pos.cameras(poses, ROWS, COLUMNS, lenses, IMAGE)
        return pe_jax.attention(*QKV, encoding=PROPE, q_positions=places, causal=False)

    np.testing.assert_allclose(run(poses @ world), run(poses), atol=1e-4)


def test_tokens_without_a_camera_and_padding_are_as_they_are():
    q, ids = util.noise(1, 3, 2, E), np.int32([[0, 0, -1]])
    places = np.int32([0, 0, 2**30])[:, None].repeat(14, axis=1)

    @jax.jit
    def grads(q):
        def loss(q, encoding, places):
            how = {"encoding": encoding, "q_positions": places, "q_segments": ids}
            return (pe_jax.attention(q, q, q, causal=True, **how) ** 2).sum()

        each = (PROPE, places[None]), (pe_jax.make("nope"), None)
        return [jax.value_and_grad(loss)(q, *given) for given in each]

    util.assert_close(*grads(q))
