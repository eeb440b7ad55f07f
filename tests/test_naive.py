"""The law of the naive forms: the dense engine gives what NumPy gives, scheme by scheme."""

import functools

import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from tests import util
from tests.contract.laws import each
from tests.util import B, E, H, T

SCALED = "rope(scaling=yarn(factor=4, original_length=8), fraction=0.5)"
CASES = [*util.SINGLE, util.Case(SCALED, pe_jax.parse(SCALED)[0])]
KINDS = util.first_of_kinds(CASES)  # that no positions are given is a thing of kinds


def shuffled(case: util.Case) -> np.ndarray:
    """Positions in any order, in each row another; where they may not run backwards, repeated."""
    rng = np.random.default_rng(0)
    if case.encoding.claims.causal_only:
        return np.sort(rng.integers(0, T, (B, T), dtype=np.int32))
    return rng.permuted(util.contiguous(B, T), axis=1)


def in_numpy(case: util.Case, params, q, k, v, places) -> np.ndarray:
    """The naive form of one row, after what it adds to the input: float64 [T, H, E]."""
    name, *form = util.naive_form(case.encoding, params)
    x = q.reshape(T, H * E) + naive.inputs(name, places, H * E, *form)
    options = {"positions": places, "x": x, "causal": case.causal}
    return naive.attention(name, x.reshape(T, H, E), k, v, *form, **options)


@each(CASES)
@pytest.mark.parametrize("order", ["shuffled", "contiguous"])
def test_the_dense_engine_equals_the_naive_form(case, order):
    params, (q, k, v) = util.random_params(case.encoding), util.inputs()
    places = util.contiguous(B, T) if order == "contiguous" else shuffled(case)
    places = util.spread(case, places)
    ours, _ = util.run(case, "dense", positions=places)
    if order == "contiguous" and case.encoding.claims.axes == 1 and case in KINDS:
        run = util.jit(functools.partial(util.layer, case, implementation="dense"))
        util.assert_close(run(params, q, k, v, None, np.zeros((B, T), np.int32)), ours)
    for row in range(B):
        want = in_numpy(case, params, q[row], k[row], v[row], places[row])
        util.assert_close(ours[row], want)


SLOWER = "yarn(factor=4.0,original_length=8,attention_factor=1.5)"
YARN = f"scaling={SLOWER}"
RIFLEX = "riflex(factor=2,original_length=3,intrinsic=2)"
SETTINGS = [  # besides those of the laws; "both": keys of later tokens are seen
    ("alibi(bias_max=16.0)", ""),
    ("alibi(scaled=True)", "both"),
    ("bipe(relative='alibi',length=40)", "both"),
    ("cayley_string(axes=3)", "both"),
    ("cayley_string(layout='half')", ""),
    ("clipped(clip=3)", "both"),
    ("cpb(height=3,width=4,hidden=5)", "both"),
    ("deberta(buckets=4,max_distance=6,pos_att_type=('c2p',))", "both"),
    ("deberta(buckets=4,max_distance=6,pos_att_type=('p2c',))", "both"),
    ("dpb(hidden=5,depth=4)", "both"),
    ("dual_chunk(chunk_size=5,local_size=2,fraction=0.5,layout='interleaved')", ""),
    ("fire(width=7,length=4.0,shared=True)", "both"),
    ("fope(length=7)", "both"),
    ("fope(length=1000000)", ""),
    ("grape_ap(width=4,bias_max=2.0)", ""),
    ("inkling(extent=5,width=3,floor=3,attn_scale=0.7,clip_states=0.9,clip_qk=1.5)", ""),
    ("kerple(kind='log')", "both"),
    ("key_offset(fraction=0.25)", "both"),
    (f"lerope({YARN})", "both"),
    ("lerope(base=100.0)", "both"),
    ("liere(block=2,axes=3)", "both"),
    ("liere(block=4,axes=3,commuting=True)", "both"),
    ("mrope(sections=(2,1,1),base=1e4)", "both"),
    ("mrope(sections=(2,1,1),time_last=True,layout='interleaved')", "both"),
    ("mrope(sections=(2,1,1),scaling=ntk(factor=4.0))", ""),
    ("pope(base=20.0)", "both"),
    ("repo(hidden=5,base=10.0)", "both"),
    ("rerope(window=4)", "both"),
    ("rope_2d(normalized=True,base=100.0)", "both"),
    ("rope_2d(spectrum='alternating')", "both"),
    (f"rope_2d(spectrum='alternating',{YARN})", ""),
    ("rope_mixed(layout='half')", "both"),
    (f"rope_mixed(axes=3,scaling=(linear(factor=2),None,{RIFLEX}))", "both"),
    (f"rope_mixed({YARN})", ""),
    ("rope_nd(channels=(2,2,2),spectrum='alternating')", "both"),
    (f"rope_nd(base=9.0,channels=(4,2,2),scaling=({RIFLEX},None,linear(factor=2)))", "both"),
    (f"rope_nd(channels=(4,2,2),scaling=({SLOWER},None,linear(factor=2)))", ""),
    (f"rope_pp({YARN})", "both"),
    ("rotated_values(layout='interleaved',base=5.0)", "both"),
    ("rotated_values(fraction=0.5)", ""),
    (f"rotated_values({YARN})", ""),
    ("selective_rope(rank=3,base=10.0)", ""),
    ("self_extend(group=3,window=1)", ""),
    ("shaw(clip=13)", "both"),
    ("sinusoidal(layout='tensor2tensor',amplitude=0.25)", "both"),
    ("swin(height=14,width=15,class_token=True)", "both"),
    ("t5(num_buckets=8,max_distance=9,shared=False)", ""),
    ("tapa(fraction=0.25,power=0.7)", "both"),
    ("temperature(attn_scale=0.5,floor_scale=3,offset=0)", ""),
    ("tupe(length=40,reset=False)", "both"),
    ("wavlm(num_buckets=8,max_distance=6)", "both"),
    ("xpos(scale_base=4,layout='half')", ""),
]
IN_TILES = (
    "alibi(scaled",
    "deberta(",
    "wavlm(",
    "rope_nd(",
)  # terms with another factor, or both ways


