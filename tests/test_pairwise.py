"""Biases of positions in tiles: rows that have the same positions share an evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import pe_jax
from pe_jax.encodings import terms as kinds
from pe_jax.engines.tiled import Tiled, TileSizes
from tests import util
from tests.util import assert_close, noise

HEADS, WIDTH, LENGTH = 4, 8, 24
DIMS = pe_jax.Dims(HEADS * WIDTH, HEADS, 2, WIDTH)
ROWS = {  # where each row's second document starts, LENGTH: nowhere; how many biases that makes
    "all alike": ((LENGTH, LENGTH, LENGTH), 1),
    "one restarts": ((LENGTH, 9, LENGTH), 2),
    "all restart alike": ((9, 9, 9), 1),
    "all restart elsewhere": ((9, 17, 1), 4),
}


def packed(starts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Positions that restart, and ids of documents: [3, T]."""
    place, start = np.arange(LENGTH), np.array(starts)[:, None]
    ids = (place >= start).astype(np.int32)
    return np.where(ids, place - start, place).astype(np.int32), ids


@pytest.mark.parametrize("sizes", [TileSizes(), TileSizes(8, 8)], ids=["one tile", "nine"])
@pytest.mark.parametrize("spec", ["fire", "t5(num_buckets=8,max_distance=16)+fire(shared=True)"])
def test_rows_have_the_bias_of_their_own_positions(spec, sizes):
    (encoding,) = pe_jax.parse(spec)
    params = util.random_params(encoding, DIMS)
    qkv = [noise(3, LENGTH, n, WIDTH, seed=n) for n in (HEADS, 2, 2)]

    def run(engine):
        def loss(params, q, k, v, places, ids):
            given = {"q_positions": places, "k_positions": places}
            given |= {"q_segments": ids, "k_segments": ids, "implementation": engine}
            return (pe_jax.attention(q, k, v, encoding=encoding, params=params, **given) ** 2).sum()

        grad = util.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))
        return [grad(params, *qkv, *packed(starts)) for starts, _ in ROWS.values()]

    assert_close(run(Tiled(sizes)), run("dense"), 1e-4)


def counted(counter: "Counter", q_pos, k_pos) -> jax.Array:
    """A bias of two positions that tells how often it is evaluated."""
    jax.debug.callback(counter.add)
    return jnp.sin(q_pos[..., :, None] * 0.3 - k_pos[..., None, :])[..., None, :, :]


@jax.tree_util.register_static
class Counter:
    """How often a function was evaluated."""

    count = 0

    def add(self):
        self.count += 1


@pytest.mark.parametrize("starts, evaluations", ROWS.values(), ids=ROWS.keys())
def test_a_bias_is_evaluated_once_for_all_rows_that_have_the_same_positions(starts, evaluations):
    places, _ = packed(starts)
    q, counter = jnp.asarray(noise(3, LENGTH, HEADS, WIDTH)), Counter()
    terms = (kinds.PairBias(counted, counter),)
    given = {"q_positions": places, "k_positions": places, "terms": terms}
    pe_jax.attention(q, q, q, **given, implementation=Tiled(TileSizes()))
    jax.effects_barrier()
    assert counter.count == evaluations


def test_devices_that_share_a_call_evaluate_all_rows_at_once():
    """Looked at one by one, the rows of a sharded batch would have to be gathered."""
    given = {"terms": (kinds.PairBias(of_two),), "implementation": Tiled(TileSizes())}

    @jax.jit
    def call(q, places):
        return pe_jax.attention(q, q, q, q_positions=places, k_positions=places, **given)

    places, _ = packed(ROWS["all alike"][0])
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=jax.devices()[:2])
    rows = NamedSharding(mesh, PartitionSpec("data"))
    q = jax.device_put(noise(2, LENGTH, HEADS, WIDTH), rows)
    program = call.lower(q, jax.device_put(places[:2], rows)).compile().as_text()
    assert "num_partitions=2" in program and "all-gather" not in program


def of_two(_, q_pos, k_pos) -> jax.Array:
    """A bias of two positions."""
    return jnp.sin(q_pos[..., :, None] * 0.3 - k_pos[..., None, :])[..., None, :, :]
