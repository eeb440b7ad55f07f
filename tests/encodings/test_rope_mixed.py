"""Learned 2-D frequencies: each head's pairs turn by mixtures of row and column, in float64."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import rope, rope_mixed
from pe_jax.encodings.rope_scaling import RIFLEx, YaRN
from tests import util
from tests.encodings.common import gradients_of_layer
from tests.faults.encoding_calls import refused
from tests.util import DIMS, K, T

PLACES = np.asarray(pos.grid(3, 5))[:T]


def test_frequencies_begin_in_two_orthogonal_directions_that_each_head_draws():
    found = np.asarray(rope_mixed.initial(jax.random.key(0), 5, 16, 10.0))
    assert found.shape == (2, 5, 8)
    lengths = 10.0 ** (-np.arange(0, 16, 4) / 16)
    first, second = found[..., :4], found[..., 4:]
    for half in (first, second):
        np.testing.assert_allclose(np.linalg.norm(half, axis=0), [lengths] * 5, rtol=1e-6)
    np.testing.assert_allclose((first * second).sum(0), 0, atol=1e-6)
    angle = np.arctan2(first[0], first[1])
    np.testing.assert_allclose(angle, angle[:, :1] * np.ones(4), atol=1e-6)
    assert len(np.unique(angle[:, 0].round(3))) == 5


def test_frequencies_are_learned_alike_by_every_engine():
    grad = gradients_of_layer(pe_jax.make("rope_mixed"), PLACES)["frequencies"]
    assert grad.shape == (2, K, DIMS.head_dim // 2) and (np.abs(grad) > 1e-6).all()


@pytest.mark.parametrize("axes", [2, 3])
def test_a_scaling_changes_initial_lengths_as_it_changes_the_series(axes):
    """And only the components along its axis, if it is the scaling of one."""
    dims, scaling = pe_jax.Dims(16, 1, 1, 16), YaRN(4.0, 60, attention_factor=1.0)
    x = util.noise(1, 1, 16)
    of_axis = (scaling, *[None] * (axes - 1))
    for each, slower in ((scaling, range(axes)), (of_axis, [0])):
        encoding = pe_jax.make("rope_mixed", axes=axes, scaling=each)
        encoding.check(dims)
        series = 10.0 ** (-np.arange(0, 16, 4) / 16) if axes == 2 else 10.0 ** (-np.arange(8) / 8)
        proportion = np.resize(scaling(series, 10.0) / series, 8)
        assert proportion.min() < 0.5 and proportion.max() == 1
        params = encoding.init(jax.random.key(0), dims)
        want = np.array(params.layer["frequencies"], np.float64)
        want[[*slower]] *= proportion
        for place in np.eye(axes, dtype=int):
            ours = util.rotate(encoding, "q", params, x, place[None])
            angle = place @ want[:, 0]
            turned = rope.rotate(x, np.ones(1, int), np.asarray(angle, "f"), "interleaved")
            np.testing.assert_allclose(ours, turned, atol=1e-6)


def test_what_does_not_fit_is_refused():
    words = "attention factors are (1.5, 1.0); pass attention_factor=1.0 to each"
    refused(
        lambda: pe_jax.make("rope_mixed", scaling=(YaRN(2.0, 8, attention_factor=1.5), None)), words
    )
    ninth = pe_jax.make("rope_mixed", scaling=(None, RIFLEx(2.0, 8, intrinsic=9)))
    refused(lambda: ninth.check(DIMS), "intrinsic=9", "2 frequencies")
    x, places = util.noise(6, 3, 8), pos.grid(2, 3)
    for shape in ((2, 2, 4), (2, 3, 5), (1, 2, 3, 4), (2, 0, 4)):
        with pytest.raises(ValueError, match="x has 3 heads of 8 channels"):
            rope_mixed.rotate(x, places, np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="pass 3 axes last"):
        rope_mixed.rotate(x, places, np.zeros((3, 3, 4), np.float32))
    with pytest.raises(ValueError, match="choose one of half"):
        rope_mixed.rotate(x, places, np.zeros((2, 3, 4), np.float32), "neox")
    with pytest.raises(ValueError, match="axes=0: pass an integer"):
        rope_mixed.initial(jax.random.key(0), 2, 8, axes=0)
    with pytest.raises(ValueError, match="head_dim=6"):
        rope_mixed.initial(jax.random.key(0), 2, 6)