@pytest.mark.parametrize("spec, sees", SETTINGS, ids=[spec for spec, _ in SETTINGS])
def test_other_settings_equal_the_naive_form(spec, sees):
    """At positions in any order, real numbers where a scheme takes these."""
    (encoding,) = pe_jax.parse(spec)
    case = util.Case(spec, encoding, causal=not sees)
    params, (q, k, v) = util.random_params(encoding), util.inputs()
    places = util.spread(case, shuffled(case))
    places = places * np.float32(0.7) if encoding.claims.real_positions else places
    for engine in ("dense", *["tiled"] * spec.startswith(IN_TILES)):
        run = util.jit(functools.partial(util.layer, case, implementation=engine))
        ours = run(params, q, k, v, places, None)
        util.assert_close(ours[0], in_numpy(case, params, q[0], k[0], v[0], places[0]))


def test_every_scheme_has_a_naive_form():
    assert naive.SCORES.keys() == pe_jax.ENCODINGS.keys()
    others = naive.INPUTS.keys() | naive.VALUES.keys() | naive.AVERAGES.keys() | naive.SINKS.keys()
    assert others < naive.SCORES.keys()


def test_what_a_scheme_does_not_have_is_an_error():
    q, k, v = (x[0] for x in util.inputs())
    table = np.zeros((H, 32))
    naive.attention("t5", q, k, v, {"table": table}, {"max_distance": 64, "stddev": 1})
    for params, settings, words in (
        ({"table": table, "tabel": table}, {}, "t5 has no tabel"),
        ({"table": table}, {"max_distanc": 64}, "t5 has no max_distanc"),
        ({"table": table}, {"rank": 2}, "t5 has no rank"),  # of another scheme
        ({}, {"max_distance": 64}, "table"),
    ):
        with pytest.raises(TypeError, match=words):
            naive.attention("t5", q, k, v, params, settings)


@pytest.mark.parametrize("place", [-1, 3])
def test_what_a_table_does_not_hold_is_an_error(place):
    q, k, v = (x[0, :1] for x in util.inputs())
    places, table = np.array([[place, 0]]), np.zeros((3, H * E))
    for name, positions, params in (
        ("learned", places[:, 0], {"table": table}),
        ("learned_2d", places, {"rows": table, "columns": table}),
        ("learned_grid", places, {"table": table[:, None]}),
    ):
        with pytest.raises(IndexError, match=f"{place} .* the table has 0 … 2"):
            naive.inputs(name, positions, H * E, params)
    u = np.zeros((H * E, H, E))
    with pytest.raises(IndexError, match=f"{place} .* the table has 0 … 2"):
        params = {"table": table, "u_q": u, "u_k": u}
        naive.attention("tupe", q, k, v, params, positions=places[:, 0])
    far = naive.make_row(*(x[0, :2] for x in util.inputs()[:2]), [[0, 0], [place, 0]])
    with pytest.raises(IndexError):
        naive.bias.swin(far, np.zeros((H, 1)), height=1, width=1)
