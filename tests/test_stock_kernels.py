"""cuDNN's kernels and JAX's splash: when they are taken, and what splash's further channels hold.

tests/test_engine_matrix.py holds them to the dense engine.
"""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.base import abstract_terms
from pe_jax.encodings.terms import Side, Sink, Tokens
from pe_jax.engines import dispatch
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import self_check
from pe_jax.engines.kernels.gpu import cudnn, launches
from pe_jax.engines.kernels.tpu import splash
from pe_jax.engines.sharded.layout import CONTIGUOUS
from tests.calls import SIZES, answer, operands
from tests.util import noise

LENGTH = 90
IDS = np.repeat(np.asarray([[0, 1, -1, 2], [3, 3, 3, -2]], np.int32), [30, 25, 5, 30], axis=1)


# What the channels hold.


def widened(tokens, scale=0.125, dtype=jnp.bfloat16):
    """q and k [T, 8 + E] of a head with the slope 2^-0.72, and this slope."""
    dims = pe_jax.Dims(8 * 64, 8, 8, 64)
    terms = pe_jax.make("alibi", bias_max=5.76).terms(pe_jax.Params({}, {}), dims)
    places = Tokens(*(jnp.arange(tokens)[None],) * 2)
    shape = 1, 8, tokens, 64
    sides = [Side(jnp.asarray(noise(*shape, seed=n), dtype), None, (None,), places) for n in (0, 1)]
    q, k = splash.with_key_biases(scale, terms, *sides)
    slope = float(-terms[0].at(jnp.ones(1, int))[0, 0])
    assert abs(slope - 2**-0.72) < 1e-6
    return q.x[0, 0], k.x[0, 0], slope


@pytest.mark.parametrize("scale", [0.125, 96**-0.5])
@pytest.mark.parametrize("tokens, most", [(4096, 2e-5), (32768, 2e-4)])
def test_scores_of_bfloat16_channels_are_exact_far_from_the_first_token(tokens, most, scale):
    """As the product of a matrix unit: in the order of the channels, sums rounded to float32."""
    most = most if scale == 0.125 else 10 * most  # another scale rounds u to float32
    q, k, slope = widened(tokens, scale)
    query, near = np.asarray(q[-1], np.float32), np.asarray(k[-200:], np.float32)
    total = np.zeros(200, np.float32)
    for channel in range(q.shape[1]):
        total = total + query[channel] * near[:, channel]
    want = scale * (near[:, 8:].astype(np.float64) @ query[8:].astype(np.float64))
    want -= slope * np.arange(199, -1, -1)
    found = np.float64(total) * scale
    weights = np.exp(want - want.max())
    assert np.abs(found - want)[weights > 1e-6].max() < most


def test_channels_are_of_bfloat16_s_precision_whatever_the_dtype():
    """A TPU may round float32 factors of a product to bfloat16."""
    q, k, _ = widened(300, dtype=jnp.float32)
    for side in (q, k):
        half = jnp.asarray(jax.lax.reduce_precision(side[:, :8], 8, 7))
        np.testing.assert_array_equal(side[:, :8], half)


def test_a_bias_of_keys_is_the_kinds_own_claim():
    dims = pe_jax.Dims(64, 4, 4, 16)
    claims = {
        name: any(map(splash.is_key_bias, abstract_terms(kind(), dims)))
        for name, kind in pe_jax.ENCODINGS.items()
        if kind().claims.axes == 1
    }
    assert {name for name, claimed in claims.items() if claimed} == {"alibi", "fox", "cable"}


# Which calls they take.


def reasons(kernels, spec="nope", **options):
    sizes = {"length": LENGTH, "width": 16}
    sizes |= {name: options.pop(name) for name in SIZES if name in options}
    return answer(kernels.refusal, spec, operands(**sizes), **options)


def test_what_they_cannot_run_has_a_reason(monkeypatch):
    half = {"dtype": "bfloat16"}
    for kernels, given in ((cudnn, half), (splash, {})):
        taken = functools.partial(reasons, kernels, **given)
        assert taken() is taken("rope", window=5) is taken(v_width=8) is None
        assert taken("tupe(length=128)") is None
        assert taken("t5") == "it has no DistanceBias" and "Keys" in taken("shaw")
        assert "several views" in taken("rerope") and "RowSum" in taken("cope")
        assert taken(q_positions=2 * np.arange(LENGTH)) is None
        order = {"q_index": np.arange(LENGTH)[::-1], "k_index": np.arange(LENGTH)}
        assert taken(**order) == "queries and keys are not the same tokens in order"
        assert taken("sink") == taken(return_lse=True) == "it has no gradient of row sums"
        assert taken(window=9, sinks=2) == "it has no attention sinks of a window"
    assert reasons(cudnn) == "operands in float32"
    assert reasons(splash, dtype="float16") == "operands in float16"
    assert reasons(cudnn, dtype="float16") is None
    assert reasons(cudnn, "fox+alibi", **half) == "it has no TokenBias or DistanceFormula"
    assert reasons(splash, "tupe(length=128)+alibi") is reasons(splash, "fox") is None
    assert "both sides" in reasons(splash, "alibi", causal=False)
    assert "explicit" in reasons(splash, "alibi", q_positions=2 * np.arange(LENGTH))
    assert reasons(cudnn, length=LENGTH + 1, **half) == "an odd number of tokens"
    assert reasons(splash, length=LENGTH + 1) is None and cudnn.SAMPLE % 2 == 0
    assert reasons(cudnn, logit_cap=2.0, **half) == "it has no logit_cap"
    assert reasons(splash, logit_cap=2.0) is None
    assert reasons(cudnn, window=5, causal=False, **half) == "a window both ways"
    assert reasons(splash, window=5, causal=False) is None
    assert reasons(cudnn, q_segments=IDS, **half) == "it has no segments"
    assert reasons(splash, "alibi", q_segments=IDS) is None
    assert reasons(splash, width=32, **half) == (
        "times the scale 0.177, q would be rounded once more"
    )
    assert reasons(cudnn, width=256, **half) is None  # Hopper, which is taken to be there
    assert "264" in reasons(cudnn, width=260, **half)
    monkeypatch.setattr(launches, "architecture", lambda: 80)
    assert reasons(cudnn, width=136, **half) == "heads of width 136 (at most 128)"
    monkeypatch.setattr(launches, "architecture", lambda: None)
    assert reasons(cudnn, **half) == "a GPU that is not NVIDIA's"


