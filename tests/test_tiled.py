"""The tiled engine where it is special: bands, tiles out of reach, groups, several devices."""

import contextlib
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import pe_jax
from pe_jax.engines import api, bands, plan, terms, tiled
from pe_jax.engines.dense import Rules, Tokens
from tests import util
from tests.util import assert_close, noise

HEADS, WIDTH = 4, 8
DIMS = pe_jax.Dims(HEADS * WIDTH, HEADS, 2, WIDTH)
LENGTH = 300


def outcome(spec: str, engine: str, length: int = LENGTH, size: float = 1.0, **options):
    """Output and gradients, at two rows of `length` tokens."""
    (encoding,) = pe_jax.parse(spec)
    qkv = [size * noise(2, length, n, WIDTH, seed=n) for n in (HEADS, 2, 2)]
    params = util.random_params(encoding, DIMS)

    def run(params, *qkv):
        f = functools.partial(pe_jax.attention, encoding=encoding, implementation=engine, **options)
        out, pull = jax.vjp(lambda p, *x: f(*x, params=p), params, *qkv)
        return out, pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    return util.jit(run)(params, *qkv)


NARROW = ["t5(max_distance=40)", "shaw(clip=16)", "deberta(buckets=None,max_distance=20)"]
WIDE = ["t5(max_distance=300)", "shaw(clip=90)", "deberta(buckets=None,max_distance=90)"]


BOTH = "t5(max_distance=40,bidirectional=True)"
SIDES = [(spec, True) for spec in NARROW + WIDE]
SIDES += [(spec, False) for spec in [BOTH, *NARROW[1:], WIDE[1]]]


@pytest.mark.parametrize("spec, causal", SIDES)
def test_a_band_of_sub_blocks_or_of_whole_tiles_is_the_dense_matrix(monkeypatch, spec, causal):
    util.small_tiles(monkeypatch, blocks=(128, 128), sub_blocks=(64,))
    (encoding,) = pe_jax.parse(spec)
    rules = Rules(encoding, DIMS, causal, None, True, True)
    assert bands.Bands(rules, 128, 128, 3).wide == (spec in WIDE)
    got = outcome(spec, "tiled", causal=causal)
    assert_close(got, outcome(spec, "dense", causal=causal), 2e-5)


def test_rows_may_share_a_window_in_parts(monkeypatch):
    util.small_tiles(monkeypatch, blocks=(16, 16))
    monkeypatch.setattr(terms.Windows, "sub", 4)
    for spec in ("transformer_xl", "shaw(clip=3)+transformer_xl+alibi"):
        assert_close(outcome(spec, "tiled", 40), outcome(spec, "dense", 40), 2e-5)


@pytest.mark.parametrize("places", [None, np.arange(39, -1, -1)], ids=["", "explicit"])
@pytest.mark.parametrize("spec", ["tupe(length=40)+rope", "fox+tupe(length=40)+shaw(clip=3)"])
def test_a_bias_with_factors_is_a_product_of_tiles(monkeypatch, spec, places):
    util.small_tiles(monkeypatch, blocks=(16, 16))
    options = {"x": noise(2, 40, HEADS * WIDTH), "q_positions": places}
    with monkeypatch.context() as patch:  # it does not ask for the bias of any pair
        patch.setattr(pe_jax.ENCODINGS["tupe"], "bias", None)
        tiles = outcome(spec, "tiled", 40, **options)
    assert_close(tiles, outcome(spec, "dense", 40, **options), 2e-5)


def test_a_sum_with_a_bias_that_has_no_factors_has_none():
    spec, at = "tupe(length=40)+fire", np.arange(9)
    (encoding,) = pe_jax.parse(spec)
    assert encoding.factors(util.random_params(encoding, DIMS), at, at, DIMS) is None
    assert_close(outcome(spec, "tiled", 40), outcome(spec, "dense", 40), 2e-5)


@pytest.mark.parametrize(
    "spec, causal",
    [("alibi+fox", True), (f"fox+{BOTH}", False), ("wavlm+cable+rope", True)],
)
def test_states_enter_tiles_of_every_kind(monkeypatch, spec, causal):
    util.small_tiles(monkeypatch, blocks=(16, 16))
    options = {"causal": causal, "x": noise(2, 60, HEADS * WIDTH, seed=7)}
    got, want = (outcome(spec, engine, 60, **options) for engine in ("tiled", "dense"))
    assert_close(got, want, 2e-5)


def test_states_join_the_products_of_windows(monkeypatch):
    util.small_tiles(monkeypatch, blocks=(16, 16))
    spec, x = "shaw(clip=3)+wavlm+transformer_xl+fox+alibi", noise(2, 60, HEADS * WIDTH, seed=7)
    assert_close(outcome(spec, "tiled", 60, x=x), outcome(spec, "dense", 60, x=x), 2e-5)


