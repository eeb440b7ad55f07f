"""FoPE against arXiv 2412.17739, in complex float64; what of RoPE it keeps, and what not."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import fope
from tests import util
from tests.util import K

LENGTH = 64  # two of the four frequencies of a head of 8 channels turn once: 1 and 0.1


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
