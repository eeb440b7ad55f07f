"""Ring attention: several devices that share the tokens of a row give what one device gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings.terms import PathProduct, RowSum, Sink
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.sharded.layout import BlockPermuted
from pe_jax.engines.sharded.ring import hops as count_hops
from pe_jax.engines.tiled import Tiled, TileSizes
from pe_jax.training import sharding
from pe_jax.training.config import EvalConfig, MeshConfig
from pe_jax.training.evaluate import Evaluator
from pe_jax.training.step import Trainer
from tests import tiny, trainers, util
from tests.calls import NARROW, T5, assert_dense, mesh
from tests.util import DIMS, SINGLE, SUMS, B, Case, H, assert_close, noise

T = 48  # on four devices: twelve tokens each, in four tiles of three
IDS = np.repeat(np.int32([[0, 1, 2, -1], [3, 4, 4, -1]]), [9, 8, 20, 11], axis=1)
CASES = [c for c in SINGLE + SUMS if not util.terms(c.encoding, PathProduct, RowSum)]
SLOW = pytest.mark.slow
HEADS = "rope_pp(fraction=0.5,equal='cache')+rope_heads+key_offset"  # more than the model has
BOTH = "t5(num_buckets=8,max_distance=6,bidirectional=True)"


def case_of(spec: str, causal: bool = True) -> Case:
    (encoding,) = pe_jax.parse(spec)
    return Case(spec, encoding, causal)


def check(case: Case, ring, **given) -> None:
    """Asserts that what devices share is what one device has."""
    axes, limit = case.encoding.claims.axes, case.encoding.limit() or T
    if axes > 1:  # of a table, what it has
        places = np.broadcast_to(util.spread(case, np.arange(T) % limit), (B, T, axes))
        given = {"q_positions": places} | given
    assert_dense([ring], case.encoding, 2e-5, causal=case.causal, length=T, lse=False, **given)


KINDS = [  # together, what one program takes
    "learned(length=40)+rope+rotated_values",
    f"{T5}+alibi+shaw(clip=3)",
    "deberta(buckets=None,max_distance=4)+sink",
    "fire(width=5,length=64.0)+transformer_xl",
    "tupe(length=40)+fox",
    "wall+inkling(extent=4,width=3)+log_length",
    "wavlm(num_buckets=8,max_distance=6)+pope",
    "rerope(window=3)",
    "rope_pp(fraction=0.5)+key_offset",
]

# Every scheme.


@pytest.mark.parametrize(
    "case", [*map(case_of, KINDS), *(pytest.param(case, marks=SLOW) for case in CASES)], ids=str
)
def test_a_ring_is_one_device_forward_and_backward(case):
    """Packed rows, grouped heads, padding: the last device sees nothing of any."""
    check(case, "ring", q_segments=IDS)


@SLOW
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_ring_takes_positions_that_are_not_contiguous(case):
    places = np.sort(np.random.default_rng(0).integers(0, 12, (B, T)), axis=1).astype(np.int32)
    ring = NARROW, BlockPermuted(mesh(seq=4))
    check(case, ring, q_positions=util.spread(case, places))


@SLOW
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("spec", [BOTH, "transformer_xl", "shaw(clip=3)+fox+rope"])
def test_on_any_number_of_devices(spec, devices, causal):
    for balanced in (True, False):
        ring = NARROW, BlockPermuted(mesh(seq=devices), balanced=balanced)
        check(case_of(spec, causal), ring)


WINDOWED = [T5, "nope", "alibi", "transformer_xl", "rerope"]
WINDOWS = [{"window": 14, "sinks": 2}, {"window": 8}, {"window": 1}]


@pytest.mark.parametrize(
    "spec, balanced, window",
    [
        pytest.param(spec, balanced, window, marks=() if not (n or m) and balanced else SLOW)
        for n, spec in enumerate(WINDOWED)
        for balanced in (True, False)
        for m, window in enumerate(WINDOWS)
    ],
)
def test_windows_and_sinks(spec, balanced, window):
    ring = NARROW, BlockPermuted(mesh(seq=4), balanced=balanced)
    check(case_of(spec), ring, q_segments=IDS, **window)


def test_blocks_that_do_not_fill_their_tiles():
    """Six tokens a block in tiles of four: bands do not fit, and tokens are padded."""
    tiles = Tiled(TileSizes(4, 4))
    check(case_of(f"{T5}+shaw(clip=3)"), (tiles, BlockPermuted(mesh(seq=4))))


@pytest.mark.parametrize(
    "spec", [f"shaw(clip=3)+{T5}", *(pytest.param(spec, marks=SLOW) for spec in KINDS)]
)
def test_rows_and_heads_are_shared_too(spec):
    axes = mesh(data=2, seq=2, model=2)
    ring = NARROW, BlockPermuted(axes, batch=("data",), heads="model")
    check(case_of(spec), ring, q_segments=IDS)


def test_sinks_take_the_same_share():
    terms = (Sink(jnp.asarray(noise(H, seed=5))),)
    check(case_of(f"{T5}+shaw(clip=3)"), "ring", q_segments=IDS, terms=terms)


# Where tokens lie.


def test_rows_are_spread_and_restored():
    layout, rows = BlockPermuted(mesh(seq=4)), noise(2, 48, 3)
    assert layout.order(16).tolist() == [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9]
    np.testing.assert_array_equal(layout.spread(rows), rows[:, layout.order(48)])
    np.testing.assert_array_equal(layout.restore(layout.spread(rows)), rows)
    assert layout.spread(rows).sharding.spec == PartitionSpec(None, "seq")
    places = layout.restore(layout.per_segment(layout.spread(IDS)))
    np.testing.assert_array_equal(places, pos.per_segment(IDS))


def test_balanced_devices_see_equally_many_pairs():
    for balanced, equal in ((True, True), (False, False)):
        index = np.asarray(BlockPermuted(mesh(seq=4), balanced=balanced).order(64)).reshape(4, 16)
        pairs = (index + 1).sum(1)
        assert (np.ptp(pairs) == 0) == equal


@pytest.mark.parametrize("spec", ["wavlm+cable", "selective_rope"])
def test_sums_over_tokens_are_those_of_the_row_in_order(spec):
    (encoding,) = pe_jax.parse(spec)
    layout, x = BlockPermuted(mesh(seq=4)), noise(B, 48, DIMS.width)
    terms = encoding.terms(util.random_params(encoding), DIMS)
    states = [term.state for term in terms if term.state is not None]
    assert states
    for state in states:

        def shared(x, state=state):
            return layout.restore(layout.state(state, layout.spread(x), None))

        assert_close(util.jit(shared)(x), state(x, None), 1e-6)


def hops(window, sinks=0, causal=True, balanced=False, devices=8, length=64) -> int:
    spec = AttentionSpec(DIMS, causal, window, sinks, True, True)
    return count_hops(BlockPermuted(mesh(seq=devices), balanced=balanced), spec, length)


def test_the_ring_ends_at_the_farthest_device_that_a_window_reaches():
    index = np.arange(64)
    for window in (1, 2, 9, 10, 17, 18, 64, 99):
        ahead = index[:, None] - index
        device, other = ((ahead >= 0) & (ahead < window)).nonzero()
        assert hops(window) == (device // 8 - other // 8).max()
    assert hops(None) == hops(None, balanced=True) == hops(2, causal=False) == 7
    assert hops(2, sinks=1) == 7 and hops(None, devices=1) == 0


def sends(rows: BlockPermuted, **options) -> int:
    """How often anything travels in a forward and backward pass, loops counted by their length."""
    q = jnp.ones((1, 64, 4, 8))
    f = lambda x: pe_jax.attention(x, x, x, layout=rows, **options).sum()  # noqa: E731

    def count(jaxpr, times: int) -> int:
        total = 0
        for eqn in jaxpr.eqns:
            total += times * (eqn.primitive.name == "ppermute")
            more = times * eqn.params.get("length", 1)
            leaves = jax.tree.leaves(
                tuple(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
            )
            inner = [getattr(x, "jaxpr", x) for x in leaves]
            total += sum(count(x, more) for x in inner if hasattr(x, "eqns"))
        return total

    return count(jax.make_jaxpr(jax.grad(f))(q).jaxpr, 1)


def test_hops_beyond_a_window_are_not_sent():
    rows = BlockPermuted(mesh(seq=8), balanced=False)
    near, far, whole = (sends(rows, window=w) for w in (9, 17, None))
    assert 0 < near < far < whole / 2
    assert sends(rows, window=1) == 0


def temporaries(devices: int, spec: str = "rope", length: int = 4096, width: int = 64) -> int:
    """Bytes a device takes for a forward and backward pass besides inputs and outputs."""
    rows, (encoding,) = BlockPermuted(mesh(seq=devices)), pe_jax.parse(spec)
    place = NamedSharding(rows.mesh, PartitionSpec(None, "seq"))
    q = jax.ShapeDtypeStruct((1, length, H, width), jnp.float32, sharding=place)
    dims = pe_jax.Dims(H * width, H, H, width)
    params = jax.eval_shape(lambda: util.random_params(encoding, dims))

    def loss(params, q, k, v):
        how = {"implementation": Tiled(TileSizes(64, 64)), "layout": rows}
        out = pe_jax.attention(q, k, v, encoding=encoding, params=params, **how)
        return (out**2).sum()

    grads = util.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    return grads.lower(params, q, q, q).compile().memory_analysis().temp_size_in_bytes


def test_memory_falls_with_the_number_of_devices():
    assert temporaries(8) < 0.4 * temporaries(2)


# The model and its training.


def trained(spec: str, **axes: int) -> Trainer:
    devices = int(np.prod(list(axes.values())))
    config = MeshConfig(**{"data": 1, **axes})
    grid = sharding.make_mesh(config, jax.devices()[:devices])
    options = spec if isinstance(spec, dict) else {"encoding": spec, "layers": 1}
    model = tiny.config(**options)
    return Trainer(model, trainers.OPTIMIZER, trainers.STEPS, grid)


@pytest.mark.parametrize(
    "spec, axes",
    [
        ("fox", {"data": 2, "seq": 2, "model": 2}),
        pytest.param(f"fox+{T5}", {"data": 2, "seq": 2, "model": 2}, marks=SLOW),
        pytest.param("learned(length=40)+rope", {"data": 2, "fsdp": 2, "seq": 2}, marks=SLOW),
        pytest.param("transformer_xl", {"seq": 2, "model": 2}, marks=SLOW),
        pytest.param(HEADS, {"data": 2, "seq": 2, "model": 2}, marks=SLOW),
        pytest.param({"encoding": "rope,nope", "window": 5}, {"seq": 4}, marks=SLOW),
        pytest.param({"encoding": "tupe(length=40)", "remat": True}, {"seq": 2}, marks=SLOW),
    ],
    ids=str,
)
def test_a_ring_trains_as_one_device_does(spec, axes):
    _, got = trainers.steps(trained(spec, **axes), 2)
    _, want = trainers.steps(trained(spec), 2)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_ring_is_evaluated_as_one_device_is():
    config = EvalConfig(lengths=(8,), stride=8, windows=2, batch_tokens=16)
    rows = tiny.tokens(2, 9)
    found = []
    for axes in ({"data": 1}, {"seq": 4}):
        one = trained(T5, **axes)
        params = jax.device_put(tiny.like(one.shapes), one.shardings.params)
        found.append(Evaluator(one, config).run(params, rows))
    assert_close(found[1], found[0])


# What cannot be.


@pytest.mark.parametrize(
    "model, seq, lengths, words",
    [
        ({}, 2, {"length": 10}, ("length=10", "4 blocks", "a multiple of 4", "[1, 5]")),
        ({"window": 3}, 4, {"eval.lengths: 6": 6}, ("eval.lengths: 6=6", "[1, 2, 3, 6]")),
        ({"encoding": "cope"}, 2, {"length": 8}, ("mesh.seq=2: CoPE needs whole rows",)),
        ({"attention": "dense"}, 2, {"length": 8}, ("model.attention='dense'", "'auto'")),
        ({}, 2, None, ("mesh.seq=2: the tokens of these rows are not sharded", "mesh.seq=1")),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(model, seq, lengths, words):
    grid = sharding.make_mesh(MeshConfig(data=1, seq=seq), jax.devices()[:seq])
    with pytest.raises(ValueError) as info:
        sharding.check_fits(tiny.config(**model), 8, grid, lengths)
    assert all(word in str(info.value) for word in words), str(info.value)


def test_a_call_that_does_not_fit_is_refused():
    q, rows = jnp.ones((3, 16, 4, 8)), BlockPermuted(mesh(data=2, seq=4), batch=("data",))
    attend = functools.partial(pe_jax.attention, layout=rows)
    with pytest.raises(ValueError, match="3 rows: must divide over the mesh axes"):
        attend(q, q, q)
    with pytest.raises(ValueError, match="12 tokens: must divide into 8 blocks"):
        attend(*(q[:2, :12],) * 3)
    with pytest.raises(ValueError, match="q_index='given': leave it out"):
        attend(q[:2], q[:2], q[:2], q_index=np.arange(16))
    with pytest.raises(ValueError, match="16 queries and 8 keys"):
        places = {"q_positions": np.arange(16), "k_positions": np.arange(8)}
        attend(q[:2], q[:2, :8], q[:2, :8], **places)
    cope = pe_jax.make("cope")
    with pytest.raises(ValueError, match="implementation='dense' with layout=BlockPermuted"):
        attend(q[:2], q[:2], q[:2], implementation="dense")
    with pytest.raises(ValueError, match="CoPE needs whole rows of scores: leave out the ring"):
        attend(q[:2], q[:2], q[:2], encoding=cope, params=util.random_params(cope))
    with pytest.raises(ValueError, match="mesh axis='rows': use"):
        BlockPermuted(mesh(seq=4), axis="rows")
