"""The tiled engine where it is special: bands, groups, several devices."""

import contextlib
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from pe_jax.engines.tiled.assignment import assign
from pe_jax.engines.tiled.pairwise import Pairwise
from pe_jax.engines.tiled.setup import set_up

import pe_jax
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, TokenProduct, Tokens
from pe_jax.engines import dispatch
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.dispatch import Call
from pe_jax.engines.reference import multiply
from pe_jax.engines.sharded.layout import CONTIGUOUS
from pe_jax.engines.tiled import Tiled, TileSizes, distance_tables, schedule, tiles
from pe_jax.engines.tiled.groups import Groups
from tests import util
from tests.util import assert_close, noise

HEADS, WIDTH = 4, 8
DIMS = pe_jax.Dims(HEADS * WIDTH, HEADS, 2, WIDTH)
LENGTH = 300
SMALL = Tiled(TileSizes(16, 16, group=(1, 2), sub_blocks=(1, 2)))
WHOLE = tiles.Partition()


def outcome(spec: str, engine, length: int = LENGTH, size: float = 1.0, **options):
    """Output and gradients, at two rows of `length` tokens."""
    (encoding,) = pe_jax.parse(spec)
    qkv = [size * noise(2, length, n, WIDTH, seed=n) for n in (HEADS, 2, 2)]
    params = util.random_params(encoding, DIMS)

    def run(params, *qkv):
        f = functools.partial(pe_jax.attention, encoding=encoding, implementation=engine, **options)
        out, pull = jax.vjp(lambda p, *x: f(*x, params=p), params, *qkv)
        return out, pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    return util.jit(run)(params, *qkv)


NARROW = ["t5(max_distance=40)+shaw(clip=16)", "deberta(buckets=None,max_distance=20)"]
WIDE = ["t5(max_distance=300)+shaw(clip=90)", "deberta(buckets=None,max_distance=90)"]


BOTH = "t5(max_distance=40,bidirectional=True)"
SIDES = [(spec, True) for spec in NARROW + WIDE]
SIDES += [(spec, False) for spec in (BOTH, WIDE[1])]


@pytest.mark.parametrize("spec, causal", SIDES)
def test_a_band_of_sub_blocks_or_of_whole_tiles_is_the_dense_matrix(spec, causal):
    sizes = TileSizes(128, 128, group=(1, 2), sub_blocks=(64,))
    for part in (spec, *spec.split("+")):
        (bands,) = setup_of(part, causal, sizes).ways
        assert bands.wide == (spec in WIDE), part
    got = outcome(spec, Tiled(sizes), causal=causal)
    assert_close(got, outcome(spec, "dense", causal=causal), 2e-5)


def setup_of(spec: str, causal: bool = True, sizes: TileSizes = SMALL.sizes, length: int = LENGTH):
    """What is static about a call with contiguous positions."""
    q, k = (jax.ShapeDtypeStruct((2, n, length, WIDTH), "float32") for n in (HEADS, 2))
    told = AttentionSpec(DIMS, causal, aligned=True, contiguous=True)
    return set_up(told, terms_of(spec), q, k, WHOLE, sizes)


def terms_of(spec: str) -> tuple:
    """The terms of a scheme."""
    (encoding,) = pe_jax.parse(spec)
    return encoding.terms(util.random_params(encoding, DIMS), DIMS)


@pytest.mark.parametrize(
    "spec, ways",
    [
        ("nope", []),
        ("t5+alibi", ["Bands", "InPlace"]),
        ("shaw+alibi+rope", ["Bands", "InPlace"]),
        ("fire+t5", ["Bands", "Pairwise"]),
        ("tupe(length=40)+fox", ["InPlace"]),
        ("shaw+transformer_xl", ["Windows"]),
        ("sandwich+alibi", ["DistanceBiases", "InPlace"]),
        ("kerple+sandwich+cope(positions=6)", ["DistanceBiases", "RowSums"]),
    ],
)
def test_each_term_has_its_own_way(spec, ways):
    setup = setup_of(spec)
    assert [type(way).__name__ for way in setup.ways] == ways
    places = sorted(place for way in setup.ways for place in way.places)
    assert len(set(places)) == len(places)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), terms_of(spec))
    assert [way.__name__ for way in assign(setup.spec, shapes)] == ways  # no array is read


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("spec", ["kerple", "kerple(kind='power')+alibi", "sandwich+alibi+rope"])
def test_a_bias_of_all_distances_is_the_dense_matrix(spec, causal):
    got = outcome(spec, SMALL, causal=causal)
    assert_close(got, outcome(spec, "dense", causal=causal), 2e-5)


