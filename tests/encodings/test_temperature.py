"""Llama 4's temperature, from its released formula; tests/oracles runs the models themselves."""

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import temperature
from pe_jax.naive.rotary import sharpness
from tests import util
from tests.encodings.common import LENGTH, NONE, qkv


@pytest.mark.parametrize("offset", [0, 1])
def test_the_temperature_is_the_released_formula_at_every_step(offset):
    places = np.unique(np.r_[:99, 8190:8195, 8192 * 7 - 2 : 8192 * 7 + 2, 10**6, 2**24 + 5])
    for attn_scale, floor_scale in ((0.1, 8192), (0.5, 3), (0.1, 1)):
        want = sharpness(places, attn_scale, floor_scale, offset)
        got = temperature.temperature(places, attn_scale, floor_scale, offset)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_before_the_first_step_and_before_zero_queries_keep_their_size():
    places = np.array([-(2**31), -9000, -1, 0, 8190], np.int32)
    np.testing.assert_array_equal(temperature.temperature(places), 1)
    np.testing.assert_array_equal(temperature.temperature([2**31 - 1], offset=0), [
        np.float32(sharpness(2**31 - 1, 0.1, 8192, 0))
    ])  # fmt: skip


def test_keys_are_not_sharpened():
    encoding = pe_jax.make("temperature", attn_scale=0.5, floor_scale=3)
    _, k, _ = qkv()
    np.testing.assert_array_equal(util.rotate(encoding, "k", NONE, k, np.arange(LENGTH) + 9), k)
