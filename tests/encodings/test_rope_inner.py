"""RoPE over the width of all heads against the released code of LTX-Video and LTX-2."""

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import rope_inner
from tests import util
from tests.util import assert_close

H, E, T = 4, 8, 7


def turned_as_ltx(x: np.ndarray, grid: np.ndarray, layout: str, base: float) -> np.ndarray:
    """x [T, H, E] at grid [T, A], shares of 20 frames, 2,048 rows and 2,048 columns.

    Theirs has cosines and sines of the whole width, ones and zeros in front where axes do not fill
    it, and cuts x (interleaved) or them (split) into heads.
    """
    axes, width = grid.shape[1], H * E
    series = base ** np.linspace(0, 1, width // (2 * axes)) * np.pi / 2
    angle = np.swapaxes(series * (2 * grid[..., None] - 1), 1, 2).reshape(len(grid), -1)
    if layout == "interleaved":
        flat, angle = x.reshape(len(x), width), np.repeat(angle, 2, -1)
        angle = np.pad(angle, ((0, 0), (width % (2 * axes), 0)))
        other = np.stack([-flat[:, 1::2], flat[:, 0::2]], -1).reshape(flat.shape)
        return (flat * np.cos(angle) + other * np.sin(angle)).reshape(x.shape)
    angle = np.pad(angle, ((0, 0), (width // 2 - angle.shape[-1], 0))).reshape(len(x), H, E // 2)
    a, b, cos, sin = x[..., : E // 2], x[..., E // 2 :], np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize("axes", [3, 1])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_products_are_those_of_ltx(layout, axes):
    """Theirs turns all vectors by a constant more, and has the share of a position in its size."""
    sizes = (20.0, 2048.0, 1024.0)[:axes]
    places = np.random.default_rng(0).uniform(size=(T, axes)).astype(np.float32) * np.float32(sizes)
    q, k = util.noise(T, H, E, seed=1), util.noise(T, H, E, seed=2)
    spec = f"rope_inner(layout={layout!r},sizes={sizes})"
    found = pe_jax.rotate(spec, q, k, places if axes > 1 else places[:, 0])
    want = [turned_as_ltx(x.astype(float), places / sizes, layout, 1e4) for x in (q, k)]
    assert_close(*(np.einsum("the,she->hts", *pair) for pair in (found, want)), 5e-3)


def test_every_head_has_other_frequencies_and_what_is_left_does_not_turn():
    table = np.asarray(
        rope_inner.frequencies(H, E, (1, 1, 1))
    )  # 16 pairs: 5 for each axis, and one
    assert table.shape == (3, H, E // 2) and not table[:, 0, 0].any()
    assert ((table > 0).sum(0).reshape(-1)[1:] == 1).all()
    in_turn = table.sum(0).reshape(-1)[1:].reshape(-1, 3)
    np.testing.assert_allclose(in_turn[[0, -1]], np.pi * np.array([[1] * 3, [1e4] * 3]), 1e-6)
    assert (np.diff(in_turn[:, 0]) > 0).all()


@pytest.mark.parametrize("dims, words", [((10, 2, 5), "even head width"), ((2, 1, 2), "two pairs")])
def test_sizes_that_do_not_fit_are_an_error(dims, words):
    width, heads, head_dim = dims
    with pytest.raises(ValueError, match=words):
        pe_jax.make("rope_inner").check(pe_jax.Dims(width, heads, heads, head_dim))
