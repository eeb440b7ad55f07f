"""A ring of the TPU's kernels, interpreted on virtual devices: it gives what one device gives."""

import jax
import jax.numpy as jnp
import pytest

import pe_jax
from pe_jax.engines.kernels.tpu.hops import Kernels
from pe_jax.engines.sharded.layout import BlockPermuted
from tests.test_ring import BOTH, IDS, T5, case_of, check, mesh

CASES = {  # 48 tokens: runs of 6, or of 12 where blocks are not balanced
    "alibi": ("alibi", False, {}),
    "t5, window": (T5, False, {"window": 14}),
    "t5, both ways": (BOTH, True, {}),
    "vectors without a horizon": ("transformer_xl", True, {}),
    "packed, one key head": ("fox+shaw(clip=3)+rope", True, {"ids": IDS, "kv_heads": 1}),
}


@pytest.mark.parametrize("spec, balanced, options", CASES.values(), ids=list(CASES))
def test_a_ring_of_kernels_is_one_device_forward_and_backward(spec, balanced, options):
    kernels = Kernels(block=2 if balanced else 4, interpret=True)
    case = case_of(spec, causal=spec != BOTH)
    check(case, BlockPermuted(mesh(seq=4), balanced=balanced), kernels, **options)


def test_rows_and_heads_are_shared_too():
    rows = BlockPermuted(mesh(data=2, seq=2, model=2), batch=("data",), heads="model")
    case = case_of("alibi+tupe(length=48)+clipped(clip=3)")
    check(case, rows, Kernels(block=4, interpret=True), ids=IDS)


def test_what_a_ring_of_kernels_cannot_run_has_a_reason(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    q, rows = jnp.ones((1, 256, 2, 8)), BlockPermuted(mesh(seq=2))
    with pytest.raises(ValueError, match="runs of 64 tokens: not of whole blocks of 128"):
        pe_jax.attention(q, q, q, layout=rows, implementation="tpu")
