"""RoPE for longer contexts, from the papers; tests/oracles has each against other people's code."""

import dataclasses
import json
import math

import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import rope, rope_scaling
from pe_jax.encodings.rope_scaling import (
    NTK,
    ClippedRoPE,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    RIFLEx,
    YaRN,
)
from pe_jax.numerics import angles
from tests import util
from tests.encodings.common import NONE, attend, qkv, random_params
from tests.faults.encoding_calls import refused

DIM, BASE, LENGTH = 64, 1e4, 2048
THETA = angles.geometric(DIM, BASE)
LISTS = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}


def turns(theta, length=LENGTH):
    """How often each wave turns within the original length."""
    return length * np.asarray(theta) / (2 * math.pi)


def test_dynamic_ntk_waits_for_the_length_then_grows_with_it():
    for length in (None, 1, LENGTH - 1, LENGTH):
        np.testing.assert_array_equal(DynamicNTK(4.0, LENGTH, length)(THETA), THETA)
    for times in (2, 3):
        want = NTK(4.0 * times - 3.0)(THETA)
        np.testing.assert_allclose(DynamicNTK(4.0, LENGTH, times * LENGTH)(THETA), want)


@pytest.mark.parametrize(
    "fields, want",
    [
        ({"factor": 0.5}, 1.0),
        ({"factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5}, 1.0),
        ({"factor": 40.0}, 0.1 * math.log(40) + 1),
        ({"factor": 40.0, "mscale": 0.707}, 0.1 * math.log(40) + 1),
        ({"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.0}, 0.1 * math.log(40) + 1),
        ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        (
            {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
            (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1),
        ),
        ({"factor": 40.0, "attention_factor": 0.9, "mscale": 1.0, "mscale_all_dim": 2.0}, 0.9),
    ],
)
def test_yarns_attention_factor(fields, want):
    assert YaRN(original_length=LENGTH, **fields).attention_factor == pytest.approx(want, abs=1e-15)


def test_yarn_has_no_singularity_and_needs_the_base_of_one_frequency_alone():
    for fields in ({"beta_fast": 4, "beta_slow": 4, "truncate": False}, {"original_length": 3}):
        assert np.isfinite(
            YaRN(**{"factor": 4.0, "original_length": LENGTH, **fields})(THETA)
        ).all()
    yarn = YaRN(4.0, LENGTH)
    np.testing.assert_allclose(yarn(THETA), yarn(THETA, BASE), rtol=1e-12)
    assert rope.frequencies(2, BASE, yarn) == 1
    refused(lambda: yarn(np.ones(1)), "base=None", "pass it")


def test_llama3_without_a_range_to_blend_in_is_a_step():
    theta = angles.geometric(128, 5e5)
    step = Llama3(8.0, 4.0, 4.0)(theta) / theta
    np.testing.assert_allclose(step, np.where(turns(theta, 8192) >= 4, 1, 1 / 8))


def test_longrope_is_short_up_to_the_original_length_and_one_gain_at_all_lengths():
    found = LongRoPE(**LISTS, original_length=4096, factor=32.0)
    assert found.attention_factor == math.sqrt(1 + math.log(32) / math.log(4096))
    for length, factor in ((None, 1), (1, 1), (4096, 1), (4097, 2), (131072, 2)):
        there = found if length is None else found.at_length(length)
        np.testing.assert_array_equal(there(THETA), THETA / factor)
        assert there.attention_factor == found.attention_factor
    assert LongRoPE(**LISTS, original_length=4096, factor=0.5).attention_factor == 1
    assert LongRoPE(**LISTS, original_length=4096, attention_factor=1.2).attention_factor == 1.2


def test_phi_moes_two_factors_act_on_cosines_and_sines_by_length():
    """Cosines and sines of q and k are times `long_mscale` where L > 4,096, else `short_mscale`.

    So the released code computes them (transformers' `PhimoeRotaryEmbedding`); here anew.
    """
    pair = (1.1, 1.243163121016122)
    found = pe_jax.make(
        "rope", scaling=LongRoPE(**LISTS, original_length=4096, attention_factors=pair)
    )
    rng, positions = np.random.default_rng(0), np.array([0, 1, 77, 4095])
    x = rng.standard_normal((4, 1, DIM)).astype(np.float32)
    a, b = np.split(x[:, 0].astype(np.float64), 2, axis=-1)
    for length, mscale, factor in ((4096, pair[0], 1), (4097, pair[1], 2), (9, pair[0], 1)):
        found = found.at_length(length)  # from long to short as well
        angle = positions[:, None] * THETA / factor
        cos, sin = mscale * np.cos(angle), mscale * np.sin(angle)
        want = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        np.testing.assert_allclose(found.rotate(None, x, positions)[:, 0], want, atol=2e-3)
        assert found.attention_factor == mscale


def test_p_rope_keeps_fast_frequencies_where_a_fraction_spreads_them():
    kept = Proportional(0.25)(THETA)
    np.testing.assert_array_equal(kept, np.where(np.arange(32) < 8, THETA, 0))
    narrow = pe_jax.make("rope", fraction=0.25).frequencies(DIM)
    assert narrow.shape == (8,) and not np.allclose(narrow[1:], kept[1:8])
    np.testing.assert_array_equal(Proportional(1.0, 2.0)(THETA), THETA / 2)
    assert not Proportional(0)(THETA).any()


def test_clipped_frequencies_fall_by_half_a_cosine_to_a_stop():
    """As in arXiv 2602.05258 and its code, in plain float64; the fast ones stay as they are."""
    for count in (0, 1, 2, 20, 32, 99):
        slow = min(count, 32)
        want = np.ones(32)
        for j in range(slow if slow > 1 else 0):
            want[32 - slow + j] = (1 + math.cos(math.pi * j / (slow - 1))) / 2
        np.testing.assert_allclose(ClippedRoPE(count)(THETA), want * THETA, atol=1e-16)
        hard = np.where(np.arange(32) < 32 - slow, THETA, 0)
        np.testing.assert_array_equal(ClippedRoPE(count, hard=True)(THETA), hard)
    assert ClippedRoPE(20)(THETA)[-1] == 0 and (np.diff(ClippedRoPE(20)(THETA)) < 0).all()


@pytest.mark.parametrize("base", [1e4, 5e5])
def test_those_are_clipped_whose_period_the_training_never_saw(base):
    theta = angles.geometric(128, base)
    often = turns(theta, 8192)
    hard = ClippedRoPE(original_length=8192, hard=True)(theta)
    np.testing.assert_array_equal(hard, np.where(often >= 1, theta, 0))
    slow = int((often < 1).sum())
    soft = ClippedRoPE(original_length=8192)(theta)
    np.testing.assert_array_equal(soft, ClippedRoPE(slow)(theta))
    critical = 2 * math.ceil(64 * math.log(8192 / (2 * math.pi)) / math.log(base))
    assert 64 - slow == critical // 2  # the critical dimension of arXiv 2310.05209
    np.testing.assert_array_equal(ClippedRoPE(original_length=2**40)(theta), theta)
    assert base != 5e5 or slow == 29  # of Llama 3


def test_beyond_the_training_a_pair_that_is_clipped_hard_sees_no_position():
    """What it is for: no angle that was not seen, in any rotation that takes scalings."""
    scaling = ClippedRoPE(original_length=64, hard=True)
    x = np.random.default_rng(0).standard_normal((2, 1, DIM), np.float32)
    for name in ("rope", "rerope", "lerope"):
        encoding = pe_jax.make(name, scaling=scaling)
        params = random_params(encoding, pe_jax.Dims(DIM, 1, 1, DIM))
        near, far = (util.rotate(encoding, "k", params, x, np.array([0, n])) for n in (1, 100_000))
        slow = np.tile(turns(THETA, 64) < 1, 2)
        np.testing.assert_array_equal(near[1, 0, :DIM][slow], far[1, 0, :DIM][slow])
        assert (near[1, 0, :DIM] != far[1, 0, :DIM])[~slow].any()


@pytest.mark.parametrize(
    "dim, base, trained, repetition, k, period",
    [(16, 256, 33, 48, 4, 50), (16, 1e4, 13, 20, 2, 20), (64, 1e4, 2048, 2600, 22, 2650)],
)
def test_riflex_slows_the_intrinsic_frequency_alone_to_less_than_one_turn(
    dim, base, trained, repetition, k, period
):
    """Eq. 7–8 of arXiv 2502.15894; k and the period of HunyuanVideo and CogVideoX are published."""
    theta = [base ** (-2 * (j - 1) / dim) for j in range(1, dim // 2 + 1)]
    assert round(2 * math.pi / theta[k - 1]) == period
    for factor in (2, 3.5):
        want = list(theta)
        want[k - 1] = 0.9 * 2 * math.pi / (trained * factor)
        for which in ({"intrinsic": k}, {"repetition": repetition}):
            got = RIFLEx(factor, trained, **which)(angles.geometric(dim, base))
            np.testing.assert_allclose(got, want, rtol=1e-12)
            exact = RIFLEx(factor, trained, **which, margin=1)(angles.geometric(dim, base))
            assert turns(exact[k - 1], trained * factor) == pytest.approx(1)
    short = RIFLEx(1, int(0.8 * period), k)(angles.geometric(dim, base))
    np.testing.assert_allclose(short, theta)  # less than 0.9 of a turn already


def turned_channels(encoding, dim: int) -> list[set[int]]:
    """For each channel those that a rotation mixes it with."""
    unit = np.eye(dim, dtype=np.float32)[:, None]
    out = np.asarray(util.rotate(encoding, "q", NONE, unit, np.full(dim, 1)))[:, 0]
    return [set(np.flatnonzero(np.abs(row) > 1e-9)) for row in out]


def test_partial_and_proportional_rotary_pair_different_channels():
    """Both turn a quarter; mixing them up is silent (apple/coreai-models, issue 66).

    A fraction is a narrower head: channel i meets i + 4 of the first 16. A proportional one has the
    whole head's pairs, of which the fast ones turn: i meets i + 32.
    """
    narrow = turned_channels(pe_jax.make("rope", fraction=0.25), 64)
    wide = turned_channels(pe_jax.make("rope", scaling=Proportional(0.25)), 64)
    for i in range(64):
        fast = i % 32 < 8
        assert wide[i] == ({i % 32, i % 32 + 32} if fast else {i})
        assert narrow[i] == ({i % 8, i % 8 + 8} if i < 16 else {i})
    theta = pe_jax.make("rope", fraction=0.25).frequencies(64)
    assert theta[1] == pytest.approx(1e4 ** (-2 / 16)) and Proportional(0.25)(THETA)[1] == THETA[1]
    read = rope_scaling.from_hf(
        {"rope_type": "proportional", "partial_rotary_factor": 0.25}, head_dim=64
    )
    assert turned_channels(read, 64) == wide
    for partial in ({"partial_rotary_factor": 0.25}, {"type": "linear", "factor": 1.0}):
        read = rope_scaling.from_hf(partial, head_dim=64, partial_rotary_factor=0.25)
        assert turned_channels(read, 64) == narrow


@pytest.mark.parametrize("layout", rope.LAYOUTS)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_yarn_is_applied_once_and_pairs_as_the_layout_says(layout, fraction):
    """Frequencies scaled twice, or pairs of the other layout, look sane (TensorRT-LLM, #16378)."""
    yarn = YaRN(4.0, LENGTH)
    encoding = pe_jax.make("rope", fraction=fraction, layout=layout, scaling=yarn)
    turned = int(DIM * fraction)
    theta = yarn(angles.geometric(turned, BASE), BASE)
    often = turns(angles.geometric(turned, BASE))
    np.testing.assert_allclose(theta[often < 1] * 4, angles.geometric(turned, BASE)[often < 1])
    for again in (encoding, encoding.at_length(9000), encoding.at_length(9).at_length(9000)):
        np.testing.assert_allclose(again.frequencies(DIM), theta, rtol=1e-6)
    x, places = np.random.default_rng(0).standard_normal((5, 2, DIM), np.float32), np.arange(5) * 99
    pairs = np.arange(turned).reshape((2, -1) if layout == "half" else (-1, 2))
    first, second = pairs if layout == "half" else pairs.T
    z = (x[..., first] + 1j * x[..., second]) * np.exp(1j * places[:, None, None] * theta)
    want = x.astype(np.float64)
    factor = 0.1 * math.log(4) + 1  # once in q and once in k
    want[..., first], want[..., second] = factor * z.real, factor * z.imag
    for side in "qk":
        got = util.rotate(encoding, side, NONE, x, places)
        np.testing.assert_allclose(got, want, atol=2e-4)  # float32 angles of 400


def test_any_function_of_frequencies_is_a_scaling_of_the_free_function():
    halved = rope.frequencies(8, scaling=lambda theta: theta / 2)
    np.testing.assert_array_equal(halved, rope.frequencies(8) / 2)
    refused(lambda: pe_jax.make("rope", scaling=np.sqrt), "scaling=", "rope_scaling")


SPECS = {
    "linear(factor=4)": Linear(4),
    "ntk(factor=2.5)": NTK(2.5),
    "dynamic_ntk(factor=2, original_length=128, length=512)": DynamicNTK(2, 128, 512),
    "yarn(factor=4, original_length=2048)": YaRN(4, 2048),
    "yarn(factor=4,original_length=9,truncate=False,mscale=None)": YaRN(4, 9, truncate=False),
    "llama3(factor=32)": Llama3(32),
    "longrope(short_factor=[1, 2], long_factor=(2, 3), original_length=8, factor=4)": LongRoPE(
        (1, 2), (2, 3), 8, factor=4
    ),
    "proportional(fraction=0.25)": Proportional(0.25),
    "clipped_rope(slowest=20)": ClippedRoPE(20),
    "clipped_rope(original_length=8192,hard=True)": ClippedRoPE(original_length=8192, hard=True),
    "riflex(factor=2, original_length=33, intrinsic=4)": RIFLEx(2, 33, 4),
    "riflex(factor=2.5,original_length=33,repetition=48,margin=1)": RIFLEx(
        2.5, 33, repetition=48, margin=1
    ),
}


@pytest.mark.parametrize("text", SPECS)
def test_a_scaling_is_written_in_a_config_and_read_back_from_its_metadata(text):
    config = {"encoding": f"(t5+rope(base=5e5, scaling={text}))*2,nope"}
    first, second, last = pe_jax.parse(json.loads(json.dumps(config))["encoding"])
    want = pe_jax.Sum((pe_jax.make("t5"), pe_jax.make("rope", base=5e5, scaling=SPECS[text])))
    assert first == second == want and hash(first) == hash(want) and last == pe_jax.make("nope")
    assert {type(s) for s in SPECS.values()} == set(rope_scaling.SCALINGS.values())


@pytest.mark.parametrize(
    "text, words",
    [
        ("yran(factor=4)", ("scaling 'yran' is unknown", "did you mean 'yarn'")),
        ("yarn(facter=4)", ("scaling 'yarn' has no field 'facter'", "did you mean 'factor'")),
        ("yarn(factor=4)", ("scaling 'yarn' needs original_length",)),
        ("linear(4)", ("scaling=linear(4): pass a literal, or a scaling as",)),
        ("linear(factor=x)", ("factor='x': pass a number",)),
        ("yarn", ("scaling='yarn': pass a scaling of rope_scaling, such as yarn(…)",)),
        ("'linear'", ("scaling='linear'", "rope_scaling")),
    ],
)
def test_what_is_no_scaling_is_an_error(text, words):
    refused(lambda: pe_jax.parse(f"rope(scaling={text})"), *words)


BAD = [
    (Linear, {"factor": 0}, "factor=0: pass a number above 0"),
    (NTK, {"factor": math.nan}, "factor=nan"),
    (DynamicNTK, {"factor": 2, "original_length": 2.5}, "original_length=2.5: pass an integer"),
    (DynamicNTK, {"factor": 2, "original_length": 8, "length": 0}, "length=0"),
    (YaRN, {"factor": 2, "original_length": 8, "beta_fast": 0.5}, "at least beta_slow=1.0"),
    (YaRN, {"factor": 2, "original_length": 8, "truncate": "no"}, "True or False"),
    (YaRN, {"factor": 2, "original_length": 8, "mscale": -1}, "mscale=-1"),
    (YaRN, {"factor": 2, "original_length": 8, "attention_factor": -1}, "attention_factor=-1"),
    (Llama3, {"factor": 2, "low_freq_factor": 8.0}, "high_freq_factor=4.0: must be at least"),
    (LongRoPE, {**LISTS, "original_length": 8}, "factor=None: pass the extended context"),
    (LongRoPE, {**LISTS, "original_length": 8, "attention_factors": [1.0]}, "attention_factors=("),
    (
        LongRoPE,
        {**LISTS, "original_length": 8, "attention_factors": (1, 2), "attention_factor": 3},
        "attention_factor=3: leave it out",
    ),
    (LongRoPE, {**LISTS, "original_length": 8, "long_factor": [0.0]}, "long_factor=(0.0,)"),
    (LongRoPE, {**LISTS, "original_length": 1, "factor": 2}, "original_length=1"),
    (Proportional, {"fraction": 1.5}, "fraction=1.5"),
    (ClippedRoPE, {}, "slowest=None: pass this or original_length (it is None)"),
    (ClippedRoPE, {"slowest": 2, "original_length": 8}, "original_length (it is 8), not both"),
    (ClippedRoPE, {"slowest": -1}, "slowest=-1: pass a number of frequencies"),
    (ClippedRoPE, {"slowest": 2.5}, "slowest=2.5"),
    (ClippedRoPE, {"original_length": 0}, "original_length=0"),
    (ClippedRoPE, {"slowest": 2, "hard": "no"}, "hard='no'"),
    (RIFLEx, {"factor": 0, "original_length": 8, "intrinsic": 1}, "factor=0"),
    (RIFLEx, {"factor": 2, "original_length": 0, "intrinsic": 1}, "original_length=0"),
    (RIFLEx, {"factor": 2, "original_length": 8}, "intrinsic=None: pass this or repetition"),
    (RIFLEx, {"factor": 2, "original_length": 8, "intrinsic": 0}, "intrinsic=0: pass which"),
    (RIFLEx, {"factor": 2, "original_length": 8, "repetition": 0}, "repetition=0"),
    (RIFLEx, {"factor": 2, "original_length": 8, "intrinsic": 1, "margin": 1.1}, "margin=1.1"),
]


@pytest.mark.parametrize("kind, fields, words", BAD)
def test_a_bad_value_of_a_scaling_names_field_value_and_fix(kind, fields, words):
    refused(lambda: kind(**fields), words)


def test_a_scaling_that_does_not_fit_the_head_is_refused_before_anything_runs():
    dims = pe_jax.Dims(32, 2, 2, 16)
    six = LongRoPE([1.0] * 6, [2.0] * 6, 8, factor=2)
    refused(lambda: pe_jax.make("rope", scaling=six).check(dims), "len(short_factor)=6", "8 freq")
    pe_jax.make("rope", scaling=six, fraction=0.75).check(dims)
    two = pe_jax.make("rope", scaling=NTK(2.0), fraction=0.125)
    refused(lambda: two.check(dims), "dim=2", "at least 4")
    ninth = pe_jax.make("rope", scaling=RIFLEx(2.0, 8, intrinsic=9))
    refused(lambda: ninth.check(dims), "intrinsic=9", "8 frequencies")


def test_at_length_reaches_scalings_through_rope_and_sums():
    (whole,) = pe_jax.parse("t5+rope(scaling=dynamic_ntk(factor=2, original_length=128))")
    dynamic = DynamicNTK(2, 128)
    assert whole.at_length(512).parts[1].scaling == dataclasses.replace(dynamic, length=512)
    assert whole.at_length(512).at_length(256) == whole.at_length(256)
    for spec in ("t5", "rope", "rope(scaling=linear(factor=2))", "shaw+rope"):
        (same,) = pe_jax.parse(spec)
        assert same.at_length(512) == same


def test_what_is_added_to_queries_comes_before_rotations_in_any_order_of_the_sum():
    first, last = (pe_jax.parse(s)[0] for s in ("transformer_xl+rope", "rope+transformer_xl"))
    params, (q, k, v) = random_params(first), qkv()
    turned = pe_jax.Params(*(own[::-1] for own in params))
    outs = [attend(q, k, v, e, p) for e, p in ((first, params), (last, turned))]
    np.testing.assert_array_equal(*outs)
