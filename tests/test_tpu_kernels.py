"""The TPU's kernels: what they leave out and refuse, and O(L) memory by the TPU's own compiler.

tests/test_engine_matrix.py holds them to the dense engine. `pytest -m slow` compiles every scheme
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
from pe_jax.encodings.terms import PairBias, select
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels.tpu import engine, shear, splash
from pe_jax.engines.kernels.tpu import operands as plans
from tests import util
from tests.calls import answer, operands, step
from tests.util import noise


@pytest.mark.parametrize(
    "scheme, width, causal",
    [("nope", 32, True), ("nope", 96, False), ("nope", 16, True), ("clipped", 32, False)],
)
def test_a_half_precision_q_is_not_rounded_by_the_scale(scheme, width, causal):
    """1/sqrt(E) is a power of two for E = 16 only; large queries make a second rounding show.

    It had outputs off by up to 0.4, gradients by 6 % of their norm.
    """
    size = {"batch": (1,), "length": 200, "heads": (2, 2), "width": width, "sharp": 64}
    options = {"causal": causal, "window": 150}
    half = operands(**size, dtype="bfloat16")
    refused = answer(splash.refusal, scheme, half, **options)
    assert (refused is None) == (scheme == "nope" and width == 16)
    kernels = functools.partial((splash if refused is None else engine).attend, interpret=True)
    options |= {**size, "dtype": "bfloat16", "lse": False}
    (run, arrays), (dense, _) = (step(how, scheme, **options) for how in (kernels, "dense"))
    full = jax.tree.map(lambda x: x.astype(jnp.float32), arrays)
    got, want = util.jit(run)(*arrays), util.jit(dense)(*full)
    assert np.abs(np.asarray(got[0]) - np.asarray(want[0])).max() < 0.03
    for gradient, exact in zip(got[1][1:], want[1][1:], strict=True):
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
    def ends(*call):
        plan = engine.counted(engine.make_plan(*call[:3]))
        assert plan.steps == (3, 3) and plan.tiles == 1 + 2 + 6 * 3
        found = schedules(dataclasses.replace(plan, decays=False), *call[1:])
        return [[x[0, 0].tolist() for x in both] for both in found]

    qkv = [jnp.zeros((1, 4096, 4, 64))] * 3
    by_queries, by_keys = answer(ends, "alibi", qkv, window=600)
    assert by_queries == [[0, 0, 0, 1, 2, 3, 4, 5], [*range(8)]]
    assert by_keys == [[*range(8)], [2, 3, 4, 5, 6, 7, 7, 7]]


def schedules(plan, *call):
    """The first and last tile of each row of tiles, then of each column."""
    arrays = plans.make_arrays(plan, *call)
    both = [plans.make_schedule(plan, arrays, by_keys) for by_keys in (False, True)]
    return [(np.asarray(found.first), np.asarray(found.last)) for found in both]


def test_keys_that_have_faded_are_not_visited():
    """FoX's gates are near 1/2: 43 tokens weigh nothing. Nor are those of other documents."""

    def ends(spec, terms, q, *rest):
        return schedules(engine.counted(engine.make_plan(spec, terms, q, 16)), terms, q, *rest)

    params = pe_jax.make("fox").init(jax.random.key(0), util.DIMS)
    call = functools.partial(answer, ends, "fox", operands(320, sharp=0.01), params=params)
    (first, last), (first_of_keys, last_of_keys) = call()
    assert (first[:, :, -1] > 12).all() and (last == np.arange(20)).all()
    assert (first_of_keys == np.arange(20)).all() and (last_of_keys[:, :, 0] < 7).all()
    (first, _), _ = call(q_segments=np.arange(320)[None].repeat(2, 0) // 32)
    assert (first == np.arange(20) // 2 * 2).all()


def test_what_the_engine_cannot_run_has_a_reason():
    def reason(given, tokens=64, **options):
        shape = jax.ShapeDtypeStruct((1, tokens, 4, 8), jnp.float32)
        ask = functools.partial(answer, engine.refusal, given, params=None, **options)
        found = []
        jax.eval_shape(lambda *qkv: found.append(ask(qkv)), *[shape] * 3)
        return found[0]

    elsewhere, order = (
        np.arange(64) // 2,
        {"q_index": np.arange(64)[::-1], "k_index": np.arange(64)},
    )
    assert reason("self_extend") == "it has no Rotation with several views of each token"
    assert reason("dape+fire") == "it has no PairRescore"
    assert reason("fire") is reason("transformer_xl", 4096) is reason("deberta+rope") is None
    assert "same tokens" in reason("rope", **order)
    assert "explicit positions" in reason("shaw", q_positions=elsewhere)
    assert reason("t5+alibi+rope", q_positions=elsewhere) is None
    assert reason("dpb", 2**20) == "a bias without a horizon over 1048576 tokens"
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
TILED = [  # several axes need positions of their own
    name for name, scheme in pe_jax.ENCODINGS.items() if scheme().claims.axes == 1
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
