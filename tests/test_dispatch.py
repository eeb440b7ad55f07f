"""What is chosen for a call: its engine, how many devices share it, the sizes of its tiles."""

import contextlib
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import pe_jax
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines import dispatch, reference
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.dispatch import Call
from pe_jax.engines.sharded.layout import CONTIGUOUS
from pe_jax.engines.tiled import TileSizes, sizes
from pe_jax.engines.tiled.groups import Groups
from tests import util
from tests.calls import mesh as mesh_of
from tests.test_tiled import plan_of
from tests.util import DIMS, E, H


def picked(caplog, monkeypatch, spec: str, length: int, device: str = "cpu") -> list[str]:
    dispatch._log.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: device)
    (encoding,) = pe_jax.parse(spec)
    params = util.random_params(encoding, DIMS)
    tokens = Tokens(*(jnp.arange(length)[None],) * 2)
    terms = encoding.terms(params, DIMS)
    sides = [
        Side(x, x, (None,) * len(terms), tokens)
        for x in (jnp.zeros((1, n, length, E)) for n in (H, 2))
    ]
    mask = AttentionSpec(DIMS, True, aligned=True, contiguous=True)
    call, name = Call(mask, terms, *sides, sides[1].x), type(encoding).__name__
    with caplog.at_level(logging.INFO, "pe_jax"):
        for _ in range(2):  # said once
            engine = dispatch.engine(None, CONTIGUOUS, call, name)
    said = [f"{r.levelname}: {r.getMessage()}" for r in caplog.records]
    where = engine.__module__.removeprefix("pe_jax.engines.").removeprefix("kernels.")
    return [where.split(".")[0], *said]


@pytest.mark.parametrize(
    "spec, length, device, engine, words",
    [
        ("rope", 1, "cpu", "reference", "INFO: attention: RoPE: dense"),
        ("rope", 128, "cpu", "reference", "INFO: attention: RoPE: dense"),
        ("rope", 600, "cpu", "tiled", "INFO: attention: RoPE: tiled"),
        ("alibi", 512, "cpu", "tiled", "INFO: attention: ALiBi: tiled"),
        ("transformer_xl", 64, "cpu", "tiled", "INFO: attention: TransformerXL: tiled"),
        ("transformer_xl", 32, "cpu", "reference", "INFO: attention: TransformerXL: dense"),
        ("rope", 512, "tpu", "tpu", "INFO: attention: RoPE: the splash kernel"),
        ("alibi", 2048, "tpu", "tpu", "INFO: attention: ALiBi: the splash kernel"),
        ("alibi", 4096, "tpu", "tpu", "INFO: attention: ALiBi: the tpu kernel"),
        ("rope", 2048, "cpu", "tiled", "INFO: attention: RoPE: tiled"),
        ("alibi", 2048, "gpu", "gpu", "INFO: attention: ALiBi: the fused kernel"),
        ("shaw", 2048, "gpu", "gpu", "INFO: attention: Shaw: the fused kernel"),
        ("transformer_xl", 2048, "gpu", "gpu", "INFO: attention: TransformerXL: the fused kernel"),
        ("rerope", 2048, "gpu", "gpu", "INFO: attention: ReRoPE: the fused kernel"),
        ("t5", 2048, "tpu", "tpu", "INFO: attention: T5: the tpu kernel"),
        ("shaw", 2048, "tpu", "tpu", "INFO: attention: Shaw: the tpu kernel"),
        ("fire", 2048, "tpu", "tpu", "INFO: attention: FIRE: the tpu kernel"),
        ("rerope", 2048, "tpu", "tiled", "WARNING: attention: ReRoPE: tiles of XLA, not the tpu"),
        ("transformer_xl", 8192, "tpu", "tpu", "INFO: attention: TransformerXL: the tpu kernel"),
        (
            *("transformer_xl", 16384, "tpu", "tiled"),
            "WARNING: attention: TransformerXL: tiles of XLA, not the tpu kernel: vectors without a"
            " horizon over 16384 tokens",
        ),
    ],
)
def test_what_is_picked_is_said_once(caplog, monkeypatch, spec, length, device, engine, words):
    name, *said = picked(caplog, monkeypatch, spec, length, device)
    assert name == engine
    assert len(said) == 1 and said[0].startswith(words)


def test_a_kernel_is_for_one_device_of_many(monkeypatch, caplog):
    """Of a process that sees eight, too."""
    assert jax.device_count() == 8
    assert picked(caplog, monkeypatch, "alibi", 2048, "gpu")[0] == "gpu"
    with jax.sharding.use_abstract_mesh(mesh_of(data=2).abstract_mesh):
        assert picked(caplog, monkeypatch, "alibi", 2048, "gpu")[0] == "tiled"


def chosen(shape=(2, 4, 2048, 64), put=None, mesh=None, inside=lambda f: f) -> tuple:
    """How many devices a call under jit takes itself to be shared by, and its tiles."""
    found = []

    def look(q):
        count = sizes.devices(q)
        grid, groups = sizes.arrange(q.shape[:3], q.shape[1:3], TileSizes(), count)
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
    across = lambda count: NamedSharding(mesh_of(data=count), PartitionSpec("data"))  # noqa: E731
    each = {"in_specs": PartitionSpec("data"), "out_specs": PartitionSpec("data")}
    assert chosen() == chosen(mesh=mesh_of(data=1)) == chosen(put=across(1)) == one
    assert chosen(put=jax.devices()[3]) == one
    assert chosen(mesh=mesh_of(data=2)) == chosen(put=across(2)) == two
    alone = chosen(
        (4, 4, 2048, 64), inside=lambda f: jax.shard_map(f, mesh=mesh_of(data=2), **each)
    )
    assert alone == one


@pytest.mark.parametrize(
    "spec, short, long",
    [
        ("t5+rope", 64, 512),
        ("t5+shaw", 64, 256),  # vectors within a horizon
        ("transformer_xl", 64, 512),
        ("deberta", 256, 256),
        ("wavlm+t5", 256, 256),
        ("wall", 64, 512),
        ("cope", 64, 128),  # rows settle within few keys
        ("grape_ap", 64, 512),
    ],
)
def test_tiles_of_short_rows_are_small_unless_vectors_reach_far(spec, short, long):
    assert plan_of(spec, sizes=TileSizes(), length=256).grid.rows == short
    assert plan_of(spec, sizes=TileSizes(), length=1024).grid.rows == long


@pytest.mark.parametrize("kind", [np.asarray, np.int8, jnp.asarray])
def test_segments_that_are_one_array_are_those_of_the_same_tokens(kind):
    ids, q, seen = kind([[0, 0, 1]]), jnp.ones((1, 3, 2, 4)), []

    def engine(spec, *operands):
        seen.append(spec.aligned)
        return reference.attend(spec, *operands)

    for keys in ({}, {"k_segments": ids}, {"k_segments": jnp.asarray([[0, 0, 1]])}):
        pe_jax.attention(q, q, q, q_segments=ids, implementation=engine, **keys)
    assert seen == [True, True, False]