def test_a_tile_is_visited_in_the_views_that_score_any_of_its_pairs():
    rules = Rules(pe_jax.make("rerope", window=8), DIMS, True, None, True, True)
    index = np.arange(40, dtype=np.int32)[None]
    tokens = Tokens(index, index, None)
    blocks = plan.Plan(rules, terms.Terms(rules, 4, 4, 10), 1.0, tokens, tokens, 10, 10)
    tiles, whole, partial = blocks.order(9, None)
    whole, partial = tiles[:whole].tolist(), tiles[whole : whole + partial].tolist()
    assert sorted(whole) == [8, *range(10, 17)] and sorted(partial) == [7, 9, 17]


def test_tiles_out_of_reach_are_left_out_and_nothing_changes(monkeypatch):
    util.small_tiles(monkeypatch, blocks=(16, 16), group=(1, 1))
    skipped = []
    out_of_reach = plan.Plan.out_of_reach

    def spy(self, part):
        found = out_of_reach(self, part)
        jax.debug.callback(lambda x: skipped.append(int(x.sum())), found)
        return found

    monkeypatch.setattr(plan.Plan, "out_of_reach", spy)
    for causal in (True, False):
        skipped.clear()
        got = outcome("alibi", "tiled", causal=causal, size=0.5)
        jax.effects_barrier()
        assert max(skipped) > 10  # of 19 × 19 tiles, for the steepest head
        assert_close(got, outcome("alibi", "dense", causal=causal, size=0.5))


def test_a_key_that_could_matter_is_never_out_of_reach(monkeypatch):
    """One huge key far back, under a slope that would hide any other: the bound must see it."""
    util.small_tiles(monkeypatch, blocks=(16, 16), group=(1, 1))
    q, k, v = (np.ones((1, 128, 8, WIDTH), np.float32) for _ in range(3))
    k[:, 3] *= 40
    v[:, 3] *= 7
    (encoding,) = pe_jax.parse("alibi")
    run = functools.partial(pe_jax.attention, q, k, v, encoding=encoding)
    assert_close(run(implementation="tiled"), run(implementation="dense"))
    assert run(implementation="dense")[0, -1, 0, 0] > 6


@pytest.mark.parametrize("spec", ["t5", "shaw", "transformer_xl"])
def test_the_same_bits_each_time(monkeypatch, spec):
    util.small_tiles(monkeypatch, blocks=(16, 16))
    once, twice = (outcome(spec, "tiled", 60) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, once, twice)


def data_mesh(count: int):
    kinds = (AxisType.Auto,)
    return jax.make_mesh((count,), ("data",), kinds, devices=jax.devices()[:count])


def chosen(shape=(2, 4, 2048, 64), put=None, mesh=None, inside=lambda f: f) -> tuple:
    """How many devices a call under jit takes itself to be shared by, and its tiles."""
    found = []

    def look(q):
        count = plan.devices(q)
        found.append((count, tiled.tile_sizes(terms.Terms, q, q, tiled.Cuts(devices=count))))
        return q

    q = jnp.zeros(shape)
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        jax.jit(inside(look))(q if put is None else jax.device_put(q, put))
    return found[0]


def test_the_devices_are_those_of_the_mesh_and_not_of_the_process(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert jax.device_count() == 8
    one = (1, ((512, 512), plan.Groups(2, 2, 1, 2)))  # two heads at a time, in turn
    two = (2, ((512, 512), plan.Groups(1, 1, 2, 4)))  # all heads
    across = lambda count: NamedSharding(data_mesh(count), PartitionSpec("data"))  # noqa: E731
    each = {"in_specs": PartitionSpec("data"), "out_specs": PartitionSpec("data")}
    assert chosen() == chosen(mesh=data_mesh(1)) == chosen(put=across(1)) == one
    assert chosen(put=jax.devices()[3]) == one
    assert chosen(mesh=data_mesh(2)) == chosen(put=across(2)) == two
    alone = chosen((4, 4, 2048, 64), inside=lambda f: jax.shard_map(f, mesh=data_mesh(2), **each))
    assert alone == one


def test_a_kernel_is_for_one_device_of_many(monkeypatch, caplog):
    """Of a process that sees eight, too."""
    assert jax.device_count() == 8
    assert picked(caplog, monkeypatch, "alibi", 2048, "gpu")[0] == "fused"
    with jax.sharding.use_abstract_mesh(data_mesh(2).abstract_mesh):
        assert picked(caplog, monkeypatch, "alibi", 2048, "gpu")[0] == "tiled"


@pytest.mark.parametrize("spec", ["rope", "alibi", "t5", "shaw", "transformer_xl", "fox", "rerope"])
@pytest.mark.parametrize("axis", [0, 2], ids=["rows", "heads"])
def test_devices_that_share_a_call_by_the_compiler_are_one(monkeypatch, spec, axis):
    """Under jit, on arrays that lie on a mesh: all heads in a tile, nothing cut up by hand."""
    util.small_tiles(monkeypatch, blocks=(16, 16))
    (encoding,) = pe_jax.parse(spec)
    params, x = util.random_params(encoding, DIMS), noise(2, 40, DIMS.width)
    qkv = [jnp.asarray(noise(2, 40, HEADS, WIDTH, seed=n)) for n in range(3)]

    def grads(implementation):
        def loss(params, *qkv):
            how = {"x": x, "dims": dims, "implementation": implementation}
            return (pe_jax.attention(*qkv, encoding=encoding, params=params, **how) ** 2).sum()

        dims = pe_jax.Dims(DIMS.width, HEADS, HEADS, WIDTH)
        return util.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))

    where = NamedSharding(data_mesh(2), PartitionSpec(*[None] * axis, "data"))
    found = grads("tiled")(params, *(jax.device_put(y, where) for y in qkv))
    assert_close(found, grads("dense")(params, *qkv), 2e-5)


