"""JAX's own settings: 64-bit numbers, promotion of dtypes and of ranks, change nothing here.

Under `jax_enable_x64` an array made without a dtype is float64, under strict promotion an int32 and
a float32 do not add, under "raise" a vector and a matrix do not. All three at once, for every
scheme: what is traced holds no float64, and gives what it gives without them.
"""

import contextlib

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pe_jax
from pe_jax import graphs, masks, positions
from pe_jax.encodings import gated_delta
from pe_jax.engines.decoding import cache
from pe_jax.models.generate import generate
from pe_jax.training.step import mean_loss
from tests import tiny, util
from tests.util import DIMS, B, E, H, T, assert_close

HALF, FULL = jnp.bfloat16, jnp.float32
# Engines, whether positions are given, and the dtype of q, k and v.
WAYS = [  # each pair of these occurs
    ("dense", False, FULL),
    ("dense", True, HALF),
    ("tiled", False, HALF),
    ("tiled", True, FULL),
]


@contextlib.contextmanager
def settings():
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        yield


def wide(jaxpr) -> set[str]:
    """The operations that give an array of float64; a Python number, until it is used, may."""
    found = set()
    for equation in jaxpr.eqns:
        for x in (v.aval for v in equation.outvars):
            if getattr(x, "dtype", None) == np.float64 and not (x.weak_type and not x.ndim):
                found.add(f"{equation.primitive} {x.str_short()}")
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found |= wide(inner)
    return found


def narrow(f, *args) -> None:
    """Fails if f(*args) makes a float64 under the settings, or raises."""
    with settings():
        traced = jax.jit(f).trace(*args)
    found = wide(traced.jaxpr.jaxpr)
    assert not found
    found = {x.dtype for x in jax.tree.leaves(traced.out_info)}
    assert found <= {jnp.dtype(dtype) for dtype in (FULL, HALF, jnp.int32)}


def places(case):
    """Positions of the tokens; contiguous ones must be given where there are several axes."""
    return util.spread(case, util.contiguous(B, T))


def forward_and_back(case, engine: str, explicit: bool = False, dtype=FULL):
    at = places(case) if explicit or case.encoding.claims.axes > 1 else None

    def run(params, qkv, cotangent):
        def f(params, q, k, v):
            ids = np.zeros((B, T), np.int32)
            return util.layer(case, params, q, k, v, at, ids, implementation=engine)

        out, pull = jax.vjp(f, params, *qkv)
        return out, pull(cotangent)

    arrays = jax.tree.map(lambda x: jnp.asarray(x, dtype), (util.inputs(), util.noise(B, T, H, E)))
    return run, (util.random_params(case.encoding), *arrays)


@util.of_each_kind(util.CASES)
def test_no_engine_makes_a_float64_or_leaves_a_promotion_to_jax(case):
    for engine, *how in WAYS:
        run, args = forward_and_back(case, engine, *how)
        narrow(run, *args)


@util.of_each_kind([c for c in util.CASES if c.causal])
def test_nor_does_decoding(case):
    def run(params, qkv):
        held = cache.empty(case.encoding, B, T, DIMS, HALF, params)
        for part in (slice(0, 4), slice(4, 5)):
            q, k, v = (x[:, part].astype(HALF) for x in qkv)
            at = places(case)[:, part] if case.encoding.claims.axes > 1 else None
            how = {"encoding": case.encoding, "params": params, "dims": DIMS, "x": util.flat(q)}
            out, held = cache.extend(held, q, k, v, at, embedded=True, **how)
        return out

    narrow(run, util.random_params(case.encoding), util.inputs())


@pytest.mark.parametrize("scheme", ["wall", "path", "cope"])
@pytest.mark.parametrize("engine", ["dense", "tiled"])
def test_nor_do_rows_of_more_tokens_than_one_block(scheme, engine):
    encoding = pe_jax.make(scheme)

    def run(params, q):
        how = {"encoding": encoding, "params": params, "x": util.flat(q)}
        return pe_jax.attention(q, q, q, implementation=engine, **how)

    q = jnp.asarray(util.noise(1, 65, H, E), HALF)
    narrow(run, util.random_params(encoding, pe_jax.Dims(H * E, H, H, E)), q)


@pytest.mark.parametrize("case", util.SINGLE, ids=str)
def test_nor_do_terms_at_the_positions_of_one_row(case):
    """Positions [T], without the batch of the tokens [B, T, …]."""
    at = places(case)[0]

    def run(params, q):
        x = case.encoding.embed(params, util.flat(q), at)
        return (
            x,
            util.rotate(case.encoding, "q", params, q, at),
            util.rotate(case.encoding, "k", params, q, at),
        )

    for dtype in (FULL, HALF):
        narrow(run, util.random_params(case.encoding), jnp.asarray(util.noise(B, T, H, E), dtype))


def drawn(key):
    """What `positions` draws and counts."""
    ids, tokens = jnp.asarray([[0, 0, 1, 1, 1]]), jnp.asarray([[3, 9, 3, 4, 9]])
    return (
        positions.randomized(key, 5, 40, ids[0]),
        positions.random_floats(key, 5, 40.0, ids[0]),
        positions.evenly_spaced(ids, 4, 40.0),
        positions.evenly_spaced(ids, np.int8(4), np.float64(40.0)),
        positions.shifted(key, positions.per_segment(ids), 500),
        positions.cape(key, positions.contiguous(5, 3)),
        positions.bilevel(tokens, (9,), ids, 3),
        positions.grid(2, 3, prefix=1),
        positions.grid(2, 3, normalized=True),
        positions.resized(4, 6, (2, 3)),
        positions.multimodal([5, (1, 2, 2), 3]),
        positions.cameras(np.eye(4)[None], 2, 3, np.eye(3)[None], (48, 80)),
    )