def test_a_window_is_spread_in_the_same_way_on_every_device():
    windows = jnp.asarray(noise(2, 3, 11))
    expected = np.stack([windows[..., 3 - r : 3 - r + 8] for r in range(4)], axis=-2)
    for how in (distance_tables.spread, distance_tables.by_slices, distance_tables.by_shear):
        np.testing.assert_array_equal(how(windows, 4), expected)


def of_distances(table, distance):
    """A bias that differs at every distance."""
    return table[:, jnp.abs(distance)]


def test_a_bias_of_all_distances_may_be_scaled_as_products_are():
    term = kinds.DistanceBias(of_distances, jnp.asarray(noise(HEADS, 40)), scaled=True)
    q = noise(1, 40, HEADS, WIDTH)
    tiled, dense = (
        pe_jax.attention(q, q, q, terms=(term,), implementation=engine)
        for engine in (SMALL, "dense")
    )
    np.testing.assert_allclose(tiled, dense, atol=1e-5)


def test_a_kind_that_no_way_knows_is_named():
    (encoding,) = pe_jax.parse("dape")
    terms = encoding.terms(util.random_params(encoding, DIMS), DIMS)
    q = jnp.zeros((1, 8, HEADS, WIDTH))
    with pytest.raises(ValueError, match="the tiled engine has no RowRescore"):
        pe_jax.attention(q, q, q, terms=terms, implementation=SMALL)


@kinds.kind
class Echo(kinds.ScoreTerm):
    """A kind from outside: it reads vectors after rotations, and has no way of its own."""

    gain: jax.Array  # [H]

    def scores(self, q, k, own):
        far = jnp.tanh(kinds.pair_distance(q, k).astype(jnp.float32) / 9)
        return self.gain[:, None, None] * far[:, None] * multiply(q.x, k.x)


def test_a_kind_from_outside_is_evaluated_pair_by_pair():
    assert list(assign(AttentionSpec(DIMS, True, contiguous=True), (Echo(None),))) == [Pairwise]
    gain = noise(HEADS)

    def run(engine, gain, *qkv):
        terms = (Echo(gain), kinds.DistanceBias(distance_bias, gain))
        how = {"terms": terms, "implementation": engine, "encoding": pe_jax.make("rope")}
        return (pe_jax.attention(*qkv, **how) ** 2).sum()

    qkv = [noise(2, 40, n, WIDTH, seed=n) for n in (HEADS, 2, 2)]
    got, want = (
        util.jit(jax.grad(functools.partial(run, engine), (0, 1, 2, 3)))(gain, *qkv)
        for engine in (SMALL, "dense")
    )
    assert_close(got, want, 2e-5)


def distance_bias(gain, distance):
    return gain.reshape(-1, *(1,) * distance.ndim) * jnp.sin(distance.astype(jnp.float32))


@pytest.mark.parametrize("spec", ["alibi", *NARROW, BOTH, "fire"])
def test_sinks_take_the_same_share_in_tiles(spec):
    """Their gradient comes through the logarithm of each row's sum."""
    terms = (kinds.Sink(jnp.asarray(noise(HEADS, seed=5))),)
    options = {"causal": spec != BOTH}
    got, want = (outcome(spec, e, 60, terms=terms, **options) for e in (SMALL, "dense"))
    assert_close(got, want, 2e-5)
    assert np.abs(got[0] - outcome(spec, "dense", 60, **options)[0]).max() > 0.01


