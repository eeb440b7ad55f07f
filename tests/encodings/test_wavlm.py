"""WavLM's gated bias against the released code's formula; tests/oracles has the code itself."""

import pytest

import pe_jax
from pe_jax.encodings.terms import Scale
from tests import util
from tests.encodings.common import HEADS, random_params


def test_the_defaults_are_the_released_models():
    encoding = pe_jax.make("wavlm")
    assert random_params(encoding).shared["table"].shape == (HEADS, 320)
    assert util.horizon(encoding) == (-778, 778) and not util.terms(encoding, Scale)


def test_heads_that_are_no_slices_of_the_width_are_refused():
    with pytest.raises(ValueError, match="width=12: WavLM gives each of 2 heads 4 channels"):
        pe_jax.make("wavlm").check(pe_jax.Dims(12, 2, 2, 4))
