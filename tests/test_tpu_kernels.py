"""The TPU engine: what the dense one gives, and O(L) memory by the TPU's own compiler.

The kernels run interpreted here. `pytest -m slow tests/test_tpu_kernels.py` compiles every scheme
for a TPU v5e that need not be there; that takes minutes and `pip install "jax[tpu]"`.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental import topologies

import pe_jax
from experiments.measuring.workloads import SPECS
from pe_jax.encodings.base import abstract_terms
from pe_jax.encodings.terms import (
    DistanceBias,
    DistanceFormula,
    PairBias,
    PathProduct,
    RowRescore,
    Sink,
    Tokens,
    select,
)
from pe_jax.engines import reference
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels.tpu import engine, operands, shear, splash
from pe_jax.numerics.position_arrays import as_positions
from tests import util
from tests.engine_calls import answer, arguments, equations
from tests.util import contiguous, noise

HEADS, E, F = 4, 6, 5


@dataclasses.dataclass(frozen=True)
class Kerple(pe_jax.Encoding):
    """A profile with coefficients that are learned: -a·log(1 + b·|d|); of integers alone."""

    def init_layer(self, key, dims):
        return {"ab": jnp.ones((dims.heads, 2))}

    def terms(self, params, dims):
        return (DistanceFormula(logarithm, jnp.exp(params.layer["ab"])),)


def logarithm(numbers, distance):
    a, b = numbers
    places = as_positions(distance, name="distance")
    return -a * jnp.log1p(b * jnp.abs(places).astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class Free(pe_jax.Encoding):
    """A table that is constant nowhere: 64 distances either way."""

    def init_layer(self, key, dims):
        return {"table": jnp.ones((dims.heads, 129))}

    def terms(self, params, dims):
        return (DistanceBias(look_up, params.layer["table"]),)


@dataclasses.dataclass(frozen=True)
class Scaled(Free):
    """The same, multiplied by the scale, and constant from 64 on."""

    def terms(self, params, dims):
        return (DistanceBias(look_up, params.layer["table"], horizon=(-64, 64), scaled=True),)


def look_up(table, distance):
    return table[:, jnp.clip(distance, -64, 64) + 64]


@dataclasses.dataclass(frozen=True)
class WithSink(pe_jax.Encoding):
    """Nothing but a logit in the softmax, for which the engine must give row sums."""

    def init_layer(self, key, dims):
        return {"logit": jnp.ones(dims.heads)}

    def terms(self, params, dims):
        return (Sink(params.layer["logit"]),)


T5 = "t5(num_buckets=6,max_distance=9)"
BOTH = "t5(num_buckets=8,max_distance=6,bidirectional=True)"
IDS = np.repeat(np.asarray([[0, 1, -1, 2], [3, 3, 3, -2]], np.int32), [7, 6, 2, 6], axis=1)
BIASED = {  # tokens in blocks of 8: neither 21 nor 27 is a multiple
    "alibi, both ways, grouped heads": ("alibi", {"causal": False, "kv_heads": 2}),
    "alibi+rope, window, segments": ("alibi+rope", {"window": 9, "ids": IDS}),
    "t5, whole blocks, one key head": (T5, {"tokens": 24, "kv_heads": 1}),
    "t5, both ways, segments": (BOTH, {"causal": False, "ids": IDS, "kv_heads": 2}),
    "t5, window both ways": (BOTH, {"causal": False, "window": 11}),
    "buckets+rope, window beyond the length": (
        "buckets(edges=(0,1,4))+rope",
        {"kv_heads": 2, "window": 99},
    ),
    "clipped, one token": ("clipped(clip=3)", {"tokens": 1, "causal": False}),
    "clipped+t5, beyond the length": ("clipped(clip=40)+t5", {}),
    "no horizon": (Free(), {"causal": False}),
    "learned profile+t5": (
        pe_jax.Sum((Kerple(), *pe_jax.parse(T5))),
        {"tokens": 27, "kv_heads": 2},
    ),
    "multiplied by the scale": (Scaled(), {"causal": False}),
    "sink": (WithSink(), {"window": 9, "ids": IDS}),
    "fire, grouped heads, window": (
        "fire(width=12,length=9.0)",
        {"tokens": 40, "kv_heads": 2, "window": 19},
    ),
    "fire, shared, segments": ("fire(width=5,shared=True)", {"ids": IDS, "kv_heads": 1}),
    "fire+alibi": ("alibi+fire(width=5)", {"tokens": 40}),
    "fire, one token": ("fire(width=5)", {"tokens": 1}),
}
LONG_IDS = np.repeat(np.asarray([[0, 1, -1, 2], [3, 3, 3, -2]], np.int32), [70, 60, 20, 50], axis=1)
MASKED = {  # of splash, two blocks of 128; tests/test_stock_kernels has one
    "rope, window both ways, segments": (
        "rope",
        {"tokens": 200, "window": 40, "causal": False, "ids": LONG_IDS},
    ),
}


def setting(queries, kv_heads, options):
    """What is static of a call, and the tokens of contiguous positions."""
    _, heads, tokens, width = queries
    dims = pe_jax.Dims(heads * width, heads, kv_heads, width)
    causal, window = options.get("causal", True), options.get("window")
    places = jnp.asarray(contiguous(tokens))[None]
    spec = AttentionSpec(dims, causal, window, aligned=True, contiguous=True)
    return spec, Tokens(places, places, options.get("ids"))


def outcome(attend, encoding, spec, tokens, params, qkv, sums=False):
    """Output, row sums if `sums`, and every gradient of them."""

    def f(params, qkv):
        out, lse = attend(*arguments(encoding, spec, params, qkv, tokens))
        return (out, jnp.where(lse == reference.LOWEST, 0, lse)) if sums else out

    results, pull = jax.vjp(f, params, qkv)
    cotangents = jax.tree.map(lambda x: jnp.asarray(noise(*x.shape, seed=3), x.dtype), results)
    return results, pull(cotangents)


@pytest.mark.parametrize("name", [*BIASED, *MASKED])
def test_the_kernels_give_what_the_dense_engine_gives(name):
    given, options = (BIASED | MASKED)[name]
    encoding = pe_jax.parse(given)[0] if isinstance(given, str) else given
    tokens, kv_heads = options.get("tokens", 21), options.get("kv_heads", HEADS)
    heads_and_widths = [(HEADS, E), (kv_heads, E), (kv_heads, F)]
    qkv = [noise(2, h, tokens, w, seed=n) for n, (h, w) in enumerate(heads_and_widths)]
    spec, places = setting(qkv[0].shape, kv_heads, options)
    params = util.random_params(encoding, spec.dims)
    kernels = engine if name in BIASED else splash
    assert kernels.refusal(*arguments(encoding, spec, params, qkv, places)) is None
    options = {"block": 8} if name in BIASED else {}
    attend = functools.partial(kernels.attend, **options, interpret=True)
    call = encoding, spec, places, params, qkv, name in BIASED
    got = util.jit(lambda: outcome(attend, *call))()
    util.assert_close(got, util.jit(lambda: outcome(reference.attend, *call))(), 1e-5)
    if places.segments is not None:
        out = jax.tree.leaves(got)[0]
        assert not np.asarray(out).swapaxes(1, 2)[places.segments < 0].any()


@pytest.mark.parametrize("name, outputs", [("alibi", [2, 1, 2]), ("learned profile", [2, 2, 2])])
def test_gradients_of_constants_are_not_computed(name, outputs):
    """Of ALiBi's slopes, say: results of the kernels forward, for queries and for keys."""
    encoding = pe_jax.make("alibi") if name == "alibi" else Kerple()
    qkv = [noise(1, HEADS, 8, E)] * 3
    spec, places = setting(qkv[0].shape, HEADS, {})
    params = util.random_params(encoding, spec.dims)
    attend = functools.partial(engine.attend, interpret=True)
    call = functools.partial(outcome, attend, encoding, spec, places)
    text = jax.make_jaxpr(call)(params, qkv)
    assert [len(e.outvars) for e in equations(text.jaxpr, "pallas_call")] == outputs