def of_graphs(key):
    """What `graphs` computes."""
    weights = jax.random.uniform(key, (2, 5, 5), jnp.float32)
    weights = jnp.triu(weights, 1) + jnp.triu(weights, 1).swapaxes(-1, -2)
    hops = graphs.hops(weights > 0.7, 2)
    nodes = jnp.arange(10).reshape(2, 5) != 4
    bias = graphs.hop_bias(jnp.ones((3, 4), jnp.float32), hops)
    return hops, bias, *graphs.spectrum(weights, 2), *graphs.spectrum(weights, 2, nodes)


@pytest.mark.parametrize("run", [drawn, of_graphs])
def test_positions_are_the_same(run):
    want = run(jax.random.key(0))
    with settings():
        found = run(jax.random.key(0))
    assert [x.dtype for x in found] == [x.dtype for x in want]
    jax.tree.map(np.testing.assert_array_equal, found, want)


def test_parameters_are_float32_and_the_same():
    def parameters(key):
        dims = pe_jax.Dims(96, 4, 4, 24)
        return {name: pe_jax.make(name).init(key, dims) for name in pe_jax.ENCODINGS}

    want = util.jit(parameters)(jax.random.key(3))
    with settings():
        found = util.jit(parameters)(jax.random.key(3))
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype(jnp.float32)}
    util.assert_close(found, want, 0)


def test_each_parameter_is_an_array_of_its_own():
    """A step may donate them, and no buffer twice."""
    dims = pe_jax.Dims(96, 4, 4, 24)
    for name in pe_jax.ENCODINGS:
        arrays = jax.tree.leaves(pe_jax.make(name).init(jax.random.key(0), dims))
        assert len({id(x) for x in arrays}) == len(arrays), name


@pytest.mark.parametrize(
    "spec",
    [*tiny.SPECS.values(), "gated_delta,rope+key_offset", "gated_delta(decay=channel),nope"],
)
def test_a_model_trains_and_generates(spec):
    config = tiny.config(spec, dropout=0.1)
    graph, shapes = tiny.abstract_terms(config)

    def loss(params, batch, key):
        return jax.value_and_grad(lambda p: mean_loss(nnx.merge(graph, p), batch, key))(params)

    narrow(loss, shapes, tiny.batch(), jax.eval_shape(lambda: jax.random.key(0)))
    for ids in (None, np.int32([[-1, 0, 0, 0], [0, 0, 0, 0]])):
        how = {"segments": ids, "key": jax.random.key(0)}
        narrow(
            lambda params, prompt, how=how: generate(nnx.merge(graph, params), prompt, 3, **how),
            shapes,
            tiny.tokens(2, 4),
        )


@pytest.mark.parametrize("name", "qkv")
def test_float64_is_refused_and_says_what_to_pass(name):
    arrays = dict(zip("qkv", util.inputs(), strict=True))
    with settings():
        arrays[name] = jnp.asarray(arrays[name], jnp.float64)
        with pytest.raises(TypeError) as error:
            pe_jax.attention(**arrays)
    text = f"{name} has dtype float64; pass float32, bfloat16 or float16"
    assert str(error.value).startswith(text)


def test_what_numpy_has_in_float64_is_float32_to_jax():
    q, k, v = util.inputs()
    want = pe_jax.attention(q, k, v)
    np.testing.assert_array_equal(pe_jax.attention(q.astype(np.float64), k, v), want)


@pytest.mark.parametrize("name, engine", [("rope", "dense"), ("t5", "tiled")])
def test_numbers_are_the_same(name, engine):
    case = next(c for c in util.SINGLE if c.name.partition("(")[0] == name)
    run, args = forward_and_back(case, engine)
    want = util.jit(run)(*args)
    with settings():
        found = util.jit(run)(*args)
    assert_close(found, want, 1e-6)


@pytest.mark.parametrize("engine", ["dense", "tiled"])
@pytest.mark.parametrize("scheme", ["nope", pytest.param("shaw+fox", marks=pytest.mark.slow)])
def test_checks_for_infinite_numbers_find_none(scheme, engine):
    """Op by op, forward and backward, whatever is hidden, and a row that sees nothing."""
    (encoding,) = pe_jax.parse(scheme)
    (q, k, v), params = map(jnp.asarray, util.inputs()), util.random_params(encoding)
    x, ids = util.noise(B, T, DIMS.width), np.array([[0] * 5 + [1] * 5 + [-1] * 3, [-1] * T])
    own = {"encoding": encoding, "params": params}
    array = {"mask": np.tri(T, dtype=bool), "bias": util.noise(T, T)} if engine == "dense" else {}

    def total(q, scale, options):
        out = pe_jax.attention(q, k, v, x=x, scale=scale, implementation=engine, **own, **options)
        return out.sum()

    with jax.debug_infs(True), jax.debug_nans(True):
        for options in ({}, {"q_segments": ids, "window": 3, "logit_cap": 2.0, **array}):
            jax.grad(total, (0, 1))(q, 0.3, options)
        masks.best_keys(q, k[:, :, 0], q[..., 0], 3, segments=ids)
        gated_delta.delta_rule(q, q, q, -jnp.abs(q[..., 0]), q[..., 0], np.maximum(ids, 0))
        past = cache.empty(encoding, B, T, DIMS, params=params)
        for begin, end in ((0, 5), (5, 6)):
            new = (a[:, begin:end] for a in (q, k, v))
            _, past = cache.extend(past, *new, x=x[:, begin:end], dims=DIMS, **own)