def test_groups_that_do_not_divide_the_heads_are_refused():
    q = jnp.zeros((1, 8, HEADS, WIDTH))
    with pytest.raises(ValueError, match=r"group=\(1, 3\): must divide 1 rows and 4 heads"):
        pe_jax.attention(q, q, q, implementation=Tiled(TileSizes(4, 4, group=(1, 3))))


def test_rows_may_share_a_window_in_parts():
    tiles = Tiled(TileSizes(16, 16, group=(1, 2), window_rows=4))
    spec = "shaw(clip=3)+transformer_xl+alibi"
    assert_close(outcome(spec, tiles, 40), outcome(spec, "dense", 40), 2e-5)


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": False}, {"window": 12}, {"window": 12, "sinks": 3}],
    ids=["causal", "both", "window", "sinks"],
)
@pytest.mark.parametrize("sizes", [(8, 16), (24, 8)], ids=str)
def test_products_of_a_row_of_tiles_are_those_of_its_pairs(sizes, options):
    """Where a row leaves out tiles, other rows' numbers are left there: none may be read."""
    spec, tiles = "clipped(clip=9)+transformer_xl", Tiled(TileSizes(*sizes, group=(1, 2)))
    want = outcome(spec, "dense", 60, **options)
    assert_close(outcome(spec, tiles, 60, **options), want, 2e-5)


@pytest.mark.parametrize(
    "spec, places",
    [
        ("tupe(length=40)+rope", None),
        ("fox+tupe(length=40)+shaw(clip=3)", np.arange(39, -1, -1)),
    ],
    ids=["", "explicit"],
)
def test_a_product_of_tokens_is_a_product_of_tiles(monkeypatch, spec, places):
    options = {"x": noise(2, 40, HEADS * WIDTH), "q_positions": places}
    with monkeypatch.context() as patch:  # it does not ask for the formula of any pair
        patch.setattr(TokenProduct, "scores", None)
        got = outcome(spec, SMALL, 40, **options)
    assert_close(got, outcome(spec, "dense", 40, **options), 2e-5)


def test_a_product_of_tokens_beside_a_bias_of_pairs():
    spec = "tupe(length=40)+fire"
    assert_close(outcome(spec, SMALL, 40), outcome(spec, "dense", 40), 2e-5)


@pytest.mark.parametrize(
    "spec, causal",
    [("alibi+fox", True), (f"fox+{BOTH}", False), ("wavlm+cable+rope", True)],
)
def test_states_enter_tiles_of_every_kind(spec, causal):
    options = {"causal": causal, "x": noise(2, 60, HEADS * WIDTH, seed=7)}
    got, want = (outcome(spec, engine, 60, **options) for engine in (SMALL, "dense"))
    assert_close(got, want, 2e-5)


def test_states_join_the_products_of_windows():
    spec, x = "shaw(clip=3)+wavlm+transformer_xl+fox+alibi", noise(2, 60, HEADS * WIDTH, seed=7)
    assert_close(outcome(spec, SMALL, 60, x=x), outcome(spec, "dense", 60, x=x), 2e-5)


def test_a_tile_is_visited_in_the_views_that_score_any_of_its_pairs():
    setup = setup_of("rerope(window=8)", sizes=TileSizes(4, 4), length=40)
    index = np.arange(40, dtype=np.int32)[None]
    tokens = Tokens(index, index)
    order = schedule.order(setup, tokens, tokens, 9)
    plain, partial = np.split(order.columns[: order.plain + order.partial], [order.plain])
    assert sorted(plain) == [8, *range(10, 17)] and sorted(partial) == [7, 9, 17]


def test_chunks_are_visited_once_and_their_keys_are_shared_by_all_views():
    spec = "dual_chunk(chunk_size=10,local_size=2)"
    setup = setup_of(spec, sizes=TileSizes(4, 4), length=40)
    index = np.arange(40, dtype=np.int32)[None]
    tokens = Tokens(index, index)
    order = schedule.order(setup, tokens, tokens, 9)  # the last half of the last chunk
    plain, partial = np.split(order.columns[: order.plain + order.partial], [order.plain])
    assert sorted(plain) == [8, 16, 17, *range(20, 26)] and sorted(partial) == [9]
    assert [setup.views.key_block(n, 10) for n in (8, 17, 20)] == [8, 7, 0]


