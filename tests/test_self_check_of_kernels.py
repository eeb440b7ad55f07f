"""The kernels of GPUs and TPUs agree with the dense engine on the cases of the self-check."""

import functools

import jax
import numpy as np
import pytest

from pe_jax.engines.kernels import self_check
from pe_jax.engines.kernels.gpu import engine, paths
from pe_jax.engines.kernels.tpu import engine as tpu
from pe_jax.engines.kernels.tpu import splash
from tests.calls import LENGTH, drawn, operands

DOCUMENTS = np.arange(2 * LENGTH).reshape(2, LENGTH) // 70


@pytest.fixture
def not_kept():
    """Programs are not written to JAX's cache on disk.

    On a CPU, jaxlib 0.10.2 overflows its stack where it loads one of very many kernels from there.
    """
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, float("inf"))
    yield
    jax.config.update(name, before)


@pytest.mark.parametrize(
    "spec, options, dtype, tokens",
    [
        ("nope", {}, "float32", 2 * 256 + 61),
        ("t5", {}, "bfloat16", 2 * 256 + 113 + 61),
        ("transformer_xl", {}, "float32", 2 * 256 + 61),
        ("fire", {"q_segments": DOCUMENTS}, "float32", 4 * 256 + 61),
        ("fire", {"causal": False}, "float32", 4 * 256 + 61),
    ],
)
@pytest.mark.usefixtures("not_kept")
def test_kernels_of_tpus_are_compared_the_same_way(spec, options, dtype, tokens):
    """The first by splash; FIRE in chunks of four blocks, of which a case has two."""
    case = drawn((), spec, qkv=operands(dtype=dtype), length=150, **options)
    kernels = splash if spec == "nope" else tpu
    attend = functools.partial(kernels.attend, interpret=True)
    assert kernels.sample_length(*case.operands) == tokens
    errors = self_check.differences(attend, case)
    assert max(errors.values()) < self_check.bound(dtype) / 2


@pytest.mark.parametrize("kernels", [engine, tpu], ids=["gpu", "tpu"])
@pytest.mark.usefixtures("not_kept")
def test_a_gradient_that_is_only_rounding_is_measured_beside_its_terms_others(kernels):
    """FIRE's last bias is the same for a whole row, which the softmax ignores."""
    case = drawn((), "fire", qkv=operands(dtype="bfloat16"), length=100)
    errors = self_check.differences(functools.partial(kernels.attend, interpret=True), case)
    assert max(errors.values()) < self_check.bound("bfloat16")


@pytest.mark.parametrize(
    "spec, tokens",
    [
        ("t5", 2 * 64 + 113 + 61),
        ("fox", 2 * 64 + 61),
        ("wall", 2 * 64 + 61),
        ("path", 2 * 64 + 61),
    ],
)
def test_the_real_size_of_a_case(spec, tokens):
    """Two blocks of the real kernels and a part, which bfloat16 rounds as it does small ones."""
    case = drawn((), spec, qkv=operands(1000, dtype="bfloat16"), length=None)
    assert case.q.x.shape[2] == tokens
    errors = self_check.differences(functools.partial(engine.attend, interpret=True), case)
    assert max(errors.values()) < self_check.bound("bfloat16") / 2


@pytest.mark.parametrize("width, tokens", [(8, 2 * 64 + 61), (64, 2 * 256 + 61)])
def test_a_case_of_maps_between_tokens_passes_a_chunk(monkeypatch, width, tokens):
    """Maps of chunks that are left out are noticed: some keys are two chunks away."""
    case = drawn((), "path", qkv=operands(700, heads=(1, 1), width=width), length=None)
    assert case.q.x.shape[2] == tokens
    attend = functools.partial(engine.attend, interpret=True)
    assert max(self_check.differences(attend, case).values()) < self_check.bound("float32") / 2
    between = paths._between
    monkeypatch.setattr(paths, "_between", lambda q, maps, *how: between(q, 0 * maps, *how))
    assert max(self_check.differences(attend, case).values()) > 0.1
