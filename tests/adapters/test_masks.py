"""Masks, positions, segments and lengths: what a stock module passes, and what it cannot say."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import pe_jax
from pe_jax.encodings.rope_scaling import DynamicNTK
from pe_jax.models import adapters
from pe_jax.positions import per_segment
from tests import util
from tests.adapters.common import MASK, NONE, ROPE, called, heads, refused
from tests.util import DIMS, B, H, T, assert_close, noise


@pytest.mark.parametrize(
    "mask", [MASK, MASK[0, :1], MASK[0, 0], None], ids=["BHTS", "1TS", "TS", ""]
)
def test_any_mask_and_bias_are_honoured_beside_an_encoding(mask):
    """ALiBi with them is stock attention with ALiBi's matrix among the biases."""
    bias, place = noise(B, 1, T, T, seed=5), np.arange(T)
    far = util.distance_bias(pe_jax.make("alibi"), NONE, place[:, None] - place, DIMS)
    fn = adapters.attention_fn(pe_jax.make("alibi"), NONE, causal=False)
    got = called(fn, *heads(), bias=bias, mask=mask)
    stock = called(nn.dot_product_attention, *heads(), bias=bias + far, mask=mask)
    assert_close(got, stock)


def test_several_batch_axes_and_none_are_as_one():
    fn = adapters.attention_fn(pe_jax.make("alibi"), causal=False)
    q, k, v = (np.stack([x, x + 1]) for x in heads())
    mask = np.stack([MASK, ~MASK])
    got = called(fn, q, k, v, mask=mask)
    none = util.jit(lambda *args: fn(*args[:3], mask=args[3]))
    for i, j in np.ndindex(2, B):
        assert_close(got[i, j], none(q[i, j], k[i, j], v[i, j], mask[i, j]))


def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients():
    fn = adapters.attention_fn(pe_jax.make("rope"), causal=False)
    mask = MASK.copy()
    mask[0, :, 3] = False
    assert not np.asarray(called(fn, *heads(), mask=mask)[0, 3]).any()
    grads = util.jit(jax.grad(lambda args: (fn(*args, mask=mask) ** 2).sum()))(heads())
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("spec", ["cope(positions=4)", "alibi+dape(hidden=5)"])
def test_where_masks_differ_by_head_each_head_has_its_own(spec):
    """CoPE counts what the mask shows; DAPE reads the scores of all heads."""
    (encoding,) = pe_jax.parse(spec)
    fn = adapters.attention_fn(encoding, util.random_params(encoding), causal=False)

    def run(q, k, v, mask):
        alone = [fn(q, k, v, mask=mask[:, h : h + 1])[:, :, h] for h in range(H)]
        return fn(q, k, v, mask=mask), jnp.stack(alone, axis=2)

    assert_close(*util.jit(run)(*heads(), MASK))


def test_segments_window_and_sinks_are_the_masks_that_they_stand_for():
    segments = np.repeat([[0, 1, 2], [0, 0, 1]], [5, 5, 3], axis=1)
    first = np.asarray(per_segment(segments)) < 2
    same = segments[:, :, None] == segments[:, None]
    far = np.arange(T)[:, None] - np.arange(T)
    encoding = pe_jax.make("rope")
    make = functools.partial(adapters.attention_fn, encoding)
    seen = (same & (far >= 0) & ((far < 3) | first[:, None]))[:, None]
    plain = called(make(causal=True, window=3, sinks=2, segments=segments), *heads())
    assert_close(plain, called(make(causal=False), *heads(), mask=seen))


