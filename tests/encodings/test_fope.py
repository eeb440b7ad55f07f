"""FoPE against arXiv 2412.17739, in complex float64; what of RoPE it keeps, and what not."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import fope
from pe_jax.encodings.rope_scaling import ClippedRoPE
from tests import util
from tests.encodings.common import NONE, attend
from tests.util import DIMS, H, K, T, assert_close

LENGTH = 64  # two of the four frequencies of a head of 8 channels turn once: 1 and 0.1


def products(params, encoding, shift=0):
    """q·k of all pairs after the rotation, at positions from `shift` on: [H, T, T]."""
    q, k, _ = (np.repeat(x[0], H // x.shape[2], axis=1) for x in util.inputs())
    places = np.arange(T) + shift
    q, k = (util.rotate(encoding, side, params, x, places) for side, x in (("q", q), ("k", k)))
    return np.einsum("the,she->hts", q, k)


def test_the_floor_is_one_period_in_the_length_of_training():
    for length, count in ((7, 1), (62, 1), (63, 2), (628, 2), (629, 3), (10**6, 4)):
        theta = fope.frequencies(8, length)
        np.testing.assert_allclose(theta, [1, 0.1, 0.01, 0.001][:count], rtol=1e-6)
        assert (theta * length / (2 * np.pi) >= 1).all()


def test_without_noise_it_is_rope_whose_slow_frequencies_are_0():
    encoding = pe_jax.make("fope", length=LENGTH, gain=0.0)
    params = encoding.init(jax.random.key(0), pe_jax.Dims(DIMS.width, H, H, DIMS.head_dim))
    plain = pe_jax.make("rope", scaling=ClippedRoPE(original_length=LENGTH, hard=True))
    x = util.noise(T, H, 8)
    for places in (np.arange(T), np.arange(T) + 1000):
        got, want = (
            util.rotate(e, "q", p, x, places) for e, p in ((encoding, params), (plain, NONE))
        )
        assert_close(got, want, 1e-6)
    assert_close(products(params, encoding, 100), products(params, encoding), 1e-5)


def test_with_noise_norms_and_products_depend_on_positions_but_not_in_pairs_below_the_floor():
    encoding = pe_jax.make("fope", length=LENGTH)
    dims = pe_jax.Dims(DIMS.width, H, H, DIMS.head_dim)
    params = encoding.init(jax.random.key(0), dims)
    there, moved = products(params, encoding), products(params, encoding, 100)
    assert np.abs(there - moved).max() > 0.05 * np.abs(there).max()
    x = util.noise(T, H, 8)
    out = np.asarray(util.rotate(encoding, "q", params, x, np.arange(T)))
    ratio = np.linalg.norm(out, axis=-1) / np.linalg.norm(x, axis=-1)
    assert np.abs(ratio - 1).max() > 0.01
    slow = [2, 3, 6, 7]
    np.testing.assert_array_equal(out[..., slow], x[..., slow])


def test_it_repeats_itself_where_all_its_waves_do():
    """Frequencies 1 and 1/2 (base 16, 4 channels): period 4π, whatever the coefficients are."""
    series = util.noise(2, 1, 2, 2)
    theta, x = np.float32([1, 0.5]), np.tile(util.noise(1, 1, 4), (5, 1, 1))
    near = np.float32([0, 1, 2.5, 7, 11])
    here, later = (fope.rotate(x, p, theta, *series) for p in (near, near + np.float32(4 * np.pi)))
    assert_close(later, here, 1e-5)


def test_queries_share_the_series_of_their_key_head():
    encoding = pe_jax.make("fope", length=LENGTH)
    params, (q, k, v) = util.random_params(encoding), util.inputs()
    wide = (np.repeat(x, H // K, axis=2) for x in (k, v))
    many = {name: np.repeat(x, H // K, axis=0) for name, x in params.layer.items()}
    want = attend(q, *wide, encoding, pe_jax.Params({}, many))
    assert_close(attend(q, k, v, encoding, params), want)


@pytest.mark.parametrize("learned", [False, True])
def test_coefficients_are_trained_if_they_are_to_be(learned):
    encoding = pe_jax.make("fope", length=LENGTH, learned=learned)
    params, qkv = util.random_params(encoding), util.inputs()

    @util.jit
    @jax.value_and_grad
    def loss(params):
        out = pe_jax.attention(*qkv, encoding=encoding, params=params, implementation="dense")
        return (out * util.noise(*out.shape, seed=9)).sum()

    grads = loss(params)[1].layer
    assert sorted(grads) == ["cosines", "sines"]
    for name, grad in grads.items():
        assert grad.shape == (K, 2, 2) and (np.abs(grad) > 1e-6).all() == learned == grad.any()
        step = 1e-3 * util.noise(*grad.shape, seed=3)
        ends = [
            pe_jax.Params({}, params.layer | {name: params.layer[name] + s * step}) for s in (1, -1)
        ]
        rise = (loss(ends[0])[0] - loss(ends[1])[0]) / 2
        if learned:
            np.testing.assert_allclose(rise, (grad * step).sum(), rtol=0.02, atol=1e-5)


def test_coefficients_begin_as_the_identity_and_the_noise_of_the_released_code():
    dims = pe_jax.Dims(512, 8, 4, 64)
    layer = pe_jax.make("fope", length=512).init_layer(jax.random.key(0), dims)
    for array in layer.values():
        assert array.shape == (4, 16, 16)
        noise = np.asarray(array) - np.eye(16)
        want = 0.3 * (2 / (16 * 16 + 4 * 16)) ** 0.5  # torch's xavier_normal_ of [4, 16, 16]
        np.testing.assert_allclose(noise.std(), want, rtol=0.1)
    assert not np.array_equal(layer["cosines"], layer["sines"])


def test_what_does_not_fit_is_refused():
    x, theta, one = util.noise(6, 3, 8), fope.frequencies(8, LENGTH), np.ones((1, 2, 2), "f")
    with pytest.raises(ValueError, match=r"cosines\.shape=\(2, 2, 2\): .* 3 heads and 2 freq"):
        fope.rotate(x, np.arange(6), theta, np.ones((2, 2, 2), "f"), one)
    with pytest.raises(ValueError, match=r"sines\.shape=\(1, 2, 3\)"):
        fope.rotate(x, np.arange(6), theta, one, np.ones((1, 2, 3), "f"))
    with pytest.raises(ValueError, match="frequencies=2: x has 2 channels per head"):
        fope.rotate(x[..., :2], np.arange(6), theta, one, one)