@pytest.mark.parametrize(
    "scheme, width, causal",
    [("nope", 32, True), ("nope", 96, False), ("nope", 16, True), ("clipped", 32, False)],
)
def test_a_half_precision_q_is_not_rounded_by_the_scale(scheme, width, causal):
    """1/sqrt(E) is a power of two for E = 16 only; large queries make a second rounding show.

    It had outputs off by up to 0.4, gradients by 6 % of their norm.
    """
    encoding = pe_jax.make(scheme)
    spec, places = setting((1, 2, 200, width), 2, {"causal": causal, "window": 150})
    params = util.random_params(encoding, spec.dims)
    qkv = [s * noise(1, 2, 200, width, seed=n) for n, s in enumerate((64, 1, 1))]
    half = [jnp.asarray(x, jnp.bfloat16) for x in qkv]
    full = [x.astype(jnp.float32) for x in half]

    def run(attend, qkv):
        return outcome(attend, encoding, spec, places, params, qkv)

    refused = splash.refusal(*arguments(encoding, spec, params, half, places))
    assert (refused is None) == (scheme == "nope" and width == 16)
    attend = (splash if refused is None else engine).attend
    got = util.jit(functools.partial(run, functools.partial(attend, interpret=True)))(half)
    want = util.jit(functools.partial(run, reference.attend))(full)
    assert np.abs(np.asarray(got[0]) - np.asarray(want[0])).max() < 0.03
    for gradient, exact in zip(got[1][1], want[1][1], strict=True):
        error = np.linalg.norm(np.asarray(gradient, np.float32) - np.asarray(exact))
        assert error < 0.02 * np.linalg.norm(exact)


