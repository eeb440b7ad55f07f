"""Swin's table against eq. 4 of arXiv 2103.14030 and the index that its section describes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import swin
from pe_jax.engines.decoding import cache
from pe_jax.engines.kernels.tpu import engine as tpu
from tests import util
from tests.encodings.common import (
    DIMS,
    HEAD_DIM,
    HEADS,
    LENGTH,
    attend,
    check_attention,
    qkv,
    random_params,
)

HEIGHT, WIDTH = 3, 4


def test_a_table_has_a_column_for_each_distance():
    encoding = pe_jax.make("swin", height=HEIGHT, width=WIDTH)
    assert random_params(encoding).layer["table"].shape == (HEADS, 5 * 7)


@pytest.mark.parametrize("far", [[3, 0], [-3, 0], [0, 4], [0, -4], [2**30, 0], [0, -(2**31)]])
def test_outside_the_window_is_an_error_when_known_and_nan_when_traced(far):
    table, distance = jnp.zeros((2, 35)), np.array([[2, -3], far])
    with pytest.raises(ValueError, match=r"distance: \[.*\] is outside the 3 × 4 window; keep"):
        swin.lookup(table, distance, HEIGHT, WIDTH)
    traced = jax.jit(lambda d: swin.lookup(table, d, HEIGHT, WIDTH))(distance)
    np.testing.assert_array_equal(np.isnan(traced), [[False, True]] * 2)


def test_a_larger_image_is_not_defined_through_attention():
    encoding = pe_jax.make("swin", height=2, width=2)
    params = random_params(encoding)
    x = np.ones((9, HEADS, HEAD_DIM), np.float32)
    options = {"encoding": encoding, "params": params, "causal": False}
    with pytest.raises(ValueError, match="outside the 2 × 2 window"):
        pe_jax.attention(x, x, x, q_positions=pos.grid(3, 3), **options)
    traced = jax.jit(lambda p: pe_jax.attention(x, x, x, q_positions=p, **options))(pos.grid(3, 3))
    assert np.isnan(traced).any(axis=(1, 2)).sum() == 8  # all but the middle one
    assert encoding.limit() == 2


def test_the_gradient_counts_the_distances_and_ignores_what_is_outside():
    def total(table, distance):
        found = swin.lookup(table, distance, 2, 2)
        return jnp.where(jnp.isnan(found), 0, found).sum()

    distance = np.array([[0, 0], [0, 0], [1, -1], [5, 0]])
    gradient = jax.jit(jax.grad(total))(jnp.zeros((1, 9)), distance)
    np.testing.assert_array_equal(gradient[0], [0, 0, 0, 0, 2, 0, 1, 0, 0])


def with_class() -> tuple[pe_jax.Encoding, pe_jax.Params, np.ndarray]:
    """A scheme with a class token, its parameters, and LENGTH places: the class, then patches."""
    encoding = pe_jax.make("swin", height=HEIGHT, width=WIDTH, class_token=True)
    places = np.asarray(pos.grid(HEIGHT, WIDTH, prefix=1, numbered=True))[:LENGTH]
    return encoding, random_params(encoding), places


def test_a_class_token_has_entries_of_its_own():
    encoding, params, places = with_class()
    assert params.layer["table"].shape == (HEADS, 5 * 7 + 3)
    check_attention(encoding, params, q_positions=places)
    table = params.layer["table"]
    bias = encoding.class_lookup(table, places, places)
    np.testing.assert_array_equal(bias[:, 0, 0], table[:, -1])
    np.testing.assert_array_equal(bias[:, 0, 1:], np.repeat(table[:, -3:-2], LENGTH - 1, 1))
    np.testing.assert_array_equal(bias[:, 1:, 0], np.repeat(table[:, -2:-1], LENGTH - 1, 1))


def test_a_class_token_in_tiles_and_in_a_cache_is_as_in_the_dense_engine():
    encoding, params, places = with_class()
    q, k, v = (x[None] for x in qkv())

    @functools.partial(jax.jit, static_argnames="engine")
    def run(params, engine):
        return jax.value_and_grad(
            lambda p: jnp.sin(
                pe_jax.attention(
                    *(q, k, v),
                    encoding=encoding,
                    params=p,
                    q_positions=places,
                    causal=False,
                    implementation=engine,
                )
            ).sum()
        )(params)

    util.assert_close(run(params, util.TILED), run(params, "dense"))

    @util.jit
    def both(params):
        given = {"encoding": encoding, "params": params}
        dense = pe_jax.attention(*(q, k, v), **given, q_positions=places, causal=True)
        past, found = cache.empty(encoding, 1, LENGTH, DIMS), []
        for part in (slice(0, 4), slice(4, LENGTH)):
            qkv = (x[:, part] for x in (q, k, v))
            out, past = cache.extend(past, *qkv, places[None, part], **given, dims=DIMS)
            found.append(out)
        return jnp.concatenate(found, axis=1), dense

    util.assert_close(*both(params))


def test_packed_images_each_have_their_class_token():
    encoding, params, _ = with_class()
    places = np.asarray(pos.grid(2, 2, prefix=1, numbered=True))
    q, k, v = qkv(length=10)
    given = encoding, params, False
    packed = {"q_positions": np.tile(places, (2, 1)), "q_segments": np.repeat([0, 1], 5)}
    both = attend(q, k, v, *given, **packed)
    apart = [
        attend(*(x[part] for x in (q, k, v)), *given, q_positions=places)
        for part in (slice(5), slice(5, 10))
    ]
    np.testing.assert_allclose(both, np.concatenate(apart), atol=1e-6)


TPU = functools.partial(tpu.attend, block=8, interpret=True)


@functools.cache
def slopes(engine, cap):
    """The gradients of parameters, q, k and v, compiled."""

    def total(params, q, k, v, places, segments=None):
        given = {"encoding": pe_jax.make("swin", height=3, width=3), "params": params}
        given |= {"q_positions": places, "q_segments": segments, "logit_cap": cap, "causal": False}
        return jnp.sin(pe_jax.attention(q, k, v, **given, implementation=engine)).sum()

    return util.jit(jax.grad(total, argnums=(0, 1, 2, 3)))


@pytest.mark.parametrize("engine", ["dense", util.TILED, TPU], ids=["dense", "tiled", "tpu"])
@pytest.mark.parametrize("cap", [None, 5.0])
def test_gradients_of_packed_images_are_those_of_each(engine, cap):
    """Pairs of two images are outside the window, NaN under a trace, and hidden by segments."""
    encoding, places = pe_jax.make("swin", height=3, width=3), np.asarray(pos.grid(3, 3))
    params, images = random_params(encoding), qkv(length=18).reshape(3, 2, 9, HEADS, HEAD_DIM)
    packed = (x.reshape(1, 18, HEADS, HEAD_DIM) for x in images)
    both = np.concatenate([places, places + 20])
    segments = np.repeat([[0, 1]], 9, axis=1)
    table, *found = slopes(engine, cap)(params, *packed, both, segments)
    each = [slopes("dense", cap)(params, *images[:, i, None], places) for i in range(2)]
    util.assert_close(table, jax.tree.map(jnp.add, each[0][0], each[1][0]))
    want = [jnp.concatenate(parts, axis=1) for parts in zip(each[0][1:], each[1][1:], strict=True)]
    util.assert_close(found, want)


def test_with_a_class_token_the_window_and_the_size_of_the_table_are_checked():
    encoding, params, places = with_class()
    table, far = params.layer["table"], places + np.array([0, WIDTH]) * (places[:, :1] == 2)
    with pytest.raises(ValueError, match="outside the 3 × 4 window"):
        encoding.class_lookup(table, far, places)
    traced = jax.jit(encoding.class_lookup)(table, far, places)
    assert np.isnan(traced).any() and np.isfinite(traced[:, :, 0]).all()  # the class sees all
    with pytest.raises(ValueError, match=r"table=\(2, 35\): axis 1 must have 38"):
        encoding.class_lookup(table[:, :-3], places, places)


@pytest.mark.parametrize("class_token", [True, False])
def test_one_table_for_all_layers_and_a_table_of_another_window(class_token):
    encoding = pe_jax.make("swin", height=2, width=3, class_token=class_token, shared=True)
    params = random_params(encoding)
    assert not params.layer and params.shared["table"].shape == (HEADS, 15 + 3 * class_token)
    large, resized = encoding.resized(params, 4, 3)
    assert (large.height, large.width, large.shared) == (4, 3, True)
    square, classes = np.split(params.shared["table"], [15], axis=1)
    resize = util.jit(jax.image.resize, static_argnums=(1, 2))
    want = resize(square.reshape(HEADS, 3, 5), (HEADS, 7, 5), "bilinear")
    want = np.concatenate([want.reshape(HEADS, 35), classes], axis=1)
    np.testing.assert_allclose(resized.shared["table"], want, atol=1e-6)
    with pytest.raises(ValueError, match="axis 1 must have 9, or 3 more for a class token"):
        swin.resize(params.shared["table"], (2, 2), (3, 3))