def test_a_step_stands_where_the_newest_key_of_its_mask_does():
    """Old keys may be hidden: padding on the left."""
    encoding = pe_jax.parse("t5+rope")[0]
    fn = adapters.attention_fn(encoding, util.random_params(encoding), causal=False)
    run = util.jit(lambda *args: fn(*args[:3], mask=args[3]))
    q, k, v = heads()
    for at in (0, 5, T - 1):
        mask = np.broadcast_to(np.arange(T) <= at, (B, 1, 1, T)).copy()
        mask[0, ..., : at // 2] = False
        whole = np.ones((B, 1, T, T), bool) & mask
        want = run(q, k, v, whole)[:, at : at + 1]
        assert_close(run(q[:, at : at + 1], k, v, mask), want)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_bias_of_minus_infinity_is_a_mask_in_any_dtype(dtype):
    fn, hidden = adapters.attention_fn(ROPE), jnp.asarray(-jnp.inf, dtype)
    biased = fn(*heads(), bias=jnp.where(MASK, jnp.ones((), dtype), hidden))
    assert_close(biased, fn(*heads(), mask=MASK))


@pytest.mark.parametrize("given", [{}, {"q_positions": np.array([20])}], ids=["last", "told"])
def test_one_query_stands_where_its_own_row_ends(given):
    """Pooling over rows of several lengths: no row depends on the padding of another."""
    lengths, (q, k, v) = np.array([T - 4, T - 1]), heads()
    rows = np.arange(T) < lengths[:, None]
    fn = adapters.attention_fn(ROPE, causal=False, **given)
    got = util.jit(lambda mask: fn(q[:, :1], k, v, mask=mask))(rows[:, None, None])
    for row, n in enumerate(lengths):
        alone = tuple(x[row : row + 1, :n] for x in (k, v))
        places = {"q_positions": given.get("q_positions", np.array([n - 1]))}
        places["k_positions"] = np.arange(n)
        want = pe_jax.attention(q[row : row + 1, :1], *alone, encoding=ROPE, causal=False, **places)
        assert_close(got[row : row + 1], want)


def test_a_step_keeps_to_positions_segments_window_and_cause():
    positions, segments = np.arange(T)[::-1] * 3, np.repeat([[0, 1]] * B, [4, T - 4], axis=1)
    for settings in ({"positions": positions}, {"segments": segments, "window": 3, "sinks": 1}):
        fn, at = adapters.attention_fn(pe_jax.make("rope"), causal=True, **settings), 8
        old = (np.arange(T) <= at)[None, None, None]

        def both(q, k, v):
            return fn(q, k, v)[:, at : at + 1], fn(q[:, at : at + 1], k, v, mask=old)  # noqa: B023

        assert_close(*util.jit(both)(*heads()))


def test_queries_of_another_sequence_have_positions_of_their_own():
    q, k, v = heads()
    q, places = q[:, :5], (np.arange(5) * 2, np.arange(T))
    rope = pe_jax.make("rope")
    given = {"positions": places[1], "q_positions": places[0]}
    fn = adapters.attention_fn(rope, causal=False, **given)
    options = {"q_positions": places[0], "k_positions": places[1], "causal": False}
    direct = functools.partial(pe_jax.attention, encoding=pe_jax.make("rope"), **options)
    assert_close(*util.jit(lambda *args: (fn(*args), direct(*args)))(q, k, v))


def test_later_tokens_are_hidden_unless_told_and_schemes_of_several_axes_must_be_told():
    assert_close(adapters.attention_fn(ROPE)(*heads()), pe_jax.attention(*heads(), encoding=ROPE))
    places = np.zeros((T, 2), np.int32)
    axes = "causal=None: RoPE2D has 2 axes; pass True, or False to see all"
    refused(axes, adapters.attention_fn, pe_jax.make("rope_2d"), positions=places)


def test_a_one_sided_scheme_needs_a_mask_that_hides_what_is_ahead():
    """Stock modules pass theirs at the call: it is looked at there, where it is known."""
    encoding, past = pe_jax.make("t5"), np.tri(T, dtype=bool)
    params = util.random_params(encoding)
    fn = adapters.attention_fn(encoding, params, causal=False)
    want = adapters.attention_fn(encoding, params, causal=True)(*heads())
    assert_close(fn(*heads(), mask=past), want)
    assert_close(fn(*heads(), is_causal=True), want)
    assert_close(called(fn, *heads(), mask=past), want)  # one that is not known is believed
    assert_close(fn(*heads(), mask=past[None, None] & (np.arange(T) > -1)), want)
    alike = "all later tokens look alike to T5; make it with bidirectional=True"
    refused("causal=False: " + alike, fn, *heads())
    refused("causal=False: " + alike, fn, *heads(), bias=np.zeros((T, T)))
    for mask in (past.T, np.ones((B, 1, 1, T), bool), MASK):
        refused("mask='…': " + alike, fn, *heads(), mask=mask)
    xpos = "causal=False: XPos is for causal attention alone"
    refused(xpos, adapters.attention_fn, pe_jax.make("xpos"), causal=False)


def test_a_scaling_that_depends_on_the_length_is_set_as_attention_sets_it():
    free = pe_jax.make("rope", scaling=DynamicNTK(8.0, 4))
    full = functools.partial(adapters.attention_fn, causal=True)
    want = full(free.at_length(T))(*heads())
    assert np.abs(want - full(ROPE)(*heads())).max() > 0.01
    np.testing.assert_array_equal(full(free)(*heads()), want)
    q, k, v = heads()
    step = {"mask": np.ones((B, 1, 1, T), bool)}
    said = r"depends on the length of the whole sequence.*encoding.at_length\(total_length\)"
    refused(said, full(free), q[:, -1:], k, v, **step)
    refused(said, full(free, positions=np.arange(T)), *heads())
    last = full(free.at_length(T))(q[:, -1:], k, v, **step)
    assert_close(last, want[:, -1:])
