"""Positions that a scheme cannot take: an error, or NaN under a trace; never a wrong number."""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given

import pe_jax
from pe_jax.encodings import ENCODINGS, learned, mrope, rerope, rope, sinusoidal
from tests import util
from tests.encodings.common import NONE, qkv, random_params
from tests.faults.attention_calls import T, attention, refuses
from tests.faults.encoding_calls import PLACES, WIDE, attend, refused

# 18-19
INTEGER_ONLY = [
    name for name, cls in ENCODINGS.items() if name != "nope" and not cls().claims.real_positions
]


@pytest.mark.parametrize("name", ENCODINGS)
def test_half_precision_positions_are_a_type_error(name):
    for dtype in (jnp.bfloat16, jnp.float16):
        places = jnp.asarray(PLACES, dtype)
        refused(
            lambda p=places: attend(pe_jax.make(name), NONE, q_positions=p),
            *("q_positions has dtype", "half precision merges positions"),
            error=TypeError,
        )


HALF = [jnp.bfloat16, jnp.float16]


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_frequencies_are_a_type_error(dtype):
    """At position 4,095 they turn a pair by up to 8 radians too far; float32 is near float64."""
    x, at, theta = np.ones((1, 1, 64), np.float32), np.array([4095]), rope.frequencies(64)
    turned = rope.rotate(x, at, np.asarray(theta, np.float64))
    angle = 4095 * 1e4 ** (-np.arange(32) / 32)
    want = np.concatenate([np.cos(angle) - np.sin(angle), np.cos(angle) + np.sin(angle)])
    np.testing.assert_allclose(turned[0, 0], want, atol=5e-4)
    calls = [
        ("frequencies", lambda: rope.rotate(x, at, theta.astype(dtype))),
        ("frequencies", lambda: rerope.rotate_twice(x, at, at, theta.astype(dtype))),
        ("scaling", lambda: rope.frequencies(64, scaling=lambda t: jnp.asarray(t, dtype))),
        (
            "scaling",
            lambda: mrope.frequencies(6, (1, 1, 1), scaling=lambda t: jnp.asarray(t, dtype)),
        ),
    ]
    for name, call in calls:
        refused(call, name, f"dtype {jnp.dtype(dtype)}", "keep it float32", error=TypeError)


MULTIPLIED = ["rope_mixed", "lerope", "selective_rope", "repo", "cayley_string", "liere"]


@pytest.mark.parametrize("name", MULTIPLIED)
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_parameters_that_positions_multiply_are_a_type_error(name, dtype):
    encoding = pe_jax.make(name)
    params = jax.tree.map(lambda x: x.astype(dtype), random_params(encoding, WIDE))
    refused(
        lambda: attend(encoding, params, q_positions=PLACES),
        *(f"dtype {jnp.dtype(dtype)}", "keep it float32"),
        error=TypeError,
    )


BOUNDED = [
    name
    for name, kind in ENCODINGS.items()
    if name not in MULTIPLIED and jax.tree.leaves(random_params(kind(), WIDE))
]


@pytest.mark.parametrize("name", BOUNDED)
def test_half_precision_parameters_of_other_schemes_err_as_the_dtype_does(name):
    """A table, a slope or a gate is rounded, and what is computed with it is not."""
    encoding = pe_jax.make(name)
    params = random_params(encoding, WIDE)

    @util.jit
    def both(params):
        half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
        full = jax.tree.map(lambda x: x.astype(jnp.float32), half)
        return [attend(encoding, p, q_positions=PLACES % 7) for p in (half, full, params)]

    half, full, exact = both(params)
    np.testing.assert_allclose(half, full, atol=5e-5)
    np.testing.assert_allclose(half, exact, atol=0.03)


@pytest.mark.parametrize("name", INTEGER_ONLY)
def test_float_positions_are_refused_by_schemes_that_index(name):
    places = PLACES.astype(np.float32)
    refused(
        lambda: attend(pe_jax.make(name), NONE, q_positions=places),
        *("q_positions has dtype float32", "pass integers"),
        error=TypeError,
    )


@pytest.mark.parametrize("name", ["rope", "t5", "fox"])
def test_small_integer_positions_are_widened_before_they_are_subtracted(name):
    encoding, places = pe_jax.make(name), PLACES * 12
    want = attend(encoding, q_positions=places)
    for dtype in (np.int8, np.uint8):
        np.testing.assert_array_equal(attend(encoding, q_positions=places.astype(dtype)), want)


# 20
@pytest.mark.parametrize("start", [2**24, -(2**24) - 10])
def test_positions_that_float32_cannot_hold_are_refused_by_angles(start):
    far = start + PLACES
    refused(lambda: attend(pe_jax.make("rope"), q_positions=far), "is not exact", "2**24")
    refused(lambda: sinusoidal.sinusoid(far, 8), "is not exact", "2**24")


@pytest.mark.parametrize("name", ["shaw", "t5", "buckets", "clipped", "deberta", "alibi", "kerple"])
def test_positions_that_float32_cannot_hold_are_exact_for_distances(name):
    encoding = pe_jax.make(name)
    far = attend(encoding, q_positions=2**30 - 100 + PLACES)
    np.testing.assert_array_equal(far, attend(encoding, q_positions=PLACES))


@pytest.mark.parametrize("name", ["rope", "sinusoidal", "transformer_xl", "alibi"])
def test_float_positions_from_2_to_the_24_on_are_refused(name):
    far = np.float32(2**24) + np.float32(2) * PLACES.astype(np.float32)
    refused(lambda: attend(pe_jax.make(name), NONE, q_positions=far), "q_positions: ", "2**24")


# 22-24
def test_positions_and_segments_of_the_wrong_shape_are_refused_not_broadcast():
    q, k, v = qkv()
    nope = pe_jax.make("rope")
    refused(lambda: attend(nope, q_positions=PLACES[:5]), "q_positions has shape [5]", "[11]")
    wrong = np.stack([PLACES] * 2)
    refused(lambda: attend(nope, q_positions=wrong), "q_positions has shape [2, 11]")
    refused(lambda: attend(nope, q_segments=PLACES[:1]), "q_segments has shape [1]", "[11]")
    refused(
        lambda: pe_jax.attention(q[:4], k, v, encoding=nope),
        *("q has 4 tokens and k has 11", "positions"),
    )
    batch = [x[None].repeat(2, 0) for x in (q, k, v)]
    for wrong in (PLACES, PLACES[None], np.stack([PLACES] * 3)):
        refused(lambda w=wrong: pe_jax.attention(*batch, q_segments=w), "q_segments has shape")


def test_positions_need_not_rise_and_the_mask_follows_the_index():  # 21
    encoding = pe_jax.make("alibi")
    out = attend(encoding, q_positions=PLACES[::-1].copy())
    np.testing.assert_allclose(out, attend(encoding), atol=1e-6)  # |distance| is the same
    assert learned.lookup(jnp.arange(11.0)[:, None], PLACES[::-1])[0, 0] == 10


@pytest.mark.parametrize("name", ("q_positions", "q_segments", "q_index"))
@given(shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=T))
def test_no_shape_is_broadcast(name, shape):
    assume(shape not in {(T,), (util.B, T)})
    refuses(
        ValueError, f"{name} has shape {list(shape)}", attention, **{name: np.zeros(shape, int)}
    )
