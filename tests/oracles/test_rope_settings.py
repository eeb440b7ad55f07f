"""Random settings of RoPE in whole configs, of transformers 4 and 5, against transformers' own.

What `pe_jax.hf.encodings` reads gives the frequencies and the attention factor that transformers
computes from the same config, at a length within the context trained on and at one beyond.
"""

import numpy as np
import pytest

from pe_jax import hf
from tests.oracles import rope_grid

pytestmark = pytest.mark.oracles


@pytest.mark.parametrize("seed", range(16))
def test_frequencies_of_random_settings_are_theirs(live, seed):
    rng = np.random.default_rng([seed, 5])
    for _ in range(25):
        kind, settings = rope_grid.draw(rng)
        layers = hf.encodings({"model_type": kind, **settings})
        theirs = rope_grid.theirs(kind, settings)
        assert len(layers) == len(theirs)
        for layer, frequencies in zip(layers, theirs, strict=True):
            for length in rope_grid.LENGTHS:
                want, factor = frequencies(length)
                own = layer.encoding.at_length(length)
                ours = np.asarray(own.frequencies(layer.head_dim), np.float64)
                name = f"{kind} {settings} at {length}"
                np.testing.assert_allclose(ours, want, rtol=3e-6, atol=1e-9, err_msg=name)
                np.testing.assert_allclose(own.attention_factor, factor, rtol=1e-6, err_msg=name)


def test_the_settings_are_of_all_types(live):
    rng = np.random.default_rng(0)
    drawn = [rope_grid.draw(rng) for _ in range(400)]
    found = {own["rope_type"] for _, settings in drawn for own in rope_grid.parts(settings)}
    assert found == set(rope_grid.TYPES)
    optional = {key for _, settings in drawn for own in rope_grid.parts(settings) for key in own}
    assert set(rope_grid.YARN) <= optional
    assert {kind for kind, _ in drawn} == {*rope_grid.FLAT, *rope_grid.NESTED}
