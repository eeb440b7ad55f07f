"""Heads of one axis or none against the authors' table of MHRoPE, and what stays as it is."""

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import rope
from tests import util
from tests.encodings.common import NONE
from tests.util import assert_close

H, K, E = 8, 4, 6
DIMS = pe_jax.Dims(H * E, H, K, E)
YARN = "scaling=yarn(factor=4.0,original_length=8,attention_factor=1.5)"


def rotated(spec: str, q, k, positions):
    return pe_jax.rotate(spec, q, k, positions, dims=DIMS)


def vectors(count: int):
    return util.noise(count, H, E, seed=1), util.noise(count, K, E, seed=2)


def test_sections_of_heads_are_those_of_mhrope():
    """Theirs repeats the angles of time, row and column for so many key heads, then zeros."""
    places = np.asarray(pos.multimodal([3, (2, 2, 3), 2]))
    q, k = vectors(len(places))
    wave = 1e4 ** (-np.arange(E // 2) / (E // 2))
    sections = (1, 0, 2)  # of four key heads: the last has none
    angle = [np.outer(places[:, axis], wave) for axis, n in enumerate(sections) for _ in range(n)]
    angle = np.stack([*angle, np.zeros((len(places), E // 2))], 1)  # [T, K, E/2]

    def turned(x):
        z = (x[..., : E // 2] + 1j * x[..., E // 2 :]) * np.exp(
            1j * np.repeat(angle, len(x[0]) // K, 1)
        )
        return np.concatenate([z.real, z.imag], -1)

    found = rotated("rope_heads(axes=3,heads=(0,2,2,None))", q, k, places)
    assert_close(found, (turned(q), turned(k)))


def test_text_turns_as_in_rope():
    q, k = vectors(9)
    places = np.repeat(np.arange(9)[:, None], 3, 1)
    found = rotated("rope_heads(axes=3,heads=(2,0))", q, k, places)
    assert_close(found, rotated("rope", q, k, np.arange(9)), 1e-6)


@pytest.mark.parametrize("fields", ["", f",{YARN}", ",fraction=1/3", ",layout='interleaved'"])
def test_heads_without_an_axis_stay_bit_for_bit(fields):
    """Also under an attention factor, which is of what turns."""
    fields = fields.replace("1/3", repr(1 / 3))
    q, k = vectors(9)
    found = rotated(f"rope_heads(heads=(0,None,0,None){fields})", q, k, np.arange(9))
    plain = rotated(f"rope({fields[1:]})", q, k, np.arange(9))
    for x, ours, theirs, shared in zip((q, k), found, plain, (2, 1), strict=True):
        turns = np.repeat([True, False, True, False], shared)
        np.testing.assert_array_equal(ours[:, ~turns], x[:, ~turns])
        assert_close(ours[:, turns], theirs[:, turns], 1e-6)


def test_a_scaling_waits_for_its_length():
    q, k = vectors(9)
    (encoding,) = pe_jax.parse("rope_heads(scaling=dynamic_ntk(factor=2.0,original_length=4))")
    params = {"params": NONE, "dims": DIMS}
    found = pe_jax.attention(q, k, k, encoding=encoding, **params)
    assert_close(found, pe_jax.attention(q, k, k, encoding=encoding.at_length(9), **params))
    theta = rope.frequencies(E, 1e4, encoding.at_length(9).scaling)
    (term,) = encoding.at_length(9).terms(NONE, DIMS)
    np.testing.assert_array_equal(term.arrays[0], jnp.stack([theta, theta, 0 * theta, 0 * theta]))


def test_entries_must_divide_the_key_heads():
    encoding = pe_jax.make("rope_heads", heads=(0, 0, None))
    with pytest.raises(ValueError, match=r"heads=.*pass one entry for each of 4 key heads"):
        encoding.check(DIMS)
