"""Laws of attention: one engine is as good as another, and what is kept apart stays apart."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from pe_jax.encodings.base import Dims
from pe_jax.encodings.terms import AroundEngine, RelativeValues, select
from pe_jax.positions import per_segment
from tests import util
from tests.contract.laws import ENGINES, EXEMPT, FIRST, OF_KINDS, ONE_AXIS, each
from tests.util import DIMS, B, E, H, K, T, assert_close, contiguous


def inside(term) -> bool:
    """Whether tiles read it: most rotations are outside of the engine."""
    return not isinstance(term, AroundEngine) or getattr(term, "views", None) is not None


INSIDE = {c for c in OF_KINDS if any(map(inside, util.terms(c.encoding)))}
INSIDE -= {c for c in util.SUMS if c.name.endswith("+rope")}  # the same again


@each(util.CASES)
@given(st.data())
def test_dense_equals_tiled_at_any_positions_and_segments(case, data):
    given = {"positions": data.draw(util.positions(case)), "segments": data.draw(util.segments())}
    pair = [util.run(case, engine, **given) for engine in ("tiled", "dense")]
    if case.name.partition("(")[0] in EXEMPT["parameters' gradients anywhere"]:
        pair = [(out, rest) for out, (_, *rest) in pair]
    assert_close(*pair, 2e-5)  # of all pairs at one distance, the worst that was found is 1.3e-5


@each(ONE_AXIS, quick=OF_KINDS)
@given(st.lists(st.integers(1, 4), min_size=B * T, max_size=B * T), st.integers(0, 3))
def test_dense_equals_tiled_where_positions_are_contiguous(case, steps, padding):
    ids = np.cumsum(np.asarray(steps).reshape(B, T) == 1, axis=1, dtype=np.int32)
    ids[:, T - padding :] = -1
    places = np.asarray(per_segment(ids))
    got = util.run(case, "tiled", segments=ids, gradients=case in INSIDE)
    want = util.run(case, "dense", positions=places, segments=ids)
    assert_close(got, want[: len(got)], 2e-5)


def repeated(x, like):
    """An array with each key head's entries as often as there are query heads to it."""
    axes = [a for a, n in enumerate(like.shape) if n != x.shape[a]]
    if not axes:
        return x
    (axis,) = axes
    return np.repeat(x, like.shape[axis] // x.shape[axis], axis)


@each(FIRST, "groups")
def test_grouped_heads_equal_repeated_heads(case):
    """Parameters of each key head are repeated as well."""
    q, k, v = util.inputs()
    places, ids = util.spread(case, contiguous(B, T)), np.zeros((B, T), np.int32)
    wide = util.shapes(case.encoding, Dims(H * E, H, H, E))
    params = jax.tree.map(repeated, util.random_params(case.encoding), wide)
    run = util.jit(lambda *a: util.layer(case, *a, implementation="dense"))
    want = run(params, q, *(np.repeat(x, H // K, axis=2) for x in (k, v)), places, ids)
    for engine in ENGINES:
        assert_close(util.run(case, engine, positions=places)[0], want)


@each(FIRST, "alone", quick=OF_KINDS)
def test_one_token_sees_itself_and_none_gives_none(case):
    params, many = util.random_params(case.encoding), case.encoding.claims.axes > 1

    def short(length, engine):
        ids = np.zeros((B, length), np.int32)
        places = util.spread(case, ids) if many else None
        qkv = util.inputs(length)
        return util.layer(case, params, *qkv, places, ids, implementation=engine)

    outs = util.jit(lambda: [[short(n, e) for e in ENGINES] for n in (0, 1)])()
    assert [x.shape for x in outs[0]] == [(B, 0, H, E)] * 2
    want = np.repeat(util.inputs(1)[2], H // K, axis=2)
    for term in select(case.encoding.terms(params, DIMS), RelativeValues):
        want = want + np.asarray(term.at(np.zeros(1, np.int32))).reshape(-1, E)
    for out in outs[1]:
        assert_close(out, want, 1e-6)


@each(FIRST)
def test_angles_and_biases_do_not_follow_bfloat16(case):
    """Far out, where a bfloat16 position would be off by hundreds, bf16 in is bf16 noise out."""
    limit = case.encoding.limit()
    far = np.int32(100_003 if limit is None else limit - T)
    places = util.spread(case, contiguous(B, T) + far)
    half = [jnp.asarray(x, jnp.bfloat16) for x in util.inputs()]
    full = tuple(np.asarray(x, np.float32) for x in half)
    want = util.run(case, "dense", positions=places, qkv=full)[0]
    params, ids = util.random_params(case.encoding), np.zeros((B, T), np.int32)

    engines = ENGINES if case in OF_KINDS else ("dense",)  # tiles read what the dense engine does

    def run(places):
        args = (params, *half, places, ids)
        return [util.layer(case, *args, implementation=engine) for engine in engines]

    for out in util.jit(run)(places):
        assert out.dtype == jnp.bfloat16
        assert_close(out, want, 0.04)


# What is kept apart stays apart.


@each(util.CASES)
@given(st.integers(1, T - 1), st.sampled_from(["dense", "tiled", "tiled, contiguous"]))
def test_packed_equals_separate(case, cut, how):
    engine, explicit = how.split(",")[0], how in ENGINES or case not in INSIDE
    packed = np.where(contiguous(B, T) < cut, 3, 5).astype(np.int32)
    qkv, cotangent = util.inputs(), util.noise(B, T, H, E, seed=9)

    def places(ids):
        return util.spread(case, np.asarray(per_segment(ids))) if explicit else None

    def alone(tokens):
        """One document at the front of the row, the rest padding."""
        front = [np.zeros_like(x) for x in (*qkv, cotangent)]
        length = len(range(T)[tokens])
        for new, x in zip(front, (*qkv, cotangent), strict=True):
            new[:, :length] = x[:, tokens]
        ids = np.where(contiguous(B, T) < length, 0, -1).astype(np.int32)
        given = {"positions": places(ids), "segments": ids}
        out, (d_params, *rest) = util.run(
            case, engine, qkv=tuple(front[:3]), cotangent=front[3], **given
        )
        return d_params, [x[:, :length] for x in (out, *rest)]

    together = {"positions": places(packed), "segments": packed}
    out, (d_params, *rest) = util.run(case, engine, qkv=qkv, cotangent=cotangent, **together)
    one, two = alone(slice(None, cut)), alone(slice(cut, None))
    apart = [np.concatenate(x, axis=1) for x in zip(one[1], two[1], strict=True)]
    assert_close([out, *rest], apart)
    assert_close(d_params, jax.tree.map(np.add, one[0], two[0]), 2e-5)


@each([c for c in util.CASES if c.causal])
@pytest.mark.parametrize("engine", ENGINES)
@given(st.data())
def test_no_future_token_is_seen(case, engine, data):
    now = data.draw(st.integers(0, T - 2))
    places = data.draw(util.positions(case))
    cotangent = util.noise(B, T, H, E) * (np.arange(T) <= now)[:, None, None]
    _, (_, *grads) = util.run(case, engine, positions=places, cotangent=cotangent)
    for name, grad in zip("qkv", grads, strict=True):
        assert not grad[:, now + 1 :].any(), name


@each(util.CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_that_sees_nothing_is_zero_and_gradients_stay_finite(case, engine):
    same = util.spread(case, np.zeros((B, T), np.int32))  # every distance is 0
    ids = np.zeros((B, T), np.int32)
    ids[0], ids[1, 5:] = -1, -1
    out, grads = util.run(case, engine, positions=same, segments=ids)
    assert not out[ids < 0].any() and out[1, :5].any()
    for grad in grads[1:]:
        assert not grad[ids < 0].any()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((out, grads)))


# Citizens of JAX.


@functools.cache
def two_layers(case):
    """Gradients through a scan of remat of vmap of attention: (d_params, d_q)."""

    def loss(params, q, k, v, places, ids, cotangent):
        @jax.checkpoint
        def block(q, _):
            f = functools.partial(util.layer, case, params, implementation=util.UNGROUPED)
            return jax.vmap(f)(q, k, v, places, ids), None

        return (jax.lax.scan(block, q, length=2)[0] * cotangent).sum()

    return util.jit(jax.grad(loss, argnums=(0, 1)))


COMPOSED = "alibi deberta rerope swin rope tupe wavlm".split()  # one of each kind
COMPOSED = [c for name in COMPOSED for c in FIRST if c.name.partition("(")[0] == name]


@each(COMPOSED, quick=COMPOSED[:4])
def test_jit_grad_scan_remat_and_vmap_compose(case):
    q, k, v = util.inputs()
    params, cotangent = util.random_params(case.encoding), util.noise(B, T, H, E, seed=9)
    places = util.spread(case, contiguous(B, T))
    ids = np.where(contiguous(B, T) < [[9], [T]], 0, 1).astype(np.int32)
    given = {"positions": places, "segments": ids}
    middle, _ = util.run(case, "dense", **given)
    _, second = util.run(case, "dense", **given, qkv=(middle, k, v), cotangent=cotangent)
    _, first = util.run(case, "dense", **given, cotangent=second[1])
    want = jax.tree.map(np.add, first[0], second[0]), first[1]
    assert_close(two_layers(case)(params, q, k, v, places, ids, cotangent), want, 3e-5)
