"""Names of schemes and specs that cannot be read: the error quotes them and names the fix."""

import pytest

import pe_jax
from tests.faults.encoding_calls import WIDE, refused


# 8-9
@pytest.mark.parametrize(
    "typo, nearest",
    [
        ("rop", "rope"),
        ("RoPE", "rope"),
        ("alibii", "alibi"),
        ("T5x", "t5"),
        ("sinus", "sinusoidal"),
    ],
)
def test_an_unknown_name_names_the_nearest(typo, nearest):
    words = f"encoding {typo!r} is unknown", f"did you mean {nearest!r}?"
    refused(lambda: pe_jax.make(typo), *words)
    refused(lambda: pe_jax.parse(f"nope,{typo}"), *words)


def test_a_name_like_no_other_lists_those_that_are_known():
    refused(lambda: pe_jax.make("qqq"), "encoding 'qqq' is unknown; known: nope, ")
    refused(lambda: pe_jax.make("qqq"), "pe_jax.ENCODINGS['qqq'] = its class registers your own")
    refused(lambda: pe_jax.make("nope", qqq=1), "encoding 'nope' has no field 'qqq'; it has none")
    refused(lambda: pe_jax.make("absolute"), "known: nope, ")  # no guess is better than a wild one
    refused(lambda: pe_jax.make("swin", window=7), "no field 'window'; known: height, width")
    refused(lambda: pe_jax.make("YaRN"), "'YaRN' is a scaling: rope(scaling=yarn(")


@pytest.mark.parametrize(
    "name, typo, nearest",
    [("rope", "bas", "base"), ("t5", "buckets", "num_buckets"), ("shaw", "clips", "clip")],
)
def test_an_unknown_field_names_the_nearest(name, typo, nearest):
    words = f"encoding {name!r} has no field {typo!r}", f"did you mean {nearest!r}?"
    refused(lambda: pe_jax.make(name, **{typo: 1}), *words)
    refused(lambda: pe_jax.parse(f"{name}({typo}=1)"), *words)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "rope(",
        "rope(1e4)",
        "rope(base=x.y)",
        "rope*0",
        "rope*1.5",
        "rope*-1",
        "3*rope",
        "rope-t5",
    ]
    + ["(rope,t5)+alibi", "__import__('os')", "[rope]", "rope.base", "rope;t5", "rope(base=f())"],
)
def test_what_parse_cannot_read_is_quoted(spec):
    refused(lambda: pe_jax.parse(spec), f"encoding {spec!r}: ")


@pytest.mark.parametrize(
    "spec, piece, fix",
    [
        ("rope(base=1e4, base=5e5)", "base=500000.0", "each field once"),
        ("rope(**{'base': 5e5})", "**{'base': 500000.0}", "field=value"),
        ("rope(scaling=y.n)", "scaling=y.n", "yarn(factor=4, original_length=2048)"),
        ("rope(base=1/2)", "base=1 / 2", "literal"),
    ],
)
def test_what_parse_cannot_read_of_a_field_is_shown(spec, piece, fix):
    refused(lambda: pe_jax.parse(spec), f"encoding {spec!r}: ", piece, fix)


def test_parse_reads_fields_sums_patterns():
    rope_, t5_, nope = pe_jax.make("rope", base=5e5), pe_jax.make("t5"), pe_jax.make("nope")
    assert pe_jax.parse(" rope(base=5e5)*2, nope ") == (rope_, rope_, nope)
    assert pe_jax.parse("t5+rope(base=5e5)") == (pe_jax.Sum((t5_, rope_)),)
    assert pe_jax.parse("(rope(base=5e5)*2,nope)*2") == (rope_, rope_, nope) * 2
    edges = pe_jax.parse("buckets(edges=[0, 3], directional=True)")
    assert edges == (pe_jax.make("buckets", edges=(0, 3), directional=True),)
    assert hash(edges[0]) == hash(pe_jax.make("buckets", edges=[0, 3], directional=True))


def test_a_sum_may_hold_one_scale():
    (both,) = pe_jax.parse("t5+deberta")
    refused(lambda: both.check(WIDE), "T5 and DeBERTa", "keep at most one")
