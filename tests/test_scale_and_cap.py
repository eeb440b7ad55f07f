"""The scale and the cap of scores: numbers and arrays, traced, with gradients; biases of -inf."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.engines.kernels.gpu import engine as gpu
from pe_jax.engines.kernels.tpu import engine as tpu
from tests.test_attention_options import DIMS, QKV, SLOW, TILED, B, E, H, T
from tests.util import assert_close, jit, noise, random_params


def test_a_cap_bounds_scores_before_the_mask():
    q, k, v = QKV
    s = jnp.einsum("bthe,bshe->bhts", q, jnp.repeat(k, 2, axis=2)) / E**0.5
    s = 0.7 * jnp.tanh(s / 0.7)
    s = jnp.where(np.tri(T, dtype=bool), s, -jnp.inf)
    theirs = jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(s), jnp.repeat(v, 2, axis=2))
    np.testing.assert_allclose(pe_jax.attention(*QKV, logit_cap=0.7), theirs, atol=1e-6)


@pytest.mark.parametrize("kind", [np.array, np.float32, jnp.float32, jnp.bfloat16, jnp.array])
def test_scalars_of_arrays_are_numbers(kind):
    got = pe_jax.attention(*QKV, scale=kind(0.5), logit_cap=kind(2.0))
    np.testing.assert_array_equal(got, pe_jax.attention(*QKV, scale=0.5, logit_cap=2.0))


SCALED = [(scheme, TILED) for scheme in ("shaw(clip=4)+alibi", "cope+fox", "wall")]
SCALED += [pytest.param("shaw(clip=4)", "dense", marks=SLOW)]


@pytest.mark.parametrize("scheme, engine", SCALED)
def test_a_traced_scale_and_cap_are_as_known_ones_and_have_gradients(scheme, engine):
    (encoding,) = pe_jax.parse(scheme)
    params, x = random_params(encoding, DIMS), noise(B, T, DIMS.width, seed=4)

    def total(scale, cap):
        options = {"scale": scale, "logit_cap": cap, "x": x, "implementation": engine}
        out, lse = pe_jax.attention(
            *QKV, encoding=encoding, params=params, return_lse=True, **options
        )
        return (out * noise(*out.shape)).sum() + (lse * noise(*lse.shape)).sum()

    traced = jit(jax.value_and_grad(total, (0, 1)))
    value, slopes = traced(0.4, 1.5)
    known = jit(lambda: total(0.4, 1.5))()
    np.testing.assert_allclose(value, known, rtol=1e-5, atol=1e-4)
    step = 3e-3
    by_scale = (traced(0.4 + step, 1.5)[0] - traced(0.4 - step, 1.5)[0]) / (2 * step)
    by_cap = (traced(0.4, 1.5 + step)[0] - traced(0.4, 1.5 - step)[0]) / (2 * step)
    np.testing.assert_allclose(slopes, (by_scale, by_cap), rtol=0.02, atol=0.02)


def test_slopes_through_the_kinks_of_a_network_are_those_of_its_formula():
    """DAPE's by central differences in float64, too near for a kink to lie between."""
    (encoding,) = pe_jax.parse("dape(hidden=6)")
    params = random_params(encoding, DIMS)
    q, k, v = (np.repeat(a, H // a.shape[2], 2).astype(np.float64) for a in QKV)
    z, cotangent = np.einsum("bthe,bshe->bhts", q, k), noise(B, T, H, E, seed=9)
    w1, b1, w2, b2 = (np.asarray(params.layer[n], np.float64) for n in ("w1", "b1", "w2", "b2"))

    def formula(scale, cap):
        hidden = np.einsum("bhts,hm->btsm", scale * z, w1[:H]) + b1
        f = np.where(hidden > 0, hidden, 0.01 * hidden) @ w2 + b2
        s = cap * np.tanh((scale * z + np.moveaxis(f, -1, 1)) / cap)
        p = np.where(np.tri(T, dtype=bool), np.exp(s), 0)
        return (np.einsum("bhts,bshe->bthe", p / p.sum(-1, keepdims=True), v) * cotangent).sum()

    def total(scale, cap, engine):
        options = {"scale": scale, "logit_cap": cap, "implementation": engine}
        return (
            pe_jax.attention(*QKV, encoding=encoding, params=params, **options) * cotangent
        ).sum()

    step, at = 1e-6, np.array([0.4, 1.5])
    sides = np.array([[formula(*(at + sign * e)) for sign in (1, -1)] for e in step * np.eye(2)])
    want = (sides[:, 0] - sides[:, 1]) / (2 * step)
    for engine in ("dense", TILED):
        got = jit(jax.grad(functools.partial(total, engine=engine), (0, 1)))(0.4, 1.5)
        np.testing.assert_allclose(got, want, rtol=2e-4)


def test_the_gradient_of_a_learned_temperature_is_that_of_its_formula():
    """d/ds Σ softmax(s·z)·v = Σ p·(z - Σ p·z)·v, in float64."""
    q, k, v = (np.repeat(a, H // a.shape[2], 2).astype(np.float64) for a in QKV)
    z, cotangent = np.einsum("bthe,bshe->bhts", q, k), noise(B, T, H, E, seed=9)
    s = np.where(np.tri(T, dtype=bool), 0.3 * z, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    p *= z - (p * z).sum(-1, keepdims=True)
    want = (np.einsum("bhts,bshe->bthe", p, v) * cotangent).sum()
    for engine in ("dense", TILED):

        def total(scale, engine=engine):
            return (pe_jax.attention(*QKV, scale=scale, implementation=engine) * cotangent).sum()

        np.testing.assert_allclose(jit(jax.grad(total))(0.3), want, rtol=1e-4)


def test_traced_scalars_that_cannot_be_are_nan_or_refused():
    run = jit(lambda s: pe_jax.attention(*QKV, scale=s))
    assert np.isnan(run(-0.5)).all() and np.isfinite(run(0.5)).all()
    for wrong in (np.full(H, 0.5), np.array(True)):
        for call in (jit(run), lambda s: pe_jax.attention(*QKV, scale=s)):
            with pytest.raises(ValueError, match="scale=.*: pass a positive number"):
                call(wrong)


@pytest.mark.parametrize("cap", [None, 0.7])
def test_a_bias_of_minus_infinity_is_a_mask(cap):
    mask = (noise(B, H, T, T) > 0) & (np.arange(T) != 7)[:, None]  # query 7 sees nothing
    bias, cotangent = noise(B, H, T, T, seed=5), noise(B, T, H, E, seed=6)

    def run(bias, mask, q, k, v):
        out = pe_jax.attention(q, k, v, encoding="rope", bias=bias, mask=mask, logit_cap=cap)
        return (out * cotangent).sum(), out

    @jit
    def both(bias, mask):
        (_, out), grads = jax.value_and_grad(run, (0, 2, 3, 4), has_aux=True)(bias, mask, *QKV)
        return out, grads

    out, grads = both(jnp.where(mask, bias, -jnp.inf), None)
    want, (of_bias, *others) = both(jnp.asarray(bias), mask)
    assert not out[:, 7].any()
    assert_close((out, grads), (want, (of_bias * mask, *others)))


def beyond_four(_, distance):
    return jnp.where(distance > 4, -jnp.inf, 0.1 * distance)[None]


def beyond_four_too(numbers, distance):
    return numbers[0] + beyond_four(None, distance)[0]


FUSED = functools.partial(gpu.attend, interpret=True, sizes=(16, 16))
NEAR = {
    "table": pe_jax.DistanceBias(beyond_four, jnp.zeros(1)),
    "formula": pe_jax.DistanceFormula(beyond_four_too, jnp.ones((H, 1))),
}

TPU = functools.partial(tpu.attend, interpret=True, block=16)
PAIRS = [
    ("dense", "table"),
    (TILED, "table"),
    (TILED, "formula"),
    (FUSED, "formula"),
    (TPU, "table"),
]


@pytest.mark.parametrize("engine, near", PAIRS)
def test_a_term_of_minus_infinity_hides_whatever_the_cap(engine, near):
    def run(scale, cap, window=None):
        def total(q):
            own = {"terms": (NEAR[near],), "implementation": engine, "window": window}
            out = pe_jax.attention(q, *QKV[1:], scale=scale, logit_cap=cap, **own)
            return (out * noise(*out.shape)).sum(), out

        return jax.jit(jax.value_and_grad(total, has_aux=True))(QKV[0])

    want = run(0.4, 0.7, window=5)
    assert_close(run(0.4, 0.7), want)
    if engine not in ("dense", TILED):
        return
    assert_close(jit(run)(0.4, 0.7), want)  # traced
    slopes = 0.0
    if engine == "dense":
        slopes = jax.jit(jax.grad(lambda *s: run(*s)[0][0], (0, 1)))(0.4, 0.7)
    assert np.isfinite(slopes).all()
