"""What `attention` takes besides an encoding: masks, biases, scale, caps, dropout, row sums."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, PartitionSpec

import pe_jax
from pe_jax import masks
from pe_jax.engines.sharded.layout import BlockPermuted, RowSharded
from pe_jax.engines.tiled import Tiled, TileSizes
from tests.calls import ENGINES
from tests.util import KINDS, assert_close, flat, jit, noise, random_params

B, T, H, K, E = 2, 40, 4, 2, 8
DIMS = pe_jax.Dims(H * E, H, K, E)
TILED = Tiled(TileSizes(16, 8))
QKV = noise(B, T, H, E, seed=1), noise(B, T, K, E, seed=2), noise(B, T, K, E, seed=3)
SLOW = pytest.mark.slow
PARENTS = np.array([-1, 0, 0, 1, 1, 2, *range(5, 39)])


OWN = (
    "pope+log_length",
    "wall+log_length",
    "selective_rope",
    "rope_pp+rope_heads+key_offset",
)  # rotations and states of each head


def test_masks_and_biases_that_are_arrays_are_those_of_jax_nn():
    mask = noise(B, 1, T, T) > -0.5
    mask |= np.eye(T, dtype=bool)
    bias = noise(1, H, T, T)
    theirs, biased = jax.nn.dot_product_attention, {"mask": mask, "bias": bias, "scale": 0.3}
    pairs = jit(
        lambda: [
            (pe_jax.attention(*QKV, causal=False, **biased), theirs(*QKV, **biased)),
            (pe_jax.attention(*QKV, mask=mask), theirs(*QKV, mask=mask, is_causal=True)),
        ]
    )()
    for got, want in pairs:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(B, H, T, T), (1, H, T, T), (B, 1, T, T)])
def test_the_gradient_of_a_bias_that_is_an_array_is_right_at_any_batch(shape):
    """cuDNN has none above a batch of one (jax #30593): an array is never given to a kernel."""
    bias, cotangent = noise(*shape, seed=3), noise(*QKV[0].shape, seed=4)

    def ours(bias):
        return (pe_jax.attention(*QKV, bias=bias) * cotangent).sum()

    def theirs(bias):
        out = jax.nn.dot_product_attention(*QKV, bias=bias, is_causal=True, implementation="xla")
        return (out * cotangent).sum()

    got, want = jit(lambda bias: [jax.grad(f)(bias) for f in (ours, theirs)])(bias)
    assert got.shape == shape and B > 1
    np.testing.assert_allclose(got, want, atol=1e-5)
    with pytest.raises(ValueError, match="implementation='fused'"):
        pe_jax.attention(*QKV, bias=bias, implementation="fused")


def test_dropout_drops_the_share_that_it_says_and_keeps_the_mean():
    ones = np.ones((1, 512, 1, 4), np.float32)

    @jit
    def drop(v, key):
        return pe_jax.attention(ones, ones, v, causal=False, dropout_rate=0.25, dropout_key=key)

    unit = np.eye(512, dtype=np.float32)[None, :, None]
    dropped, other = (drop(unit, jax.random.key(seed)) for seed in (3, 4))
    assert abs(float((dropped == 0).mean()) - 0.25) < 0.005
    assert abs(float(dropped.sum(-1).mean()) - 1) < 0.005
    columns = (np.asarray(dropped[0, :, 0]) == 0).mean(0)  # no key, and no query, is always dropped
    assert columns.min() > 0.1 and columns.max() < 0.4
    assert not np.array_equal(other, dropped)
    assert np.array_equal(pe_jax.attention(*QKV, dropout_rate=0.5), pe_jax.attention(*QKV))


@pytest.mark.parametrize("scheme", ["rope", "t5", "fox"])
def test_a_cache_decodes_with_sinks_and_caps(scheme):
    encoding = pe_jax.make(scheme)
    params = encoding.init(jax.random.key(0), DIMS)
    options = {"terms": (pe_jax.Sink(noise(H)),), "logit_cap": 1.5, "scale": None}
    if scheme != "t5":
        options["scale"] = 0.4
    x = noise(B, T, DIMS.width, seed=4)
    given = {"encoding": encoding, "params": params, "x": x, **options}
    whole = jit(functools.partial(pe_jax.attention, **given))(*QKV)
    cache = pe_jax.cache.empty(encoding, B, T, DIMS, params=params)
    call = functools.partial(pe_jax.cache.extend, encoding=encoding, params=params, dims=DIMS)
    extend = functools.partial(jit(call), **options)  # traced
    out, cache = extend(cache, *(a[:, :30] for a in QKV), x=x[:, :30])
    parts = [out]
    for t in range(30, T):
        out, cache = extend(cache, *(a[:, t : t + 1] for a in QKV), x=x[:, t : t + 1])
        parts.append(out)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=2e-6)


