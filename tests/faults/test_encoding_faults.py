"""Faults in the fields and sizes of schemes: one line that names the field, its value, the fix."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import positions
from pe_jax.encodings import (
    ENCODINGS,
    alibi,
    buckets,
    cpb,
    deberta,
    fope,
    layoutlmv3,
    mla,
    mrope,
    pope,
    rope,
    rope_2d,
    rope_mixed,
    rope_nd,
    rope_scaling,
    sandwich,
    sinusoidal,
    swin,
    t5,
    temperature,
    xpos,
)
from pe_jax.encodings import terms as kinds
from pe_jax.engines.decoding import cache
from tests.encodings.common import DIMS, NONE, qkv, random_params
from tests.faults.encoding_calls import PLACES, WIDE, attend, refused

FIELDS = [
    ("sinusoidal", "base", [1, 1.0, 0, -3, np.nan, np.inf, "1e4", True, None, 10**400], "above 1"),
    ("sinusoidal", "layout", ["interleave", None, ("half",)], "interleaved"),
    ("sinusoidal", "amplitude", [np.nan, np.inf, "1"], "finite"),
    ("learned", "length", [0, -1, 5.0, 1e3, "512", True, None], "at least 1"),
    ("learned", "stddev", [-0.1, np.nan, "0.02"], ">= 0"),
    ("shaw", "clip", [0, -4, 2.0, None], "at least 1"),
    ("shaw", "values", ["no", 1, None], "True or False"),
    ("transformer_xl", "base", [1, 0.5, np.nan], "above 1"),
    ("t5", "num_buckets", [1, 0, -32, 32.0, None], "at least 2"),
    ("t5", "max_distance", [16, 5, 0, -1, 128.0], "must exceed the 16 exact buckets"),
    ("t5", "bidirectional", ["no", 0], "True or False"),
    ("t5", "stddev", [-1, np.inf], ">= 0"),
    ("buckets", "edges", [(), (1, 1), (3, 2), (-1, 2), (0.5,), 5, None, "ab"], "increasing"),
    ("buckets", "directional", ["yes"], "True or False"),
    ("clipped", "clip", [0, 1.5], "at least 1"),
    ("clipped", "stddev", [-1], ">= 0"),
    ("deberta", "buckets", [0, 2, 7, 8.0], "even integer"),
    ("deberta", "max_distance", [129, 128, 0, 512.0], "must exceed the 128 exact buckets"),
    ("rope", "base", [1, 0, -1e4, np.nan, np.inf], "above 1"),
    ("rope", "fraction", [0, -0.5, 1.5, np.nan, "0.5"], "(0, 1]"),
    ("rope", "layout", ["neox", 3], "half"),
    ("sinusoidal_2d", "base", [1, np.nan], "above 1"),
    ("sinusoidal_2d", "layout", ["mae"], "concatenated"),
    ("learned_2d", "height", [0, 2.0, None], "at least 1"),
    ("learned_2d", "combine", ["add", None], "concatenate"),
    ("learned_2d", "stddev", [-1], ">= 0"),
    ("learned_grid", "height", [0, 14.0], "at least 1"),
    ("learned_grid", "width", [None], "at least 1"),
    ("learned_grid", "prefix", [-1, True], "at least 0"),
    ("learned_grid", "method", ["cubic", None], "bicubic"),
    ("learned_grid", "antialias", ["no", 1], "True or False"),
    ("learned_grid", "stddev", [-1], ">= 0"),
    ("rope_2d", "base", [1, np.inf], "above 1"),
    ("rope_2d", "channels", [(3, 4), (4,), (0, 4), (4.0, 4), 4], "each of 2 axes"),
    ("rope_2d", "spectrum", ["split", None], "alternating"),
    ("rope_2d", "normalized", ["no", 1], "True or False"),
    ("rope_2d", "layout", ["neox"], "half"),
    ("rope_2d", "scaling", ["yarn", 4.0, (None,), (None, len)], "each of 2"),
    ("rope_nd", "axes", [1, 3.0, None], "at least 2, or rope"),
    ("rope_nd", "base", [1, (1e4, 1e4), (1e4, 1e4, 1.0), None, ("a",) * 3], "above 1, or 3"),
    ("rope_nd", "channels", [(4, 4), (4, 4, 3), (4, 4, 0), 4], "each of 3 axes"),
    ("rope_nd", "spectrum", ["split", None], "alternating"),
    ("rope_nd", "normalized", ["no"], "True or False"),
    ("rope_nd", "layout", ["neox"], "half"),
    ("rope_nd", "scaling", ["yarn", 4.0, (None,), (None, len)], "each of 3"),
    ("mrope", "base", [0], "above 1"),
    ("mrope", "sections", [(2, 1), (0, 1, 1), (1, 1, 1.0), 4, "abc"], "time, row, column"),
    ("mrope", "interleaved", [1], "True or False"),
    ("mrope", "time_last", [1, "no"], "True or False"),
    ("mrope", "layout", ["neox"], "half"),
    ("swin", "width", [0, 7.0], "at least 1"),
    ("swin", "stddev", [np.nan], ">= 0"),
    ("swin", "class_token", ["no", 1], "True or False"),
    ("swin", "shared", [None], "True or False"),
    ("cpb", "height", [1, 0, 8.0], "at least 2"),
    ("cpb", "hidden", [0], "at least 1"),
    ("cpb", "stddev", [-1], ">= 0"),
    ("layoutlmv3", "num_buckets", [7, 2, 0], "even integer"),
    ("layoutlmv3", "max_distance", [8, 128.0], "must exceed the 8 exact buckets"),
    ("layoutlmv3", "spatial_buckets", [7, None], "even integer"),
    ("layoutlmv3", "spatial_distance", [16], "must exceed the 16 exact buckets"),
    ("layoutlmv3", "stddev", [-1], ">= 0"),
    ("kerple", "kind", ["logarithm", None, 2], "log, power"),
    ("sandwich", "width", [0, 127, 128.0], "even integer"),
    ("sandwich", "base", [1, np.nan], "above 1"),
    ("fire", "width", [0, 32.0], "at least 1"),
    ("fire", "c", [0, -0.1, np.inf], "positive"),
    ("fire", "length", [0, -512, np.nan, "512"], "positive"),
    ("fire", "shared", ["no", 1], "True or False"),
    ("dpb", "hidden", [0, 8.0], "at least 1"),
    ("dpb", "depth", [0, 2.0], "at least 1"),
    ("dpb", "log_distance", ["no", 1], "True or False"),
    ("tupe", "length", [0, 5.0], "at least 1"),
    ("tupe", "reset", ["no", 0], "True or False"),
    ("tupe", "stddev", [-1, np.nan], ">= 0"),
    ("bipe", "relative", ["t5", None], "rope or alibi"),
    ("bipe", "absolute", ["alibi", 3], "learned or sinusoidal"),
    ("bipe", "length", [0, 1.5], "at least 1"),
    ("bipe", "base", [1, np.inf], "above 1"),
    ("rope", "scaling", ["yarn", 4.0, len], "rope_scaling"),
    ("pope", "base", [1, np.inf], "above 1"),
    ("fope", "length", [6, 512.0], "at least 7"),
    ("fope", "base", [1, np.inf], "above 1"),
    ("fope", "gain", [-1, np.nan], "at least 0"),
    ("fope", "learned", ["no", 1], "True or False"),
    ("xpos", "base", [1, np.nan], "above 1"),
    ("xpos", "scale_base", [0, 512.0], "at least 1"),
    ("xpos", "layout", ["neox"], "half"),
    ("temperature", "attn_scale", [np.inf, "0.1"], "finite"),
    ("temperature", "floor_scale", [0, 8192.0], "at least 1"),
    ("temperature", "offset", [-1, 0.5], "at least 0"),
    ("buckets", "stddev", [-1], ">= 0"),
    ("deberta", "stddev", [np.inf], ">= 0"),
    ("learned_2d", "width", [0], "at least 1"),
    ("swin", "height", ["7"], "at least 1"),
    ("cpb", "width", [1], "at least 2"),
    ("fox", "stddev", [-1, "0.1"], ">= 0"),
    ("cable", "stddev", [np.nan], ">= 0"),
    ("wall", "stddev", [-1, np.inf], ">= 0"),
    ("selective_rope", "base", [1, np.nan], "above 1"),
    ("selective_rope", "rank", [0, 16.0], "at least 1"),
    ("repo", "base", [1, np.nan], "above 1"),
    ("repo", "hidden", [0, 16.0], "at least 1, or None"),
    ("repo", "stddev", [-1, np.inf], ">= 0"),
    ("tapa", "fraction", [0, 1, np.nan], "between 0 and 1"),
    ("prope", "base", [1, np.nan], "above 1"),
    ("rayrope", "base", [1, np.nan], "above 1"),
    ("rayrope", "rays", [0, 4, 2.0, True], "pass 1, 2 or 3"),
    ("rayrope", "centre", ["no"], "True or False"),
    ("tapa", "power", [0, np.inf], "above 0"),
    ("wavlm", "num_buckets", [7, 2], "even integer"),
    ("wavlm", "max_distance", [80, 800.0], "must exceed the 80 exact buckets"),
    ("wavlm", "bidirectional", ["no"], "True or False"),
    ("wavlm", "stddev", [-1], ">= 0"),
    ("inkling", "extent", [0, 1024.0], "at least 1"),
    ("inkling", "width", [0, None], "at least 1"),
    ("inkling", "floor", [0, 128e3], "at least 1"),
    ("inkling", "attn_scale", [np.inf, "0.1"], "finite"),
    ("inkling", "clip_states", [0, -8, "8"], "positive"),
    ("inkling", "clip_qk", [0, np.nan], "positive"),
    ("sink", "from_input", ["no", 1], "True or False"),
    ("grape_ap", "width", [0, 3, 8.0], "even number"),
    ("grape_ap", "stddev", [-1, "0.1"], ">= 0"),
    ("grape_ap", "bias_max", [0, np.nan], "above 0"),
    ("path", "stddev", [-1, np.nan], ">= 0"),
    ("cope", "positions", [0, 64.0], "at least 1"),
    ("stick_breaking", "attend_current", ["no", 1], "True or False"),
    ("dape", "hidden", [0, None], "at least 1"),
    ("rerope", "window", [0, 2.0], "at least 1"),
    ("self_extend", "window", [0], "at least 1"),
    ("alibi", "bias_max", [0, -8, np.nan, "8", None], "above 0"),
    ("alibi", "scaled", ["no", 1], "True or False"),
    ("t5", "shared", ["no", 0], "True or False"),
    ("wavlm", "shared", [None], "True or False"),
    ("deberta", "pos_att_type", ["c2p", (), ("p2p",), None, 2], "choose"),
    ("mrope", "fraction", [0, 1.5, np.nan], "(0, 1]"),
    ("mrope", "scaling", ["yarn", 4.0], "rope_scaling"),
    ("self_extend", "group", [0, 1.5], "at least 1"),
    ("dual_chunk", "chunk_size", [1, 3072.0], "at least 2"),
    ("dual_chunk", "local_size", [-1, 3072, 0.5], "below chunk_size"),
    ("key_offset", "fraction", [0, 1.5, -0.5, np.nan, "half", True], "(0, 1]"),
    ("key_offset", "halves", ["no", 1], "True or False"),
    ("rope_heads", "axes", [0, 2.0], "at least 1"),
    ("rope_heads", "heads", [(), (1,), (0, -1), (0.0,), 2], "axes from 0 to 0, or None"),
    ("rope_inner", "sizes", [(), (20.0, 0), 20.0, (np.inf,)], "positive numbers"),
    ("rope_inner", "base", [1, np.inf], "above 1"),
    ("rope_inner", "layout", ["split"], "half"),
    ("rope_pp", "equal", ["both", None], "heads"),
    ("rope_mixed", "base", [1, np.inf], "above 1"),
    ("cayley_string", "axes", [0, 2.0], "at least 1"),
    ("cayley_string", "base", [1, np.inf], "above 1"),
    ("cayley_string", "layout", ["neox"], "half"),
    ("liere", "axes", [0, 2.0], "at least 1"),
    ("liere", "block", [1, 8.0], "at least 2"),
    ("liere", "initial", [0, np.inf], "above 0"),
    ("liere", "commuting", ["no", 1], "True or False"),
    ("rope_mixed", "layout", ["neox"], "half"),
    ("rope_mixed", "axes", [1, 2.0], "at least 2"),
    ("rope_mixed", "scaling", ["yarn", 4.0, (None,), (None, len)], "each of 2"),
]
ROTATED = [row[1:] for row in FIELDS if row[0] == "rope"]
OF_ROPE = (
    "rope_pp",
    "rope_heads",
    "lerope",
    "rerope",
    "self_extend",
    "dual_chunk",
    "rotated_values",
)
FIELDS += [(name, *row) for name in OF_ROPE for row in ROTATED]


def test_every_field_of_every_scheme_is_tried():
    fields = {(n, f.name) for n, kind in ENCODINGS.items() for f in dataclasses.fields(kind)}
    assert fields == {(name, field) for name, field, *_ in FIELDS}


@pytest.mark.parametrize("name, field, values, fix", FIELDS)
def test_a_bad_value_names_scheme_field_value_and_fix(name, field, values, fix):
    for value in values:
        shown = repr(value) if value != 10**400 else "base=1000"
        with pytest.raises(ValueError) as info:
            pe_jax.make(name, **{field: value})
        assert "\n" not in str(info.value)
        for word in (f"encoding {name!r}: ", f"{field}=", shown, fix):
            assert word in str(info.value), (word, str(info.value))


def test_numbers_of_numpy_are_numbers():
    encoding = pe_jax.make("learned", length=np.int64(8), stddev=np.float64(0.5))
    assert encoding == pe_jax.make("learned", length=8, stddev=0.5)
    assert type(encoding.length) is int  # or no checkpoint could hold it
    assert pe_jax.make("buckets", edges=np.arange(3)).edges == (0, 1, 2)


ALIBI = pe_jax.make("alibi")
D, D2 = np.arange(-150, 150), np.stack([np.arange(-99, 100)] * 2, -1)
KEY, DYNAMIC = jax.random.key(0), {"rope_type": "dynamic", "factor": 4}
SIZED = {  # in integers that overflow one byte where they are doubled
    "alibi": lambda n: alibi.bias(D, n(100)),
    "buckets": lambda n: buckets.bucket(D, (n(0), n(100), n(120))),
    "clipped": lambda n: buckets.clipped(D, n(100)),
    "cpb": lambda n: cpb.log_spaced(D2, (n(100), n(100))),
    "deberta": lambda n: deberta.bucket(D, n(20), n(100)),
    "fope": lambda n: fope.frequencies(n(100), n(120)),
    "from_hf": lambda n: (
        rope_scaling.from_hf(DYNAMIC, head_dim=n(100), max_position_embeddings=n(60))
        .at_length(n(120))
        .frequencies(n(100))
    ),
    "mla": lambda n: np.array(mla.scheme(n(100), n(100)).fraction),
    "mrope": lambda n: mrope.axis_of((n(100), n(90), n(90)), True),
    "pope": lambda n: pope.frequencies(n(100)),
    "rope": lambda n: rope.frequencies(n(100), n(100), rope_scaling.NTK(n(100))),
    "rope_mixed": lambda n: rope_mixed.initial(KEY, n(100), n(100)),
    "rope_nd": lambda n: rope_nd.frequencies((n(100),) * 3, n(100), "alternating"),
    "sandwich": lambda n: sandwich.bias(D, n(100), n(120)),
    "sinusoidal": lambda n: sinusoidal.sinusoid(D, n(120), layout="tensor2tensor"),
    "swin": lambda n: swin.lookup(np.ones((2, 199**2), np.float32), D2, n(100), n(100)),
    "swin.resize": lambda n: swin.resize(np.ones((2, 9), np.float32), (n(2), n(2)), (n(9), n(99))),
    "t5": lambda n: t5.bucket(D, n(32), n(100), True),
    "temperature": lambda n: temperature.temperature(D, floor_scale=n(100), offset=n(100)),
    "xpos": lambda n: xpos.growth(D + 150, n(100), n(100)),
    "contiguous": lambda n: positions.contiguous(n(100), n(100)),
    "randomized": lambda n: positions.randomized(KEY, n(100), n(120)),
    "shifted": lambda n: positions.shifted(KEY, D, n(127)),
    "bilevel": lambda n: positions.bilevel(D, (n(46), n(10)), longest=n(100)),
    "grid": lambda n: positions.grid(n(100), n(100), prefix=n(100), numbered=True),
    "resized": lambda n: positions.resized(n(100), n(100), (n(100), n(100))),
    "multimodal": lambda n: positions.multimodal([n(100), (n(2), n(3)), n(100), n(100)]),
    "cameras": lambda n: positions.cameras(
        np.eye(4)[None], n(2), n(3), np.eye(3)[None], (n(100), n(90))
    ),
    "v2pe": lambda n: positions.v2pe([n(100), (n(2), n(3)), n(100)], n(1)),
    "circle": lambda n: positions.circle([n(100), (n(20), n(20)), n(100)], n(100), n(1)),
    "cache": lambda n: cache.empty(ALIBI, n(2), n(127), DIMS, window=n(100), sinks=n(20)).k,
    "window": lambda n: attend(ALIBI, NONE, window=n(100), sinks=n(100)),
}


@pytest.mark.parametrize("integer", [np.int8, np.uint64])
@pytest.mark.parametrize("name", SIZED)
def test_integers_of_numpy_are_integers_to_every_function(name, integer):
    want, got = (np.asarray(SIZED[name](kind)) for kind in (int, integer))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_of_numpys_integers_is_the_one_of_pythons(name):
    """Equal and of one hash, so that jit compiles once; written and computed as the same."""
    plain, kind = pe_jax.make(name), ENCODINGS[name]
    sizes = {f: x for f, x in vars(plain).items() if isinstance(x, int) and type(x) is not bool}
    other = kind(**{field: np.int32(x) for field, x in sizes.items()})
    assert other == plain and hash(other) == hash(plain) and repr(other) == repr(plain)
    dims = pe_jax.Dims(*np.array([12, 2, 2, 6], np.uint8))
    assert dims == DIMS and hash(dims) == hash(DIMS) and repr(dims) == repr(DIMS)


def test_what_is_no_name_no_text_and_no_encoding_is_refused():
    refused(lambda: pe_jax.make(None), "encoding=None", "pass a name", error=TypeError)
    rope_ = pe_jax.make("rope")
    refused(lambda: pe_jax.parse(rope_), "RoPE(", "pass a string", error=TypeError)
    refused(lambda: pe_jax.Sum((rope_, "t5")), "'t5' is not an encoding", "make", error=TypeError)


def test_bidirectional_t5_needs_an_even_number_of_buckets():
    refused(lambda: pe_jax.make("t5", num_buckets=7, bidirectional=True), "num_buckets=7", "even")
    refused(lambda: t5.bucket(np.arange(3), 32, 8, True), "max_distance=8", "the 8 exact buckets")


def test_frequencies_that_alternate_need_as_many_channels_for_each_axis():
    fields = {"channels": (2, 6), "spectrum": "alternating"}
    refused(lambda: pe_jax.make("rope_2d", **fields), "channels=(2, 6)", "same number for each")
    refused(lambda: rope_2d.frequencies((2, 6), 1e4, "alternating"), "channels=(2, 6)")
    fields = {"axes": 2, "base": (1e2, 1e4), "spectrum": "alternating"}
    refused(lambda: pe_jax.make("rope_nd", **fields), "base=(100.0, 10000.0)", "one base for all")
    refused(lambda: rope_nd.frequencies((2, 2), (1e4,)), "base=(10000.0,)", "each of 2 axes")
    refused(lambda: mrope.frequencies(8, (1, 1, 1)), "sections=(1, 1, 1)", "half of 8 channels")


def test_free_functions_check_too():
    refused(lambda: sinusoidal.sinusoid(PLACES, 7), "dim=7", "even")
    refused(lambda: rope.frequencies(7), "dim=7", "even")
    refused(lambda: rope.frequencies(8, 1.0), "base=1.0", "above 1")
    refused(lambda: rope.rotate(qkv()[0], PLACES, rope.frequencies(8)), "frequencies=4", "6 chan")
    refused(lambda: rope.rotate(qkv()[0], PLACES, rope.frequencies(6), "x"), "layout='x'", "half")
    refused(lambda: alibi.slopes(0), "num_heads=0", "at least 1")
    refused(lambda: sandwich.bias(PLACES, 0), "num_heads=0", "at least 1")
    refused(lambda: sandwich.bias(PLACES, 2, 7), "dim=7", "even")
    refused(lambda: deberta.bucket(PLACES, 128, 65), "max_distance=65", "by at least 2")
    refused(lambda: rope.rotate(qkv()[0], PLACES[:4], rope.frequencies(6)), "shape (4,)", "[T]")
    refused(lambda: rope.frequencies(8, scaling="yarn"), "scaling='yarn'", "YaRN(4.0, 2048)")
    refused(lambda: rope_2d.frequencies(4), "channels=4", "for each axis")
    refused(lambda: mrope.frequencies(8, 4), "sections=4", "time, row, column")
    refused(lambda: temperature.temperature(PLACES, floor_scale=0), "floor_scale=0", "at least 1")
    refused(lambda: rope_scaling.from_hf([1], head_dim=8), "rope_parameters=[1]", "the dict")
    refused(lambda: positions.contiguous(2.5), "length=2.5", "integer")
    floats = np.zeros(3, np.float32)
    refused(lambda: positions.bilevel(floats, (1,)), "tokens has", "integers", error=TypeError)


def test_a_table_or_distances_of_another_shape_are_refused_and_never_clamped():
    table, far = jnp.zeros((2, 9)), np.zeros((3, 2), int)
    refused(lambda: swin.lookup(table[:, :4], far, 2, 2), "table=(2, 4)", "must have 9")
    refused(lambda: swin.lookup(table, far[:, 0], 2, 2), "distance has shape [3]", "2 axes last")
    refused(lambda: cpb.log_spaced(far, (8, 8, 8)), "distance has shape [3, 2]", "3 axes last")
    refused(lambda: layoutlmv3.bias([table], far, [9]), "distance has shape [3, 2]", "1 axes last")
    for name in ("t5", "buckets", "clipped", "deberta", "wavlm", "shaw", "swin"):
        encoding, axis = pe_jax.make(name), {"deberta": 0, "shaw": -2}.get(name, 1)
        cut = functools.partial(jax.lax.slice_in_dim, start_index=0, limit_index=2, axis=axis)
        params = jax.tree.map(lambda x: cut(x) if x.ndim > 1 else x, random_params(encoding, WIDE))  # noqa: B023
        term = kinds.select(encoding.terms(params, WIDE), kinds.DistanceTerm)[-1]
        distance = far if encoding.claims.axes > 1 else far[:, 0]
        refused(functools.partial(term.at, distance), "table=", "must have")


# 1-2
@pytest.mark.parametrize("fraction, head_dim", [(1.0, 5), (0.5, 6), (0.3, 10), (0.1, 6), (0.01, 8)])
def test_rope_refuses_widths_that_leave_an_odd_channel(fraction, head_dim):
    encoding = pe_jax.make("rope", fraction=fraction)
    dims = pe_jax.Dims(head_dim * 2, 2, 2, head_dim)
    words = [f"head_dim={head_dim}"] if fraction == 1 else [f"fraction={fraction}", str(head_dim)]
    refused(lambda: encoding.check(dims), *words, "even")
    x = jnp.zeros((3, 2, head_dim))
    refused(lambda: pe_jax.attention(x, x, x, encoding=encoding), *words, "even")


@pytest.mark.parametrize(
    "name, fields, dims, words",
    [
        ("rope_2d", {}, (12, 2, 2, 6), ("head_dim=6", "multiple of 4")),
        ("rope_2d", {"channels": (4, 6)}, (16, 2, 2, 8), ("channels=(4, 6)", "the head's 8")),
        ("rope_mixed", {}, (12, 2, 2, 6), ("head_dim=6", "multiple of 4")),
        ("rope_nd", {}, (8, 2, 2, 4), ("head_dim=4", "at least 6")),
        ("rope_nd", {"channels": (4, 4, 2)}, (16, 2, 2, 8), ("channels=(4, 4, 2)", "head's 8")),
        ("prope", {}, (24, 2, 2, 12), ("head_dim=12", "multiple of 8")),
        ("rayrope", {}, (32, 2, 2, 16), ("head_dim=16", "12 coordinates", "at least 24")),
        ("mrope", {}, (8, 2, 2, 4), ("head_dim=4", "at least 6")),
        ("mrope", {"sections": (2, 2, 2)}, (16, 2, 2, 8), ("sections=(2, 2, 2)", "8 channels")),
        ("sinusoidal_2d", {}, (6, 1, 1, 6), ("width=6", "multiple of 4")),
        ("learned_2d", {}, (7, 1, 1, 7), ("width=7", "even")),
    ],
)
def test_schemes_of_several_axes_refuse_widths_that_do_not_divide(name, fields, dims, words):
    refused(lambda: pe_jax.make(name, **fields).check(pe_jax.Dims(*dims)), *words)


@pytest.mark.parametrize("name", ["sinusoidal", "transformer_xl"])
def test_sinusoids_refuse_an_odd_model_width(name):
    refused(lambda: pe_jax.make(name).check(pe_jax.Dims(9, 3, 3, 3)), "width=9", "even")


# 13
def test_alibi_takes_any_number_of_heads():
    for heads in (1, 3, 6, 12, 40):
        assert len(set(alibi.slopes(heads).tolist())) == heads
    x = np.ones((3, 6, 2), np.float32)
    assert np.isfinite(pe_jax.attention(x, x, x, encoding=pe_jax.make("alibi"))).all()


def _scaled(arrays, distance, rate):
    return rate * arrays[:, None] * distance


def _made(slope):
    def bias(arrays, distance):
        return slope * _scaled(arrays, distance, 1.0)

    return bias


def test_a_function_that_jit_would_compile_again_is_answered_with_where_to_write_it():
    for function in (
        lambda w, d: w[:, None] * d,
        _made(3),
        functools.partial(_scaled, rate=0.5),
        functools.partial(_scaled, np.ones(4)),
    ):
        refused(
            functools.partial(pe_jax.DistanceBias, function, np.ones(4)),
            "DistanceBias.fn=",
            "write it at the top level of a module (what it closes over goes into `arrays`)",
            "a method of a frozen dataclass",
            error=TypeError,
        )
