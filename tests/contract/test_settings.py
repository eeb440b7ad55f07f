"""Laws of a scheme as a value: equal, hashable, frozen, at a length; that all are under test."""

import dataclasses

import jax
import pytest

import pe_jax
from tests import util
from tests.contract.laws import EXEMPT, each

SCALED = (
    "dynamic_ntk(factor=8,original_length=4)",
    ("longrope(short_factor=[1,1,1,1],long_factor=[1,2,3,4],original_length=4,factor=8)"),
)

SCALED = [
    util.Case(spec, pe_jax.parse(spec)[0])
    for scaling in SCALED
    for spec in (f"rope(scaling={scaling})", f"t5+rope(scaling={scaling})")
]


@each(util.CASES + SCALED)
def test_a_scheme_that_depends_on_the_length_says_whether_it_knows_it(case):
    """`attention` asks for the length, or resolves it, by `valid_length` alone."""
    enc = case.encoding
    depends = any(enc.at_length(n) != enc for n in (2, 9))
    assert enc.valid_length() == (0 if depends else None) and depends == (case in SCALED)
    for length in (1, 2, 9):
        set_ = enc.at_length(length)
        assert set_.valid_length() is None or set_.valid_length() >= length
        assert set_.at_length(length) == set_


@each(util.CASES)
def test_a_scheme_is_frozen_hashable_and_a_static_argument(case):
    enc = case.encoding
    twin = dataclasses.replace(enc)
    assert twin == enc and hash(twin) == hash(enc) and twin is not enc
    assert all(getattr(enc, f.name) == getattr(twin, f.name) for f in dataclasses.fields(enc))
    field = next(iter(dataclasses.fields(enc)), None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(enc, field.name if field else "anything", 1)
    traces = []
    f = jax.jit(lambda enc, x: traces.append(enc) or x, static_argnums=0)
    f(enc, 1.0), f(twin, 1.0)
    assert len(traces) == 1


def test_schemes_are_equal_only_where_their_settings_are():
    encodings = [c.encoding for c in util.CASES]
    assert len(set(encodings)) == len(set(map(repr, encodings)))


def test_every_scheme_is_under_test_and_every_exemption_is_one_of_them():
    assert {c.name.split("(")[0] for c in util.SINGLE} == set(pe_jax.ENCODINGS)
    for law, schemes in EXEMPT.items():
        assert set(schemes) <= set(pe_jax.ENCODINGS) and all(schemes.values()), law


@pytest.mark.xdist_group("alone")
def test_one_worker_compiles_all_of_a_case(request):
    """pytest-xdist 3.8 ignores groups under pytest 9.2, so pyproject.toml caps it: issue 1386."""
    given = request.config.getoption("loadgroup", False)
    assert request.node.nodeid.endswith("@alone") or not given