def test_shear_takes_diagonals_and_unshear_is_its_transpose():
    band, y = noise(1, 32), noise(16, 16, seed=1)
    want = [[band[0, 15 - r + c] for c in range(16)] for r in range(16)]

    def on_tpu(f, x, shape):
        def kernel(x_ref, y_ref):
            y_ref[...] = f(x_ref[...])

        out = jax.ShapeDtypeStruct(shape, jnp.float32)
        return pl.pallas_call(kernel, out_shape=out, interpret=True)(x)

    np.testing.assert_array_equal(on_tpu(shear.shear, band, (16, 16)), want)
    summed = on_tpu(shear.unshear, y, (1, 32))
    np.testing.assert_allclose((summed * band).sum(), (want * y).sum(), rtol=1e-5)


def test_windows_of_vectors_take_each_pair_its_own(monkeypatch):
    monkeypatch.setattr(shear, "PART", 4)  # four parts of a tile
    own, vectors, y = noise(16, 3), noise(32, 3, seed=1), noise(16, 16, seed=2)
    entry = 15 - np.arange(16)[:, None] + np.arange(16)
    found = jax.jit(shear.multiply)(own, vectors)
    np.testing.assert_allclose(found, np.einsum("re,rce->rc", own, vectors[entry]), rtol=1e-5)
    want, by_entry = np.zeros((16, 32)), np.zeros((16, 32))
    np.put_along_axis(want, entry, y, axis=1)
    turned = jax.jit(lambda y: [window for *_, window in shear.windows(y)])(y)
    for (tokens, entries), window in zip(shear.parts(16), turned, strict=True):
        by_entry[tokens, entries] = window
    np.testing.assert_allclose(by_entry, want)


def test_tiles_outside_the_mask_are_not_in_the_grid():
    spec, tokens = setting((1, 4, 4096, 64), 4, {"window": 600})
    qkv = [jnp.zeros((1, 4, 4096, 64))] * 3
    call = arguments(pe_jax.make("alibi"), spec, pe_jax.Params({}, {}), qkv, tokens)
    plan = engine.counted(engine.make_plan(*call[:3]))
    assert plan.steps == (3, 3) and plan.tiles == 1 + 2 + 6 * 3
    plan = dataclasses.replace(plan, decays=False)
    arrays = operands.make_arrays(plan, *call[1:])
    ends = []
    for by_keys in (False, True):
        schedule = operands.make_schedule(plan, arrays, by_keys)
        ends.append([np.asarray(x)[0, 0].tolist() for x in (schedule.first, schedule.last)])
    assert ends[0] == [[0, 0, 0, 1, 2, 3, 4, 5], [*range(8)]]
    assert ends[1] == [[*range(8)], [2, 3, 4, 5, 6, 7, 7, 7]]


def test_what_the_engine_cannot_run_has_a_reason():
    def reason(given, tokens=64, **changes):
        (encoding,) = pe_jax.parse(given) if isinstance(given, str) else (given,)
        spec, places = setting((1, 4, tokens, 8), 4, {})
        spec = dataclasses.replace(spec, **changes)
        params = util.random_params(encoding, spec.dims)
        qkv = [jax.ShapeDtypeStruct((1, 4, tokens, 8), jnp.float32)] * 3

        def take(params, qkv):
            return arguments(encoding, spec, params, qkv, places)

        return answer(engine.refusal, take, params, qkv)

    assert reason("self_extend") == "it has no Rotation with several views of each token"
    assert reason("dape+fire") == "it has no RowRescore"
    assert reason("fire") is reason("transformer_xl", 4096) is reason("deberta+rope") is None
    assert "same tokens" in reason("rope", aligned=False)
    assert "explicit positions" in reason("shaw", contiguous=False)
    assert reason("t5+alibi+rope", contiguous=False) is None
    assert reason(Free(), 2**20) == "a bias without a horizon over 1048576 tokens"
    assert reason("t5+alibi", 2**20) is None
    assert reason("transformer_xl", 2**20) == "vectors without a horizon over 1048576 tokens"
    assert reason("inkling(extent=20000)", 2**20) == "vectors of distances from -1 to 20000"
    assert reason("inkling(extent=20000)", 2048) is None


