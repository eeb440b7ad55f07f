"""Every encoding under Explicit axes, where JAX asks each operation how its result is divided."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import pe_jax
from pe_jax import cache
from pe_jax.encodings.terms import (
    DistanceFormula,
    DistanceTerm,
    PairBias,
    Rotation,
)
from tests import util
from tests.contract.laws import FIRST
from tests.util import CASES, SINGLE, SUMS, T

SPLIT = P("data", None, "model", None)  # q, k and v: batch and heads


@pytest.fixture(scope="module", autouse=True)
def mesh():
    made = jax.make_mesh(
        (2, 2), ("data", "model"), (AxisType.Explicit,) * 2, devices=jax.devices()[:4]
    )
    with jax.set_mesh(made):
        yield made


def given(case, place):
    """Parameters, q, k, v, positions and segments, each through place(array, spec)."""
    params = jax.tree.map(lambda x: place(x, P()), util.random_params(case.encoding))
    qkv = [place(x, SPLIT) for x in util.inputs()]
    shape = util.B, T
    positions = util.spread(case, util.contiguous(*shape)[::-1])
    segments = np.repeat(np.asarray([[0, 1, -1], [1, 1, 2]], np.int32), [6, 5, 2], axis=1)
    return params, qkv, place(positions, P("data")), place(segments, P("data"))


def outcome(case, engine, explicit, params, qkv, positions, segments):
    """Output and every gradient."""

    def f(params, qkv):
        places = positions if explicit or case.encoding.claims.axes > 1 else None
        return util.layer(case, params, *qkv, places, segments, implementation=engine)

    out, pull = jax.vjp(f, params, qkv)
    return out, pull(out)


OF_KINDS = util.first_of_kinds(CASES) | {*SUMS}
TRACED = [
    ("dense", case) for case in (*FIRST, *SUMS)
] + [  # what tiles do follows from the kinds of terms
    pytest.param("tiled", case, marks=() if case in OF_KINDS else pytest.mark.slow)
    for case in CASES
]


@pytest.mark.parametrize("engine, case", TRACED, ids=repr)
def test_attention_and_its_gradients_trace_under_explicit_axes(engine, case, mesh):
    def abstract(x, spec):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    run = functools.partial(outcome, case, engine, engine == "dense")
    out, (_, grads) = jax.eval_shape(run, *given(case, abstract))
    assert out.sharding.spec == SPLIT
    assert {x.sharding.spec for x in grads} == {SPLIT}


@pytest.mark.parametrize("case", SINGLE, ids=repr)
def test_terms_trace_under_explicit_axes(case, mesh):
    """Called by themselves, on positions divided over the batch."""
    enc, axes = case.encoding, (case.encoding.claims.axes,) * (case.encoding.claims.axes > 1)

    def place(shape, spec, dtype="int32"):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    at = place((util.B, T, *axes), P("data"))
    away = place((util.B, T, T, *axes), P("data"))
    x = place((util.B, T, util.DIMS.width), P("data"), "float32")
    q = place((util.B, T, util.H, util.E), SPLIT, "float32")
    params = jax.eval_shape(lambda: util.random_params(enc))
    params = jax.tree.map(lambda x: place(x.shape, P(), x.dtype), params)

    def data(f, *args, axis=0):
        for found in jax.tree.leaves(jax.eval_shape(f, params, *args)):
            assert found.sharding.spec[axis] == "data"

    data(enc.embed, x, at)
    for i, term in enumerate(util.terms(enc)):

        def own(params, i=i):
            return enc.terms(params, util.DIMS)[i]

        if isinstance(term, Rotation):
            for side in "qk":

                def rotated(params, x, q, at, own=own, side=side):
                    state = own(params).state
                    return own(params).rotate(side, q, at, state and state(x, at))

                data(rotated, x, q, at)
        elif isinstance(term, DistanceTerm | DistanceFormula):
            data(lambda p, away, own=own: own(p).at(away), away, axis=1)
        elif isinstance(term, PairBias):
            data(lambda p, *at, own=own: own(p).fn(own(p).arrays, *at), at, at)
        if term.state is not None:
            data(lambda p, x, at, own=own: own(p).state(x, at), x, at)


KINDS = {
    "dense": "learned(length=40) t5+rope",
    "tiled": "shaw+rope deberta(buckets=4,max_distance=7,causal=False) fox",
}


@pytest.mark.parametrize(
    "engine, case",
    [(e, case) for e, names in KINDS.items() for case in CASES if case.name in names.split()],
    ids=repr,
)
def test_explicit_axes_give_what_no_mesh_gives(engine, case, mesh):
    def put(x, spec):
        return jax.device_put(x, NamedSharding(mesh, spec))

    run = util.jit(functools.partial(outcome, case, engine, False))
    got = run(*given(case, put))
    assert got[0].sharding.spec == SPLIT
    with jax.set_mesh(jax.sharding.Mesh(jax.devices()[:1], ("x",))):
        want = util.jit(functools.partial(outcome, case, engine, False))(
            *given(case, lambda x, _: x)
        )
    util.assert_close(got, want, 1e-5)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", ["shaw+rope", "fox", "rope_2d"])
def test_a_cache_decodes_under_explicit_axes(name, window, mesh):
    """On the mesh that `jax.make_mesh` makes; the cache stays as it was laid out."""
    case = next(case for case in CASES if case.name.startswith(name))
    params, (q, k, v), positions, _ = given(
        case, lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    )
    x = jax.device_put(util.noise(util.B, T, util.DIMS.width), NamedSharding(mesh, P("data")))
    several = case.encoding.claims.axes > 1
    own = {"encoding": case.encoding, "params": params, "dims": util.DIMS, "window": window}

    @util.jit
    def step(past, *new):
        *qkv, x, at = new
        return cache.extend(past, *qkv, at if several else None, x=x, **own)

    past = cache.empty(case.encoding, util.B, T, util.DIMS, params=params, window=window)
    by_head = lambda x: x.ndim == 4 and x.shape[1] > 1  # noqa: E731
    split = jax.tree.map(
        lambda x: NamedSharding(mesh, P("data", "model") if by_head(x) else P("data")), past
    )
    outs = {}
    for how, given_past in (("whole", past), ("divided", jax.device_put(past, split))):
        parts, past = [], given_past
        for begin, end in ((0, 6), (6, 12), (12, T)):
            out, after = step(past, *(a[:, begin:end] for a in (q, k, v, x, positions)))
            assert out.sharding.spec == SPLIT
            assert jax.tree.map(jax.typeof, past) == jax.tree.map(jax.typeof, after)
            parts.append(np.asarray(out))
            past = after
        outs[how] = np.concatenate(parts, 1)
    plain = {"encoding": case.encoding, "window": window, "causal": True, "implementation": "dense"}
    plain |= {"q_positions": np.asarray(positions)} if several else {}
    with jax.set_mesh(jax.sharding.Mesh(jax.devices()[:1], ("x",))):
        arrays = jax.tree.map(np.asarray, (q, k, v))
        params, x = jax.tree.map(np.asarray, (params, x))
        dense = util.jit(functools.partial(pe_jax.attention, **plain))
        want = dense(*arrays, params=params, x=x)
    util.assert_close(outs, dict.fromkeys(outs, want), 1e-5)
