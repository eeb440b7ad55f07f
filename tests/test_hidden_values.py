"""Padding reaches nothing, NaN and infinity neither, and no gradient."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.engines.tiled import Tiled
from pe_jax.engines.tiled.sizes import TileSizes
from pe_jax.models import adapters
from tests import util
from tests.util import DIMS, B, assert_close

T, REAL = 20, 13
ENGINES = {"dense": "dense", "tiles": Tiled(TileSizes(8, 8))}
IDS = np.tile(np.where(np.arange(T) < REAL, 0, -1), (B, 1))
SEEN = (np.arange(T) < REAL) & (np.arange(T)[:, None] >= np.arange(T)) & (IDS[0] >= 0)[:, None]
HIDE = {
    "padding": {"q_segments": IDS},
    "lengths": {"q_lengths": np.full(B, REAL), "k_lengths": np.full(B, REAL)},
    "mask": {"mask": SEEN, "causal": False},
}


def compiled(spec, engine, how):
    """arrays → outputs of the real tokens, and gradients of theirs, of the parameters and of x."""
    encoding = pe_jax.parse(spec)[0]
    params = util.random_params(encoding)
    options = {**HIDE[how], "implementation": ENGINES[engine]}

    def f(params, q, k, v, x):
        own = {"encoding": encoding, "params": params, "dims": DIMS}
        out = pe_jax.attention(q, k, v, x=x, **own, **options)[:, :REAL]
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum(), out

    gradients = util.jit(jax.grad(f, (0, 1, 2, 3, 4), has_aux=True))

    def run(arrays):
        grads, out = gradients(params, *arrays)
        return out, grads[0], [x[:, :REAL] for x in grads[1:]]

    return run


def cases():
    """Each way to say what is padding for one scheme; for the others segments."""
    specs = (
        "shaw(clip=3)+rope",
        "key_offset(halves=True)+rope",
        "tupe(length=40)",
        "fox+sink",
        "rerope(window=3)",
    )
    for spec, engine, how in itertools.product(specs, ENGINES, HIDE):
        if engine == "tiles" and how == "mask":
            continue  # an array is for the dense engine
        if not HIDE[how].get("causal", True) and pe_jax.parse(spec)[0].claims.causal_only:
            continue
        quick = spec == specs[0] or how == "padding"
        yield pytest.param(spec, engine, how, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("spec, engine, how", list(cases()))
def test_padding_may_hold_anything(spec, engine, how):
    *qkv, x = (np.array(x) for x in (*util.inputs(T), util.noise(B, T, DIMS.width)))
    run = compiled(spec, engine, how)
    want = run([*qkv, x])
    for value in (np.nan, np.inf):
        for array in (*qkv, x[:, :, None]):  # each in other channels of some hidden tokens
            array[:, REAL + 1 :: 2, 0, 1] = value
        jax.tree.map(functools.partial(assert_close, tol=1e-5), run([*qkv, x]), want)


def test_a_prompt_with_padding_in_a_cache():
    """Padding before, between and after the tokens of a row; then a mask that hides a row."""
    q, k, v = (np.array(x) for x in util.inputs(T))
    encoding = pe_jax.make("nope")
    own = {"encoding": encoding, "params": pe_jax.Params((), ()), "dims": DIMS}
    padded = np.isin(np.arange(T), [0, 7, 8, T - 1])
    ids, real = np.tile(np.where(padded, -1, 0), (B, 1)), np.flatnonzero(~padded)

    def run(*qkv):
        held = pe_jax.cache.empty(encoding, B, T + 1, DIMS)
        out, held = pe_jax.cache.extend(held, *qkv, segments=ids, **own)
        step, _ = pe_jax.cache.extend(held, *(x[:, 1:2] for x in qkv), **own)
        return out[:, real], step

    want = run(q, k, v)
    for x in (q, k, v):
        x[:, padded, 0, 1] = np.nan
    jax.tree.map(assert_close, run(*map(jnp.asarray, (q, k, v))), want)

    held = pe_jax.cache.empty(encoding, B, T, DIMS)
    _, held = pe_jax.cache.extend(held, q[:, :9], k[:, :9], v[:, :9], **own)
    mask = np.arange(T)[None, None, None] > 8
    rest = (x[:, 9 : T - 1] for x in (q, k, v))
    assert np.isfinite(pe_jax.cache.extend(held, *rest, mask=mask, **own)[0]).all()


def test_keys_that_a_mask_of_flax_hides():
    mask = np.broadcast_to(np.arange(T) < REAL, (B, 1, 1, T))
    attend = adapters.attention_fn("rope", causal=False)
    q, k, v = (np.array(x) for x in util.inputs(T))

    def f(q, k, v):
        out = attend(q, k, v, mask=mask)
        return (out * jnp.cos(out)).sum(), out

    grad = jax.jit(jax.grad(f, (0, 1, 2), has_aux=True))
    want, out = grad(q, k, v)
    for y in (k, v):
        y[:, REAL:, 0, 1] = np.nan
    jax.tree.map(assert_close, grad(q, k, v), (want, out))