def test_biases_of_pairs_and_those_at_explicit_positions_are_computed_in_chunks():
    def chosen(names, **options):
        (encoding,) = pe_jax.parse(names)
        spec = AttentionSpec(util.DIMS, True, aligned=True, **options)
        return engine.in_chunks(spec, abstract_terms(encoding, util.DIMS))

    # Of FIRE, T5's scale, T5, ALiBi and FoX.
    for in_order in ({"contiguous": True}, {"restarts": True}):
        assert chosen("fire+t5+alibi", **in_order) == (True, False, False, False)
    assert chosen("fire+t5+alibi+fox") == (True, False, True, True, False)


def lowered(name: str, tokens: int, gradient: bool, sharding=None, width: int = 64):
    """What a TPU runs for 8 heads in bfloat16, traced: these kernels or, if they refuse, tiles."""
    (encoding,) = pe_jax.parse(name)
    dims = pe_jax.Dims(8 * width, 8, 8, width)
    shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))
    place = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
    params = jax.tree.map(lambda x: place(x.shape, x.dtype), shapes)
    heads = place((1, tokens, 8, width), jnp.bfloat16)
    x = place((1, tokens, 8 * width), jnp.bfloat16)

    def forward(params, q, k, v, x):
        kwargs = {"encoding": encoding, "params": params, "x": x, "embedded": True}
        return pe_jax.attention(q, k, v, **kwargs)

    def run(cotangent, *arrays):
        if not gradient:
            return forward(*arrays)
        return jax.vjp(forward, *arrays)[1](cotangent)

    with mock.patch.object(jax, "default_backend", return_value="tpu"):
        return jax.jit(run).trace(heads, params, heads, heads, heads, x)


@pytest.mark.parametrize("spec, width", [("rope", 128), ("t5", 64)])
def test_the_kernels_lower_for_a_tpu(spec, width):
    text = lowered(spec, 1024, True, width=width).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") == 3  # forward, queries, keys


# The TPU's compiler, in a process of its own.

HOST = {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0", "TPU_SKIP_MDS_QUERY": "1"}
HOST |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "JAX_PLATFORMS": "cpu"}  # several at once may compile
LENGTHS = (16384, 32768)
TILED = [  # whole rows of scores are dense; several axes need positions of their own
    name
    for name, scheme in pe_jax.ENCODINGS.items()
    if scheme().claims.axes == 1
    and not select(abstract_terms(scheme(), util.DIMS), PathProduct, RowRescore)
]
NEAR = 128 * 2**20  # bytes of temporaries that may live beside the cores of a v5e, not counted


@pytest.mark.slow
@pytest.mark.parametrize("slice_", ["v5e:2x2", "v5p:2x2x1"])
@pytest.mark.parametrize("name", TILED)
def test_every_scheme_compiles_for_a_tpu_and_takes_memory_in_proportion(name, slice_):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("no libtpu here: pip install 'jax[tpu]'")
    command = [sys.executable, "-m", "tests.test_tpu_kernels", slice_, name, *map(str, LENGTHS)]
    env = os.environ | HOST
    found = subprocess.run(command, env=env, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
    for once, twice in json.loads(found.stdout.splitlines()[-1]):
        assert twice <= 2.2 * (once + NEAR), f"{once} bytes became {twice}"
        # Of a bias in bfloat16; biases of pairs and their gradients are in float32.
        part = 6 if select(abstract_terms(pe_jax.make(name), util.DIMS), PairBias) else 10
        assert twice + NEAR < 8 * LENGTHS[1] ** 2 * 2 / part


def main(slice_: str, name: str, *lengths: str) -> None:
    """Prints the temporaries of forward and backward at each length, as JSON."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name=slice_)
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    spec = SPECS.get(name, name).format(length=max(map(int, lengths)))
    sizes = []
    for gradient in (False, True):
        traced = [lowered(spec, int(n), gradient, device) for n in lengths]
        memory = [t.lower().compile().memory_analysis() for t in traced]
        sizes.append([m.temp_size_in_bytes for m in memory])
    print(json.dumps(sizes))


if __name__ == "__main__":
    main(*sys.argv[1:])
