"""The tiled engine where it is special: stages, tables, groups, several devices.

tests/test_engine_matrix.py has what a call may ask of it.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import pe_jax
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import abstract_terms
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines import block
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.block import multiply
from pe_jax.engines.tiled import Tiled, TileSizes, passes, schedule
from pe_jax.engines.tiled.plan import NonDiff, Operands, Plan, make_plan, with_tables
from pe_jax.engines.tiled.schedule import Stage
from tests import util
from tests.calls import TILES, answer, assert_dense, mesh
from tests.calls import operands as qkv_of
from tests.util import DIMS, E, H, assert_close, noise

LENGTH = 300
SLOW = pytest.mark.slow


def plan_of(
    spec: str, causal: bool = True, sizes: TileSizes = TILES.sizes, length: int = LENGTH, **options
) -> Plan:
    """What is static about a call with contiguous positions."""
    told = AttentionSpec(DIMS, causal, aligned=True, contiguous=True)
    shapes = (2, H, length), (2, length)
    return make_plan(told, terms_of(spec), *shapes, sizes, segments=False, **options)


def terms_of(spec: str) -> tuple:
    """The terms of a scheme, abstract: a plan reads no array."""
    (encoding,) = pe_jax.parse(spec)
    return abstract_terms(encoding, DIMS)


# Stages: terms of distances within their horizon and beyond it.

BOTH = "t5(max_distance=40,bidirectional=True)"
HORIZONS = [  # with the gaps of near tiles of 32: those n ahead are 32 n - 31 … 32 n + 31 apart
    ("t5(max_distance=40)", True, (2, 1, 0)),
    ("shaw(clip=16)", True, (1, 0)),
    ("shaw(clip=2)", True, (1, 0)),
    ("t5(max_distance=40)+shaw(clip=16)", True, (2, 1, 0)),
    ("deberta(buckets=None,max_distance=20)", True, (1, 0)),
    ("shaw(clip=70)+alibi+rope", True, (3, 2, 1, 0)),
    ("shaw(clip=33)", True, (1, 0)),
    ("shaw(clip=34)", True, (2, 1, 0)),
    ("t5(max_distance=300)+shaw(clip=110)", True, tuple(range(8, -1, -1))),
    ("deberta(buckets=None,max_distance=110)", True, (4, 3, 2, 1, 0)),
    ("shaw(clip=16)", False, (1, 0, -1)),
    ("shaw(clip=70)", False, (3, 2, 1, 0, -1, -2, -3)),
    (BOTH, False, (1, 0, -1)),
    ("kerple+t5(max_distance=40)", True, (2, 1, 0)),  # a formula is in no table
    ("rope", True, (0,)),
    ("alibi", True, (0,)),
    ("rope", False, (0,)),
]
KEPT = (1, 3, 4, 5, 11, 12, 13, 15)  # near tiles one by one or not, both ways, each kind of term
COMPARED = [
    pytest.param(spec, causal, marks=() if i in KEPT else SLOW)
    for i, (spec, causal, _) in enumerate(HORIZONS)
]
SQUARE = TileSizes(32, 32)


@pytest.mark.parametrize("spec, causal, gaps", HORIZONS)
def test_tiles_within_the_horizons_are_near(spec, causal, gaps):
    plan = plan_of(spec, causal, SQUARE)
    assert plan.gaps == tuple(32 * n for n in gaps) and plan.uniform
    stages = schedule.stages(plan)
    far = [stage for stage in stages if stage.uniform]
    near = [stage for stage in stages if not stage.uniform]
    assert far and all(stage.gap is None for stage in far)
    if max(map(abs, gaps)) <= 1:  # compiled one by one
        assert near == [Stage(gap, False, causal and gap <= 0 or not causal) for gap in plan.gaps]
    else:
        assert near == [Stage(None, False, False), Stage(None, False, True)]


@pytest.mark.parametrize("spec, causal", COMPARED)
def test_beyond_the_horizons_terms_are_one_value(spec, causal):
    assert_dense([Tiled(SQUARE)], spec, 2e-5, causal=causal, length=LENGTH)


@pytest.mark.parametrize("spec, causal", [(spec, causal) for spec, causal, _ in HORIZONS])
def test_each_visible_tile_is_visited_once(spec, causal):
    plan = plan_of(spec, causal, SQUARE, length=320)
    at = jnp.arange(320, dtype=jnp.int32)[None]
    tokens = Tokens(at, at)
    seen = np.zeros((10, 10), int)
    stages = schedule.stages(plan)
    for stage, visit in zip(stages, schedule.visits(plan, tokens, tokens), strict=True):
        for i in range(10):
            for j in np.asarray(visit.columns[i])[: int(visit.counts[i])]:
                seen[i, j] += 1
                assert stage.uniform != (32 * (i - j) in plan.gaps)
                assert stage.masked or i > j or not causal
    np.testing.assert_array_equal(seen, np.tri(10) if causal else np.ones((10, 10)))


@pytest.mark.parametrize(
    "spec, causal",
    [
        ("transformer_xl", True),
        ("sandwich+t5(max_distance=40)", True),
        ("sandwich+alibi+rope", False),
        pytest.param("sandwich+alibi+rope", True, marks=SLOW),
    ],
)
def test_without_a_horizon_tables_have_all_distances(spec, causal):
    plan = plan_of(spec, causal, SQUARE)
    assert plan.gaps == (0,) and not plan.uniform
    assert not any(stage.uniform for stage in schedule.stages(plan))
    assert_dense(["tiles"], spec, 2e-5, causal=causal, length=LENGTH)


@dataclasses.dataclass(frozen=True)
class Clipped:
    """Looks up the distances low … high."""

    low: int
    high: int

    def __call__(self, table, distance):
        return jnp.take(table, jnp.clip(distance, self.low, self.high) - self.low, axis=1)


@pytest.mark.parametrize(
    "horizon, causal, gaps",  # gaps in tiles of 16
    [
        ((2, 9), True, (1, 0)),
        pytest.param((5, 20), True, (2, 1, 0), marks=SLOW),
        ((40, 45), True, (3, 2, 1, 0)),
        pytest.param((40, 45), False, (3, 2, 1, 0), marks=SLOW),
        ((-45, -40), False, (0, -1, -2, -3)),
    ],
    ids=str,
)
def test_a_horizon_may_lie_off_the_diagonal(horizon, causal, gaps):
    """Pairs nearer than its low end read the lowest value."""
    low, high = horizon
    biases, vectors = (jnp.asarray(noise(1, high - low + 1, *width)) for width in ((), (E,)))
    read = Clipped(low, high)
    terms = (
        kinds.DistanceBias(read, biases, horizon=horizon),
        kinds.RelativeKeys(read, vectors, horizon=horizon),
    )
    told = AttentionSpec(DIMS, causal, aligned=True, contiguous=True)
    plan = make_plan(told, terms, (2, H, 90), (2, 90), TILES.sizes, segments=False)
    assert plan.gaps == tuple(16 * n for n in gaps)
    assert_dense(["tiles"], "nope", 2e-5, terms=terms, causal=causal, length=90)


@pytest.mark.parametrize("spec", ["t5(max_distance=40)", "transformer_xl", "rope"])
def test_rings_tiles_that_are_no_squares_and_sums_have_no_near_stages(spec):
    assert plan_of(spec, sizes=SQUARE, on_ring=True).gaps == ()
    assert plan_of(spec, sizes=TileSizes(32, 16)).gaps == ()
    plan = plan_of(f"{spec}+stick_breaking", sizes=SQUARE)
    assert plan.gaps == () and schedule.stages(plan) == (Stage(None, False, True),)


@pytest.mark.parametrize(
    "spec, along",
    [
        ("nope", []),
        ("t5+alibi", [True, True]),
        ("shaw+alibi+rope", [True, True, True]),
        ("fire+t5", [False, True]),
        ("transformer_xl", [True]),
        ("kerple+cope(positions=6)", [True, False]),
        ("tupe(length=40)+fox+sandwich", [False, False, True]),
    ],
)
def test_each_term_of_distances_is_evaluated_along_diagonals(spec, along):
    terms, found = tuple(kinds.in_engine(terms_of(spec))), []

    def note(plan, terms):
        operands = with_tables(plan, Operands(None, None, None, None, terms))
        group = passes.Group(plan, operands, NonDiff(None, None), (), None)
        tile = passes.Tile(Stage(None, uniform=False, masked=True), 0, 0)
        found.append([line is not None for line in group.lines(group.cut(tile), tile)])

    placed = make_plan(AttentionSpec(DIMS, True), terms, (2, H, LENGTH), (2, LENGTH))
    for plan in (plan_of(spec), placed):  # at explicit positions none is
        jax.eval_shape(functools.partial(note, plan), terms)
    assert found == [along, [False] * len(along)]


def of_distances(table, distance):
    """A bias that differs at every distance."""
    return table[:, jnp.abs(distance)]


def test_a_bias_of_all_distances_may_be_scaled_as_products_are():
    term = kinds.DistanceBias(of_distances, jnp.asarray(noise(H, 40)), scaled=True)
    q = noise(1, 40, H, E)
    tiled, dense = (
        pe_jax.attention(q, q, q, terms=(term,), implementation=engine)
        for engine in (TILES, "dense")
    )
    np.testing.assert_allclose(tiled, dense, atol=1e-5)


def hides_the_far(values, distance):
    """A value from distance 20 on, and another one at each distance before."""
    far, near = values
    return jnp.where(distance >= 20, far, near * jnp.sin(distance.astype(jnp.float32)))[None]


@pytest.mark.parametrize("far", [-1e9, -np.inf])
def test_a_bias_that_hides_what_is_far_leaves_the_rest_exact(far):
    def run(engine, near, q):
        values = jnp.stack([jnp.float32(far), near])
        term = kinds.DistanceBias(hides_the_far, values, horizon=(0, 20))
        return (pe_jax.attention(q, q, q, terms=(term,), implementation=engine) ** 2).sum()

    arrays = jnp.float32(1.5), jnp.asarray(noise(1, 60, H, E))
    got, want = (
        util.jit(jax.value_and_grad(functools.partial(run, engine), (0, 1)))(*arrays)
        for engine in (TILES, "dense")
    )
    assert_close(got, want, 2e-5)


@kinds.kind
class Echo(kinds.ScoreTerm):
    """A kind from outside: it reads vectors after rotations, and says nothing of distances."""

    gain: jax.Array  # [H]

    def scores(self, q, k, own):
        far = jnp.tanh(kinds.pair_distance(q, k).astype(jnp.float32) / 9)
        return self.gain[:, None, None] * far[:, None] * multiply(q.x, k.x)


def test_a_kind_from_outside_is_evaluated_pair_by_pair():
    gain = noise(H)

    def run(engine, gain, *qkv):
        terms = (Echo(gain), kinds.DistanceBias(distance_bias, gain))
        how = {"terms": terms, "implementation": engine, "encoding": pe_jax.make("rope")}
        return (pe_jax.attention(*qkv, **how) ** 2).sum()

    qkv = [noise(2, 40, n, E, seed=n) for n in (H, 2, 2)]
    got, want = (
        util.jit(jax.grad(functools.partial(run, engine), (0, 1, 2, 3)))(gain, *qkv)
        for engine in (TILES, "dense")
    )
    assert_close(got, want, 2e-5)


def distance_bias(gain, distance):
    return gain.reshape(-1, *(1,) * distance.ndim) * jnp.sin(distance.astype(jnp.float32))


def test_groups_that_do_not_divide_the_heads_are_refused():
    q = jnp.zeros((1, 8, H, E))
    with pytest.raises(ValueError, match=r"group=\(1, 3\): must divide 1 rows and 4 heads"):
        pe_jax.attention(q, q, q, implementation=Tiled(TileSizes(4, 4, group=(1, 3))))


@pytest.mark.parametrize("shared_keys", [False, True])
@pytest.mark.parametrize("gap, count", [(0, 1), (8, 2), (-30, 1), (30, 1)])
def test_a_tile_that_one_view_scores_as_a_whole_takes_one_product(gap, count, shared_keys):
    views, places = kinds.Views((8,), shared_keys=shared_keys), np.arange(4)[None]
    taken = []

    def counted(q, k):
        jax.debug.callback(lambda: taken.append(1))
        return multiply(q, k)

    q, k = noise(1, 2, 4, 2 * E), noise(1, 2, 4, E if shared_keys else 2 * E)
    sides = (
        Side(q, None, (), Tokens(places + gap, places)),
        Side(k, None, (), Tokens(places, places)),
    )
    got = jax.jit(lambda q, k: views.products(counted, q, k))(*sides)
    jax.effects_barrier()
    assert len(taken) == count
    queries, keys = np.split(q, 2, -1), [k, k] if shared_keys else np.split(k, 2, -1)
    apart = gap + np.arange(4)[:, None] - np.arange(4)
    want = np.where(apart < 8, *map(multiply, queries, keys))
    assert_close(got, want)


BY_AXIS = [("t5+shaw", 2), ("transformer_xl+fox", 2), ("cope(positions=6)+path+dape", 2)]
BY_AXIS += [("alibi+shaw+fox", 0), pytest.param("rerope", 2, marks=SLOW)]


@pytest.mark.parametrize("spec, axis", BY_AXIS)
def test_devices_that_share_a_call_by_the_compiler_are_one(spec, axis):
    """Under jit, on arrays that lie on a mesh: all heads in a tile, nothing cut up by hand."""
    (encoding,) = pe_jax.parse(spec)
    params, x = util.random_params(encoding, DIMS), noise(2, 40, DIMS.width)
    qkv = [jnp.asarray(noise(2, 40, H, E, seed=n)) for n in range(3)]

    def grads(implementation):
        def loss(params, *qkv):
            how = {"x": x, "dims": dims, "implementation": implementation}
            return (pe_jax.attention(*qkv, encoding=encoding, params=params, **how) ** 2).sum()

        dims = pe_jax.Dims(DIMS.width, H, H, E)
        return util.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))

    where = NamedSharding(mesh(data=2), PartitionSpec(*[None] * axis, "data"))
    found = grads(TILES)(params, *(jax.device_put(y, where) for y in qkv))
    assert_close(found, grads("dense")(params, *qkv), 2e-5)


@pytest.mark.parametrize("spec", ["t5+rope", "cope(positions=6)", "path+dape"])
def test_a_batch_divided_by_shard_map_is_the_whole_batch(spec):
    (encoding,) = pe_jax.parse(spec)
    params = util.random_params(encoding, DIMS)
    qkv = [jnp.asarray(noise(2, 40, n, E, seed=n)) for n in (H, 2, 2)]

    def loss(params, *qkv):
        how = {"x": util.flat(qkv[0]), "dims": DIMS, "implementation": TILES}
        out = pe_jax.attention(*qkv, encoding=encoding, params=params, **how)
        return (out * out).sum()

    def shard(params, *qkv):
        return jax.lax.psum(loss(params, *qkv), "data")

    two, each = mesh(data=2), PartitionSpec("data")
    whole = (PartitionSpec(), each, each, each)
    divided = jax.shard_map(shard, mesh=two, in_specs=whole, out_specs=PartitionSpec())
    grads = [util.jit(jax.grad(f, argnums=(0, 1, 2, 3)))(params, *qkv) for f in (loss, divided)]
    assert_close(grads[1], grads[0], 2e-5)


@pytest.mark.parametrize("spec", ["tupe(length=40)", "tupe(length=40)+buckets(edges=(1,4))"])
def test_products_of_states_as_channels_are_what_the_dense_engine_adds(spec):
    assert_dense((TILES,), spec, 2e-5, heads=(H, H))


@pytest.mark.parametrize("backend, kept", [("cpu", 0), ("gpu", 1), ("tpu", 1)])
def test_products_of_states_stay_apart_where_q_k_is_rounded(monkeypatch, backend, kept):
    def count(*call):
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        terms, *_ = block.products_as_channels(call[0], call[1], *call[2:4])
        monkeypatch.undo()
        return len(kinds.select(terms, kinds.TokenProduct))

    assert answer(count, "tupe(length=40)", qkv_of(length=40, heads=(H, H))) == kept


def amplified(factor, scores, bias):
    return factor * scores


def test_a_network_over_heads_may_have_a_single_number():
    """Rows of the batch take turns in tiles of all heads."""
    q, k, v = qkv_of(length=40)

    def loss(factor, engine):
        terms = (kinds.PairRescore(amplified, factor),)
        return pe_jax.attention(q, k, v, terms=terms, implementation=engine).sum()

    assert_close(*(jax.jit(jax.grad(loss), static_argnums=1)(0.3, x) for x in (TILES, "dense")))