@pytest.mark.parametrize(
    "spec, side", [("t5+shaw", 64), ("transformer_xl", 64), ("deberta", 256), ("wavlm+t5", 256)]
)
def test_tiles_of_short_rows_are_small_unless_vectors_reach_far(spec, side):
    assert setup_of(spec, sizes=TileSizes(), length=256).grid.rows == side
    assert setup_of(spec, sizes=TileSizes(), length=1024).grid.rows == 512


@pytest.mark.parametrize("spec", ["t5+shaw", "transformer_xl"])
def test_the_same_bits_each_time(spec):
    once, twice = (outcome(spec, SMALL, 60) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, once, twice)


def data_mesh(count: int):
    kinds = (AxisType.Auto,)
    return jax.make_mesh((count,), ("data",), kinds, devices=jax.devices()[:count])


def chosen(shape=(2, 4, 2048, 64), put=None, mesh=None, inside=lambda f: f) -> tuple:
    """How many devices a call under jit takes itself to be shared by, and its tiles."""
    found = []

    def look(q):
        count = tiles.devices(q)
        partition = tiles.Partition(devices=count)
        grid, groups = tiles.arrange(q, q, partition, TileSizes(), heads_apart=True)
        found.append((count, (grid.rows, grid.columns), groups))
        return q

    q = jnp.zeros(shape)
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        jax.jit(inside(look))(q if put is None else jax.device_put(q, put))
    return found[0]


def test_the_devices_are_those_of_the_mesh_and_not_of_the_process(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert jax.device_count() == 8
    one = (1, (512, 512), Groups(2, 2, 1, 2))  # two heads at a time, in turn
    two = (2, (512, 512), Groups(1, 1, 2, 4))  # all heads
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
    assert picked(caplog, monkeypatch, "alibi", 2048, "gpu")[0] == "gpu"
    with jax.sharding.use_abstract_mesh(data_mesh(2).abstract_mesh):
        assert picked(caplog, monkeypatch, "alibi", 2048, "gpu")[0] == "tiled"


SHARED = ["alibi+rope", "t5+shaw", "transformer_xl+fox", "rerope", "cope(positions=6)"]


BY_AXIS = [(spec, 2) for spec in SHARED] + [("alibi+shaw+fox", 0)]


@pytest.mark.parametrize("spec, axis", BY_AXIS)
def test_devices_that_share_a_call_by_the_compiler_are_one(spec, axis):
    """Under jit, on arrays that lie on a mesh: all heads in a tile, nothing cut up by hand."""
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
    found = grads(SMALL)(params, *(jax.device_put(y, where) for y in qkv))
    assert_close(found, grads("dense")(params, *qkv), 2e-5)


SUMMED = ["cope(positions=6)", "stick_breaking"]


@pytest.mark.parametrize("spec", ["t5+rope", "transformer_xl", *SUMMED])
def test_a_batch_divided_by_shard_map_is_the_whole_batch(spec):
    (encoding,) = pe_jax.parse(spec)
    params = util.random_params(encoding, DIMS)
    qkv = [jnp.asarray(noise(2, 40, n, WIDTH, seed=n)) for n in (HEADS, 2, 2)]

    def loss(params, *qkv):
        out = pe_jax.attention(
            *qkv, encoding=encoding, params=params, dims=DIMS, implementation=SMALL
        )
        return (out * out).sum()

    def shard(params, *qkv):
        return jax.lax.psum(loss(params, *qkv), "data")

    mesh, each = data_mesh(2), PartitionSpec("data")
    whole = (PartitionSpec(), each, each, each)
    divided = jax.shard_map(shard, mesh=mesh, in_specs=whole, out_specs=PartitionSpec())
    grads = [util.jit(jax.grad(f, argnums=(0, 1, 2, 3)))(params, *qkv) for f in (loss, divided)]
    assert_close(grads[1], grads[0], 2e-5)


def test_half_precision_is_near_full_precision():
    (encoding,) = pe_jax.parse("shaw(clip=3)+t5")
    params = util.random_params(encoding, DIMS)
    half = [jnp.asarray(noise(1, 60, n, WIDTH, seed=n), jnp.bfloat16) for n in (HEADS, 2, 2)]

    def grads(*qkv):
        f = functools.partial(pe_jax.attention, encoding=encoding, implementation=SMALL)
        return jax.grad(lambda p, *x: f(*x, params=p).astype(jnp.float32).sum(), (0, 1, 2, 3))(
            params, *qkv
        )

    low, full = util.jit(grads)(*half), util.jit(grads)(*(x.astype(jnp.float32) for x in half))
    assert [x.dtype for x in low[1:]] == [jnp.bfloat16] * 3
    assert_close(jax.tree.map(lambda x: x.astype(jnp.float32), low), full, 0.05)


# What is picked.


def picked(caplog, monkeypatch, spec: str, length: int, device: str = "cpu") -> list[str]:
    dispatch._log.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: device)
    (encoding,) = pe_jax.parse(spec)
    params = util.random_params(encoding, DIMS)
    tokens = Tokens(*(jnp.arange(length)[None],) * 2)
    terms = encoding.terms(params, DIMS)
    sides = [
        Side(x, x, (None,) * len(terms), tokens)
        for x in (jnp.zeros((1, n, length, WIDTH)) for n in (HEADS, 2))
    ]
    mask = AttentionSpec(DIMS, True, aligned=True, contiguous=True)
    call, name = Call(mask, terms, *sides, sides[1].x), type(encoding).__name__
    with caplog.at_level(logging.INFO, "pe_jax"):
        for _ in range(2):  # said once
            caplog.clear() if not caplog.records else None
            engine = dispatch.engine(None, CONTIGUOUS, call, name)
    said = [f"{r.levelname}: {r.getMessage()}" for r in caplog.records]
    return [engine.__module__.split(".")[2], *said]


