"""WavLM's gated bias against the released code's formula; tests/oracles has the code itself."""

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import wavlm
from pe_jax.encodings.terms import Scale
from tests import util
from tests.encodings.common import HEADS, LENGTH, WIDTH, random_params

X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)


def test_a_gate_is_between_one_and_two_plus_what_the_scale_allows():
    params = random_params(pe_jax.make("wavlm"))
    layer = params.layer | {"scale": np.asarray([0.0, 1.0], np.float32)}
    found = np.asarray(wavlm.gate(50 * X, **layer))
    assert found.shape == (LENGTH, HEADS) and (found >= 1).all() and (found <= 2).all()
    assert found.min() < 1.1 and found.max() > 1.9


def test_the_defaults_are_the_released_models():
    encoding = pe_jax.make("wavlm")
    assert random_params(encoding).shared["table"].shape == (HEADS, 320)
    assert util.horizon(encoding) == (-778, 778) and not util.terms(encoding, Scale)


def test_heads_that_are_no_slices_of_the_width_are_refused():
    with pytest.raises(ValueError, match="width=12: WavLM gives each of 2 heads 4 channels"):
        pe_jax.make("wavlm").check(pe_jax.Dims(12, 2, 2, 4))