def test_an_encoding_is_a_string_or_parsed_and_positions_may_be_of_one_row():
    places = np.arange(T)[None]  # as Hugging Face has them
    want = pe_jax.attention(*QKV, encoding=pe_jax.make("rope"), q_positions=places)
    for encoding in ("rope", pe_jax.parse("rope")):
        np.testing.assert_array_equal(pe_jax.attention(*QKV, encoding=encoding), want)
    near = pe_jax.attention(*QKV, encoding=pe_jax.make("rope"), window=4)
    np.testing.assert_array_equal(pe_jax.attention(*QKV, encoding="rope@window=4"), near)


@pytest.mark.parametrize(
    "scheme", ["rerope+cope+t5", *(pytest.param(x, marks=SLOW) for x in ("rope+shaw", "wall"))]
)
def test_eager_calls_of_the_same_shapes_compile_once(scheme, caplog):
    """Loops and branches are of functions that are made anew: XLA would be asked each time."""
    (encoding,) = pe_jax.parse(scheme)
    params, x = encoding.init(jax.random.key(0), DIMS), noise(B, T, DIMS.width)
    own = {"encoding": encoding, "params": params}
    q, k, v = map(jnp.asarray, QKV)

    def total(q, engine):
        return pe_jax.attention(q, k, v, x=x, implementation=engine, **own).sum()

    past = [pe_jax.cache.empty(encoding, B, T, DIMS, **window) for window in ({}, {"window": 9})]

    def calls():
        for engine in ("dense", TILED):
            jax.grad(total)(q, engine)
        for n, count in ((0, 3), (0, 1), (1, 1)):
            new, window = (a[:, :count] for a in (q, k, v)), (None, 9)[n]
            given = {"x": x[:, :count], "dims": DIMS, "window": window}
            past[n] = pe_jax.cache.extend(past[n], *new, **given, **own)[1]

    calls()
    calls()
    with jax.log_compiles():
        calls()
    assert [r.message for r in caplog.records if r.message.startswith("Compiling")] == []


@pytest.mark.parametrize(
    "names", [KINDS.split(), pytest.param(pe_jax.ENCODINGS, marks=pytest.mark.slow)]
)
def test_every_scheme_of_one_axis_is_exported_for_any_batch_and_length(names):
    """All in one program: lowering and loading are most of the time."""
    schemes = {name: pe_jax.make(name) for name in names}
    schemes = {name: scheme for name, scheme in schemes.items() if scheme.claims.axes == 1}
    params = {name: scheme.init(jax.random.key(0), DIMS) for name, scheme in schemes.items()}
    given = noise(B, T, DIMS.width), *QKV

    def run(params, x, q, k, v):
        def out(name):
            own = {"encoding": schemes[name], "params": params[name]}
            embedded = schemes[name].embed(params[name], x, jnp.arange(x.shape[1]))
            return pe_jax.attention(q, k, v, x=embedded, embedded=True, dims=DIMS, **own)

        return {name: out(name) for name in schemes}

    batch, length = export.symbolic_shape("b, t")
    shapes = [jax.ShapeDtypeStruct((batch, length, *x.shape[2:]), x.dtype) for x in given]
    exported = export.export(jax.jit(run))(jax.eval_shape(lambda: params), *shapes)
    again = export.deserialize(exported.serialize())
    assert_close(again.call(params, *given), jax.jit(run)(params, *given))


def test_a_length_dependent_scaling_is_exported_for_the_length_that_it_is_set_for():
    (dynamic,) = pe_jax.parse("rope(scaling=dynamic_ntk(factor=4,original_length=8))")

    def run(encoding):
        return jax.jit(lambda q, k, v: pe_jax.attention(q, k, v, encoding=encoding))

    (length,) = export.symbolic_shape("t")
    shapes = [jax.ShapeDtypeStruct((B, length, *x.shape[2:]), x.dtype) for x in QKV]
    exported = export.export(run(dynamic.at_length(T)))(*shapes)
    growth = (4 * T / 8 - 3) ** (8 / 6)
    by_hand = run(pe_jax.make("rope", base=1e4 * growth))
    for tokens in (5, T):
        some = [x[:, :tokens] for x in QKV]
        assert_close(exported.call(*some), by_hand(*some))
    with pytest.raises(ValueError, match="a symbolic length does not tell"):
        export.export(run(dynamic))(*shapes)