@pytest.mark.parametrize(
    "spec, length, device, engine, words",
    [
        ("rope", 1, "cpu", "reference", "INFO: attention: RoPE: dense"),
        ("rope", 128, "cpu", "reference", "INFO: attention: RoPE: dense"),
        ("rope", 600, "cpu", "tiled", "INFO: attention: RoPE: tiled"),
        ("alibi", 512, "cpu", "tiled", "INFO: attention: ALiBi: tiled"),
        ("transformer_xl", 64, "cpu", "tiled", "INFO: attention: TransformerXL: tiled"),
        ("transformer_xl", 32, "cpu", "reference", "INFO: attention: TransformerXL: dense"),
        ("rope", 512, "tpu", "tpu", "INFO: attention: RoPE: the tpu kernel"),
        ("rope", 2048, "cpu", "tiled", "INFO: attention: RoPE: tiled"),
        ("alibi", 2048, "gpu", "gpu", "INFO: attention: ALiBi: the fused kernel"),
        ("transformer_xl", 2048, "gpu", "gpu", "INFO: attention: TransformerXL: the fused kernel"),
        ("rerope", 2048, "gpu", "tiled", "WARNING: attention: ReRoPE: tiles of XLA"),
        ("t5", 2048, "tpu", "tpu", "INFO: attention: T5: the tpu kernel"),
        ("shaw", 2048, "tpu", "tpu", "INFO: attention: Shaw: the tpu kernel"),
        ("fire", 2048, "tpu", "tpu", "INFO: attention: FIRE: the tpu kernel"),
        ("rerope", 2048, "tpu", "tiled", "WARNING: attention: ReRoPE: tiles of XLA, not the tpu"),
    ],
)
def test_what_is_picked_is_said_once(caplog, monkeypatch, spec, length, device, engine, words):
    name, *said = picked(caplog, monkeypatch, spec, length, device)
    assert name == engine
    assert len(said) == 1 and said[0].startswith(words)
