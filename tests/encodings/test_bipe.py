"""BiPE against arXiv 2401.16421, in float64."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax import naive
from pe_jax import positions as pos
from pe_jax.encodings.base import adds_to_input
from pe_jax.encodings.terms import DistanceBias, Rotation
from tests import util
from tests.encodings.common import WIDTH, attend, qkv, random_params

END, DOT = 10, 46


def paper_positions(tokens, documents):
    """(number of ended pieces before, tokens of this piece before), counted one by one."""
    found = []
    for t, token in enumerate(tokens):
        if t == 0 or documents[t] != documents[t - 1]:
            piece, place = 0, 0
        found.append((piece, place))
        place += 1
        if token in (END, DOT):
            piece, place = piece + 1, 0
    return found


_bilevel = jax.jit(lambda tokens, ids: pos.bilevel(tokens, (DOT, END), ids))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, DOT, END]), min_size=24, max_size=24),
    st.lists(st.integers(0, 5), min_size=24, max_size=24),
)
def test_pieces_and_places_are_counted_as_one_would(tokens, steps):
    ids = np.cumsum(np.array(steps) == 0)
    tokens, ids = (np.int32(x).reshape(2, 12) for x in (tokens, ids))
    want = [paper_positions(row, own) for row, own in zip(tokens.tolist(), ids, strict=True)]
    np.testing.assert_array_equal(_bilevel(tokens, ids), want)
    alone = [paper_positions(row, [0] * 12) for row in tokens.tolist()]
    np.testing.assert_array_equal(pos.bilevel(tokens, [DOT, END]), alone)


def test_a_separator_ends_its_piece_and_longest_holds_the_place():
    tokens = np.array([5, 6, DOT, DOT, 7, 8, 9])
    places = np.asarray(pos.bilevel(tokens, (DOT,)))
    assert places[:, 0].tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert places[:, 1].tolist() == [0, 1, 2, 0, 0, 1, 2]
    assert pos.bilevel(tokens, (DOT,), longest=2)[:, 1].tolist() == [0, 1, 1, 0, 0, 1, 1]
    assert pos.bilevel(tokens[:0], (DOT,)).shape == (0, 2)


@pytest.mark.parametrize("absolute", ["learned", "sinusoidal"])
def test_the_place_inside_a_piece_is_added_to_the_input(absolute):
    encoding = pe_jax.make("bipe", absolute=absolute, length=8)
    params, x = random_params(encoding), np.zeros((3, WIDTH), np.float32)
    places = np.int32([[9, 0], [9, 7], [0, 7]])
    added = np.asarray(encoding.embed(params, x, places))
    if absolute == "learned":
        np.testing.assert_array_equal(added, np.asarray(params.shared["table"])[[0, 7, 7]])
        outside = np.array([[0, 8]])
        with pytest.raises(ValueError, match="8 is outside the learned table of length 8"):
            encoding.embed(params, x[:1], outside)
        assert np.isnan(jax.jit(encoding.embed)(params, x[:1], outside)).all()
    else:
        want = naive.inputs("bipe", places, WIDTH, {}, vars(encoding))
        np.testing.assert_allclose(added, want, atol=1e-6)
    assert encoding.limit() == (8 if absolute == "learned" else None)


@pytest.mark.parametrize("relative, used", [("rope", True), ("alibi", False)])
def test_it_has_the_terms_of_its_halves_alone(relative, used):
    encoding = pe_jax.make("bipe", relative=relative)
    assert adds_to_input(encoding, util.DIMS)
    (term,) = util.terms(encoding)
    assert type(term) is (Rotation if used else DistanceBias)


def test_it_wants_both_numbers_of_a_position():
    encoding = pe_jax.make("bipe")
    with pytest.raises(ValueError, match=r"BiPE has 2 axes: pass q_positions"):
        attend(*qkv(), encoding=encoding, params=random_params(encoding), embedded=True)
