"""Config strings: what is written is read back as an equal object, whatever the fields are."""

import functools
import re

import pytest

import pe_jax
from pe_jax import position_schemes, validation
from pe_jax import spec_strings as spec
from pe_jax.encodings.registry import format_encoding
from tests import util


@pytest.mark.parametrize("case", util.CASES, ids=str)
def test_an_encoding_is_read_as_it_was_written(case):
    assert pe_jax.parse(format_encoding(case.encoding)) == (case.encoding,)


def test_fields_at_their_defaults_are_left_out():
    assert format_encoding(pe_jax.make("rope")) == "rope"
    assert format_encoding(pe_jax.make("rope", base=5e5, layout="half")) == "rope(base=500000.0)"


@pytest.mark.parametrize("text", ["contiguous", "cape(scaling=1.5)", "bilevel(separators=(3, 9))"])
def test_a_position_scheme_is_read_as_it_was_written(text):
    names = {kind: name for name, kind in position_schemes.SCHEMES.items()}
    assert spec.format_spec(position_schemes.parse(text), names) == text


@pytest.mark.parametrize(
    "bare, quoted",
    [
        ("rope(layout=interleaved)", "rope(layout='interleaved')"),
        ("kerple(kind=power)@window=4*2,nope", "kerple(kind='power')@window=4*2,nope"),
    ],
)
def test_a_word_needs_no_quotes(bare, quoted):
    assert pe_jax.parse(bare) == pe_jax.parse(quoted)


def test_a_wrong_word_is_refused_as_a_value():
    with pytest.raises(ValueError, match="layout='interleavd': .*'interleaved'"):
        pe_jax.parse("rope(layout=interleavd)")
    with pytest.raises(ValueError, match="shared='true': pass True or False"):
        pe_jax.parse("t5(shared=true)")


def test_a_pattern_is_a_tree_of_calls():
    a, b = spec.Call("a", {}), spec.Call("b", {"x": (1, 2), "y": spec.Call("c", {"z": None})})
    tree = spec.parse_pattern("a*2,(b(x=(1, 2), y=c(z=None))+a,a)", "a", "c(…)")
    assert tree == tuple(spec.Layer(x, {}) for x in ((a,), (a,), (b, a), (a,)))
    assert spec.parse_call("b(x=-1)") == spec.Call("b", {"x": -1})


def test_a_setting_is_of_a_layer_or_of_each_in_parentheses():
    a, b = spec.Call("a", {}), spec.Call("b", {})
    read = functools.partial(spec.parse_pattern, example="a", nested="c(…)", settings=("n", "m"))
    assert read("a@n=3*2,b") == (spec.Layer((a,), {"n": 3}),) * 2 + (spec.Layer((b,), {}),)
    assert read("(a,b)@n=0") == (spec.Layer((a,), {"n": 0}), spec.Layer((b,), {"n": 0}))
    both = (spec.Layer((a, b), {"n": 3, "m": 4}),)
    assert read("a+b@n=3@m=4") == both == read("(a + b) @ m = 4 @ n = 3") == read("a@m=4+b@n=3")


@pytest.mark.parametrize(
    "text, words",
    [
        ("a@k=3", "a layer has no setting 'k'; known: n, m"),
        ("a@n=-1", "@n=-1: write an integer of at least 0"),
        ("a@n=1.5", "@n=1.5: write an integer of at least 0"),
        ("a@n=b", "@n='b': write an integer of at least 0"),
        ("a@n=True", "@n=True: write an integer of at least 0"),
        ("a@n=3@n=4", "@n=3 and @n=4 are of one layer; keep one of them"),
        ("a@n=3+b@n=3", "are of one layer"),
        ("(a@n=3,b)@n=4", "are of one layer"),
        ("a@n", "cannot read 'a @ n'; write"),
        ("3@n=4", "cannot read '3'; write name, name(field=value), a+b, a*3, or a,b or a@n=3"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        spec.parse_pattern(text, "a", "c(…)", ("n", "m"))


@pytest.mark.parametrize(
    "name, near",
    [
        ("rop", "rope"),  # the most similar
        ("sinus", "sinusoidal"),  # begins with it, although "minus" is more similar
        ("qqq", ""),
        ("", ""),
    ],
)
def test_the_nearest_name(name, near):
    assert (
        validation.nearest(name, ("rope", "minus", "sinusoidal_2d", "sinusoidal"), cutoff=0.65)
        == near
    )
    assert validation.nearest("qqq", ("rope",)) == "rope"


@pytest.mark.parametrize("value", [0, 0.5, 10**400, float("inf"), float("nan"), -1, "1", True])
def test_a_standard_deviation_is_a_finite_number_of_at_least_0(value):
    if value in (0, 0.5):
        assert pe_jax.make("t5", stddev=value).stddev == value
    else:
        with pytest.raises(ValueError, match="stddev=.*: pass >= 0"):
            pe_jax.make("t5", stddev=value)
