"""Rows shared by devices, each whole on one: what one device gives, and its kernel."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import pe_jax
from pe_jax.engines.sharded.layout import CONTIGUOUS, RowSharded
from pe_jax.models.config import ModelConfig
from pe_jax.training import sharding
from tests.calls import T5, mesh
from tests.test_ring import IDS, case_of, check
from tests.util import H, T


@pytest.mark.parametrize("spec", [f"{T5}+rope", "fox", "dape", "path"])
def test_devices_that_share_rows_are_one_forward_and_backward(spec):
    """Gradients of tables add up over the devices."""
    check(case_of(spec), "rows", q_segments=IDS)


@pytest.mark.parametrize("spec", ["alibi", "rope", "t5"])
def test_each_device_runs_its_kernel_where_the_compiler_could_not_divide_it(spec, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    encoding = pe_jax.make(spec)
    dims = pe_jax.Dims(256, 4, 4, 64)
    params = encoding.init(jax.random.key(0), dims)
    rows = mesh(data=2)
    where = NamedSharding(rows, PartitionSpec("data"))
    q = jax.ShapeDtypeStruct((2, 2048, 4, 64), jnp.bfloat16, sharding=where)

    def traced(layout) -> str:
        run = lambda q: pe_jax.attention(  # noqa: E731
            q, q, q, encoding=encoding, params=params, layout=layout
        )
        return str(jax.make_jaxpr(run)(q))

    assert "pallas_call" not in traced(CONTIGUOUS)
    assert "pallas_call" in traced(RowSharded(rows, ("data",)))


def test_rows_that_do_not_divide_are_refused():
    x = jnp.zeros((3, T, H, 8))
    with pytest.raises(ValueError, match=r"3 rows: must divide over the mesh axes \('data',\)=2"):
        pe_jax.attention(x, x, x, layout=RowSharded(mesh(data=2), ("data",)))


def test_a_trainer_shares_rows_so_where_there_are_kernels():
    def layout(platform, attention="auto", **axes):
        shape = {**dict.fromkeys(sharding.AXES, 1), **axes}
        chips = np.array([SimpleNamespace(platform=platform)] * np.prod([*shape.values()]))
        fake: Any = SimpleNamespace(shape=shape, devices=chips)
        return sharding.layout(ModelConfig(attention=attention), fake)

    assert isinstance(layout("tpu", data=4, fsdp=2), RowSharded)
    assert layout("gpu") is CONTIGUOUS  # one of several, as a sweep's runs have: alone
    assert layout("cpu", data=8) is layout("tpu", data=4, model=2) is CONTIGUOUS
    assert layout("tpu", "tiled", data=8) is CONTIGUOUS
