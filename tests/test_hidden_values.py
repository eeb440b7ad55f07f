"""What nobody may see reaches nothing, NaN and infinity neither; what is seen is never lost."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pe_jax
from pe_jax import masks
from pe_jax.engines import outside
from pe_jax.engines.tiled import Tiled
from pe_jax.engines.tiled.sizes import TileSizes
from pe_jax.models.transformer import Transformer
from tests import tiny, util
from tests.util import DIMS, B, H, assert_close

T, REAL = 20, 13
ENGINES = {"dense": "dense", "tiles": Tiled(TileSizes(8, 8))}
IDS = np.tile(np.where(np.arange(T) < REAL, 0, -1), (B, 1))
SEEN = (np.arange(T) < REAL)[None, :] & (np.arange(T)[:, None] >= np.arange(T))
HIDE = {
    "padding": {"q_segments": IDS},
    "later": {},
    "mask": {"mask": masks.tree(np.r_[np.arange(REAL) - 1, [-1] * (T - REAL)]), "causal": False},
    "booleans": {"mask": SEEN, "causal": False},
    "window": {"window": 3, "causal": False, "q_segments": np.where(IDS < 0, 1, 0)},
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
    """Each way to hide for one scheme; for the others padding, and what is later in tiles."""
    specs = "shaw(clip=3)+rope", "tupe(length=40)", "fox+sink", "rerope(window=3)"
    for spec, engine, how in itertools.product(specs, ENGINES, HIDE):
        if engine == "tiles" and how == "booleans":
            continue  # an array is for the dense engine
        if not HIDE[how].get("causal", True) and pe_jax.parse(spec)[0].claims.causal_only:
            continue
        quick = spec == specs[0] or how == "padding" or (engine, how) == ("tiles", "later")
        yield pytest.param(spec, engine, how, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("spec, engine, how", list(cases()))
def test_hidden_tokens_may_hold_anything(spec, engine, how):
    *qkv, x = (np.array(x) for x in (*util.inputs(T), util.noise(B, T, DIMS.width)))
    run = compiled(spec, engine, how)
    want = run([*qkv, x])
    for value in (np.nan, np.inf):
        for array in (*qkv, x[:, :, None]):  # each in other channels of some hidden tokens
            array[:, REAL + 1 :: 2, 0, 1] = value
        jax.tree.map(functools.partial(assert_close, tol=1e-5), run([*qkv, x]), want)


@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_token_that_is_seen_is_not_lost(engine, which):
    """Those that see it, and no others, have no number: output and log-sum-exp."""
    q, k, v = (np.array(x) for x in util.inputs(T))
    {"q": q, "k": k, "v": v}[which][0, 5, 0, 2] = np.nan
    options = {"window": 4, "return_lse": True, "implementation": ENGINES[engine]}
    out, lse = jax.jit(lambda *x: pe_jax.attention(*x, **options))(q, k, v)
    broken = np.zeros((B, T), bool)
    broken[0, 5 : (6 if which == "q" else 9)] = True
    np.testing.assert_array_equal(
        np.isnan(out), np.broadcast_to(broken[..., None, None], out.shape)
    )
    np.testing.assert_array_equal(np.isnan(lse), np.broadcast_to(broken[..., None], lse.shape))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_input_that_is_seen_is_not_lost(engine):
    """That of a layer whose scheme reads it, though q, k and v are finite."""
    encoding, x = pe_jax.make("fox"), np.array(util.noise(B, T, DIMS.width))
    x[0, 5, 2] = np.nan
    given = {"encoding": encoding, "params": util.random_params(encoding), "dims": DIMS}
    out = pe_jax.attention(*util.inputs(T), x=x, window=4, implementation=ENGINES[engine], **given)
    broken = np.isnan(out).all((2, 3))
    assert broken[0, 5:9].all() and broken.sum() == 4 and np.isfinite(out[0, 9:]).all()
    plain = given | {"encoding": "nope", "params": None}
    assert np.isfinite(pe_jax.attention(*util.inputs(T), x=x, **plain)).all()  # it is not read


@pytest.mark.parametrize("mask", [None, np.random.default_rng(0).random((B, 1, T, T)) < 0.3])
def test_queries_are_looked_at_in_parts(mask, monkeypatch):
    q, k, v = (np.array(x) for x in util.inputs(T))
    k[:, [2, 11]] = np.nan
    how = {"implementation": "dense", "mask": mask, "window": 5}
    want = np.isnan(pe_jax.attention(q, k, v, **how)).any((2, 3))
    near = np.arange(T)[:, None] - np.arange(T)
    sees = (near >= 0) & (near < 5) & (True if mask is None else mask[:, 0])
    np.testing.assert_array_equal(want, np.broadcast_to(sees[..., [2, 11]].any(-1), want.shape))
    monkeypatch.setattr(outside, "CHUNK", 8)
    np.testing.assert_array_equal(np.isnan(pe_jax.attention(q, k, v, **how)).any((2, 3)), want)


def test_a_prompt_with_broken_tokens_in_a_cache():
    params, (q, k, v) = pe_jax.Params((), ()), (np.array(x) for x in util.inputs(T))
    k[:, 7] = np.nan
    encoding = pe_jax.make("nope")
    own = {"encoding": encoding, "params": params, "dims": DIMS}
    out, held = pe_jax.cache.extend(
        pe_jax.cache.empty(encoding, B, 32, DIMS),
        *(jnp.asarray(x[:, :10]) for x in (q, k, v)),
        **own,
    )
    assert np.isfinite(out[:, :7]).all() and np.isnan(out[:, 7:]).all()
    step, _ = pe_jax.cache.extend(held, *(jnp.asarray(x[:, 10:11]) for x in (q, k, v)), **own)
    assert np.isnan(step).all() and step.shape[2] == H


def test_recomputed_blocks_check_tokens_once(monkeypatch):
    config = tiny.config("alibi", remat=True)
    graph, state = nnx.split(Transformer(config, rngs=nnx.Rngs(0)))

    def checks() -> int:
        def loss(state):
            return nnx.merge(graph, state)(np.zeros((1, 8), np.int32)).sum()

        return str(jax.make_jaxpr(jax.grad(loss))(state)).count("reduce_and")

    kept, policies = checks(), jax.checkpoint_policies
    monkeypatch.setattr(policies, "save_only_these_names", lambda *_: policies.nothing_saveable)
    assert 0 < kept < checks()