@pytest.mark.parametrize("spec", ["rope", "alibi", "t5", "shaw", "transformer_xl"])
def test_a_batch_divided_by_shard_map_is_the_whole_batch(monkeypatch, spec):
    util.small_tiles(monkeypatch, blocks=(16, 16))
    (encoding,) = pe_jax.parse(spec)
    params = util.random_params(encoding, DIMS)
    qkv = [jnp.asarray(noise(2, 40, n, WIDTH, seed=n)) for n in (HEADS, 2, 2)]

    def loss(params, *qkv):
        out = pe_jax.attention(
            *qkv, encoding=encoding, params=params, dims=DIMS, implementation="tiled"
        )
        return (out * out).sum()

    def shard(params, *qkv):
        return jax.lax.psum(loss(params, *qkv), "data")

    mesh, each = data_mesh(2), PartitionSpec("data")
    whole = (PartitionSpec(), each, each, each)
    divided = jax.shard_map(shard, mesh=mesh, in_specs=whole, out_specs=PartitionSpec())
    grads = [util.jit(jax.grad(f, argnums=(0, 1, 2, 3)))(params, *qkv) for f in (loss, divided)]
    assert_close(grads[1], grads[0], 2e-5)


def test_half_precision_is_near_full_precision(monkeypatch):
    util.small_tiles(monkeypatch, blocks=(16, 16))
    (encoding,) = pe_jax.parse("shaw(clip=3)+t5")
    params = util.random_params(encoding, DIMS)
    half = [jnp.asarray(noise(1, 60, n, WIDTH, seed=n), jnp.bfloat16) for n in (HEADS, 2, 2)]

    def grads(*qkv):
        f = functools.partial(pe_jax.attention, encoding=encoding, implementation="tiled")
        return jax.grad(lambda p, *x: f(*x, params=p).astype(jnp.float32).sum(), (0, 1, 2, 3))(
            params, *qkv
        )

    low, full = util.jit(grads)(*half), util.jit(grads)(*(x.astype(jnp.float32) for x in half))
    assert [x.dtype for x in low[1:]] == [jnp.bfloat16] * 3
    assert_close(jax.tree.map(lambda x: x.astype(jnp.float32), low), full, 0.05)


# What is picked.


def picked(caplog, monkeypatch, spec: str, length: int, device: str = "cpu") -> list[str]:
    api._log.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: device)
    (encoding,) = pe_jax.parse(spec)
    rules = Rules(encoding, DIMS, True, None, True, True)
    params = util.random_params(encoding, DIMS)
    q, k = (jnp.zeros((1, n, length, WIDTH)) for n in (HEADS, 2))
    tokens = Tokens(*(jnp.arange(length)[None],) * 2, None)
    operands = {"q": q, "k": k, "v": k, "q_raw": q, "k_raw": k}
    with caplog.at_level(logging.INFO, "pe_jax"):
        for _ in range(2):  # said once
            caplog.clear() if not caplog.records else None
            engine = api._pick(None, rules, params, operands, tokens, tokens)
    said = [f"{r.levelname}: {r.getMessage()}" for r in caplog.records]
    return [engine.__module__.rpartition(".")[2], *said]


@pytest.mark.parametrize(
    "spec, length, device, engine, words",
    [
        ("rope", 1, "cpu", "dense", "INFO: attention: RoPE: dense"),
        ("rope", 256, "cpu", "dense", "INFO: attention: RoPE: dense"),
        ("shaw", 256, "cpu", "tiled", "INFO: attention: Shaw: tiled"),
        ("rope", 2048, "cpu", "tiled", "INFO: attention: RoPE: tiled"),
        ("alibi", 2048, "gpu", "fused", "INFO: attention: ALiBi: the fused kernel"),
        ("transformer_xl", 2048, "gpu", "tiled", "WARNING: attention: TransformerXL: tiles of XLA"),
        ("t5", 2048, "tpu", "tpu", "INFO: attention: T5: the tpu kernel"),
        ("shaw", 2048, "tpu", "tiled", "WARNING: attention: Shaw: tiles of XLA, not the tpu"),
    ],
)
def test_what_is_picked_is_said_once(caplog, monkeypatch, spec, length, device, engine, words):
    name, *said = picked(caplog, monkeypatch, spec, length, device)
    assert name == engine
    assert len(said) == 1 and said[0].startswith(words)