@pytest.mark.parametrize(
    "spec",
    [
        "liere(axes=1)+rope",
        "rope+cayley_string(axes=1)",
        "rope+lerope(layout='interleaved')",
        "liere(axes=1,block=4)+liere(axes=1)",
    ],
)
def test_documents_are_as_alone_where_rotations_of_a_sum_do_not_commute(spec):
    """Rotations happen outside of the engines: one engine shows it."""
    (encoding,) = pe_jax.parse(spec)
    given = {"encoding": encoding, "params": random_params(encoding, DIMS)}
    given["implementation"] = "dense"

    @jit
    def both(*qkv):
        packed = pe_jax.attention(*qkv, q_segments=np.tile(np.arange(T) // 25, (B, 1)), **given)
        return packed[:, 25:], pe_jax.attention(*(x[:, 25:] for x in qkv), **given)

    assert_close(*both(*QKV))


@pytest.mark.parametrize(
    "engine, spec",
    [("tiles", "nope"), ("gpu", "nope"), ("gpu", "wall"), ("gpu", "path"), ("tpu", "nope")],
)
def test_second_derivatives_and_forward_mode_name_the_engine_that_has_them(engine, spec):
    q, k, v = QKV
    encoding = pe_jax.parse(spec)[0]
    given = {"encoding": encoding, "params": random_params(encoding, DIMS), "x": flat(q)}

    def run(q):
        out = pe_jax.attention(q, k, v, implementation=ENGINES[engine], **given)
        return (out**2).sum()

    for again in (jax.grad, jax.jacfwd):
        with pytest.raises(TypeError, match="pass implementation='dense'"):
            again(lambda q: jax.grad(run)(q).sum())(q)
    with pytest.raises(TypeError, match="pass implementation='dense'"):
        jax.jvp(run, (q,), (q,))


def test_the_dense_engine_has_second_derivatives_and_forward_mode():
    q, k, v = QKV

    def total(q):
        return (pe_jax.attention(q, k, v, implementation="dense") ** 2).sum()

    slope = jit(lambda q: jax.jvp(total, (q,), (q,))[1])(q)
    second = jit(jax.grad(lambda q: jax.grad(total)(q).sum()))(q)
    assert np.isfinite(slope) and np.isfinite(second).all()


OF_HEADS = ["t5+alibi+rope+shaw(clip=4)+fox+transformer_xl+rotated_values"]
OF_HEADS += ["cope+grape_ap", "rope_mixed+liere(commuting=True)"]


@pytest.mark.parametrize(
    "scheme, engine",
    [(scheme, TILED) for scheme in [*OF_HEADS, *OWN]]
    + [("fox+cope", "dense")]
    + [pytest.param(scheme, "dense", marks=SLOW) for scheme in ("t5", *OWN)],
)
def test_heads_that_devices_share_are_those_of_the_whole(scheme, engine):
    devices, auto = jax.devices()[:2], (AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("model",), auto, devices=devices)
    encoding = pe_jax.parse(scheme)[0]
    params = random_params(encoding, DIMS)
    terms, x = (pe_jax.Sink(noise(H)),), noise(B, T, DIMS.width, seed=5)

    axes = encoding.claims.axes
    places = None if axes == 1 else np.stack(np.divmod(np.arange(T), 5), axis=-1)

    def run(params, x, q, k, v, **more):
        own = {"encoding": encoding, "params": params, "terms": terms, "implementation": engine}
        own |= {"q_positions": places, "causal": True}
        return pe_jax.attention(q, k, v, x=x, dims=DIMS, **own, **more)

    heads = PartitionSpec(None, None, "model")
    shared = jax.shard_map(
        functools.partial(run, heads_axis="model"),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(), heads, heads, heads),
        out_specs=heads,
    )

    def total(f, params, *qkv):
        return (f(params, x, *qkv) * noise(B, T, H, E)).sum()

    got, want = (
        jit(jax.value_and_grad(functools.partial(total, f), argnums=(0, 1, 2, 3)))(params, *QKV)
        for f in (shared, run)
    )
    assert_close(got, want, tol=1e-4)


def test_heads_that_devices_share_need_the_sizes_of_all():
    with pytest.raises(ValueError, match="dims=None: heads_axis='model' needs the global sizes"):
        pe_jax.attention(*QKV, heads_axis="model")


def test_caps_go_round_a_ring_and_masks_and_dropout_stay_with_their_rows():
    devices = jax.devices()[:2]
    ring = jax.make_mesh((1, 2, 1), ("data", "seq", "model"), (AxisType.Auto,) * 3, devices=devices)
    layout = BlockPermuted(ring)

    @jax.jit
    def shared(*qkv, **options):
        return pe_jax.attention(*map(layout.spread, qkv), layout=layout, logit_cap=0.9, **options)

    whole = layout.spread(pe_jax.attention(*QKV, logit_cap=0.9, scale=0.5))
    np.testing.assert_allclose(shared(*QKV, scale=0.5), whole, atol=1e-6)  # a traced scale
    slope, want = (
        jit(jax.grad(lambda s, f=f: (f(*QKV, scale=s) ** 2).sum()))(0.5)
        for f in (shared, functools.partial(pe_jax.attention, logit_cap=0.9))
    )
    np.testing.assert_allclose(slope, want, rtol=1e-4)
    with pytest.raises(ValueError, match="a ring of devices has no Mask"):
        shared(*QKV, mask=masks.prefix(3))

    rows = RowSharded(jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=devices), ("data",))
    own = {"mask": masks.prefix(np.array([7, 20])), "causal": False, "implementation": TILED}
    own |= {"dropout_rate": 0.3, "dropout_key": jax.random.key(0)}
    got, want = (
        jax.jit(functools.partial(pe_jax.attention, **own, **layout))(*QKV)
        for layout in ({"layout": rows}, {})
    )
    np.testing.assert_allclose(got, want, atol=1e-6)