@pytest.mark.parametrize(
    "spec, width, values, length, dtype, on_gpu, on_tpu",
    [
        ("rope", 64, 64, 65536, "bfloat16", "cudnn", "splash"),
        ("rope", 64, 64, 65536, "float32", "fused", "splash"),
        ("rope", 192, 128, 4096, "bfloat16", "cudnn", "tpu"),  # MLA
        ("rope", 256, 64, 4096, "bfloat16", "fused", "splash"),  # 1.6 times the channels
        ("alibi", 48, 48, 2048, "bfloat16", "fused", "tpu"),
        ("alibi", 64, 64, 2048, "bfloat16", "fused", "splash"),  # 72 channels: of 128
        ("alibi", 64, 64, 2049, "bfloat16", "fused", "tpu"),  # tiles are skipped
        ("alibi", 256, 256, 1024, "bfloat16", "fused", "tpu"),
        ("fox", 48, 48, 2048, "bfloat16", "fused", "tpu"),  # gradients of gates
        ("fox", 64, 64, 2048, "float32", "fused", "splash"),
        ("t5", 64, 64, 2048, "bfloat16", "fused", "tpu"),
    ],
)
def test_one_is_taken_where_it_should_be_faster(
    monkeypatch, spec, width, values, length, dtype, on_gpu, on_tpu
):
    for device, engine in (("gpu", on_gpu), ("tpu", on_tpu)):
        monkeypatch.setattr(jax, "default_backend", lambda device=device: device)
        run = dispatch.engine(None, CONTIGUOUS, shapes(spec, width, values, length, dtype), spec)
        assert run is dispatch._module(engine).attend


def shapes(spec, width, values, length, dtype):
    """A causal call of 8 heads, of which only shapes are known."""
    dims = pe_jax.Dims(8 * width, 8, 8, width)
    terms = abstract_terms(pe_jax.make(spec), dims)
    tokens = Tokens(*(jax.ShapeDtypeStruct((1, length), jnp.int32),) * 2)
    numbers = lambda n: jax.ShapeDtypeStruct((1, 8, length, n), jnp.float32)  # noqa: E731
    states = tuple(None if t.state is None else numbers(t.state.width) for t in terms)
    x, v = (jax.ShapeDtypeStruct((1, 8, length, n), dtype) for n in (width, values))
    spec = AttentionSpec(dims, True, aligned=True, contiguous=True)
    return dispatch.Call(spec, terms, *(Side(x, None, states, tokens),) * 2, v)


def test_where_it_is_wrong_our_kernels_run_and_the_log_says_so(monkeypatch, caplog):
    call = shapes("rope", 64, 64, 4096, "bfloat16")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    wrong = {cudnn: "on this GPU it differs"}
    monkeypatch.setattr(self_check, "disagreement", lambda kernels, *call: wrong.get(kernels))
    dispatch._log.cache_clear()
    with caplog.at_level(logging.INFO, "pe_jax"):
        run = dispatch.engine(None, CONTIGUOUS, call, "RoPE")
    assert run is dispatch._module("fused").attend
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("RoPE: the fused kernel, not cudnn: on this GPU it differs")


def test_sinks_are_left_to_our_kernels_which_have_row_sums(monkeypatch):
    call = shapes("rope", 64, 64, 4096, "bfloat16")
    terms = (*call.terms, Sink(jax.ShapeDtypeStruct((8,), jnp.float32)))
    states = (*call.q.states, None)
    q, k = (side._replace(states=states) for side in (call.q, call.k))
    spec = AttentionSpec(call.spec.dims, True, aligned=True, contiguous=True, lse=True)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    run = dispatch.engine(None, CONTIGUOUS, dispatch.Call(spec, terms, q, k, call.v), "Sink")
    assert run is dispatch._module("tpu").attend


# The programs.


def test_it_lowers_to_cudnns_kernels(monkeypatch):
    """Forward and backward, of 48 channels; nothing else multiplies matrices."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn_calls

    monkeypatch.setattr(cudnn_calls, "check_cudnn_version", lambda: 91000)
    q = jax.ShapeDtypeStruct((1, 2048, 8, 48), jnp.bfloat16)

    def loss(q, k, v):
        out = pe_jax.attention(q, k, v, encoding="rope", implementation=cudnn.attend)
        return out.astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(q, q, q)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@__cudnn$fmhaSoftmax(") == text.count("@__cudnn$fmhaSoftmaxBackward(") == 1
    assert "1x2048x8x48xbf16" in text and "dot_general" not in text


@pytest.mark.parametrize("spec", ["rope", "alibi"])
def test_it_lowers_to_splash(monkeypatch, spec):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    q = jax.ShapeDtypeStruct((1, 1024, 8, 64), jnp.bfloat16)

    def loss(q, k, v):
        return pe_jax.attention(q, k, v, encoding=spec).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(q, q, q)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") == 3 and "splash" in text
    assert ("8x1024x72xbf16" in text) == (spec == "alibi")
