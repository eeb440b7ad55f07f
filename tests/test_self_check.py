"""A kernel runs only after it has agreed with the dense engine."""

import functools
import logging
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import pe_jax
from pe_jax.engines import dispatch, reference
from pe_jax.engines.kernels import self_check
from pe_jax.engines.kernels.gpu import engine, passes
from tests.calls import LENGTH, T5, attend, operands
from tests.util import DIMS, B, assert_close, random_params

DOCUMENTS = np.arange(LENGTH)[None].repeat(B, 0) // 100

AUTO = (jax.sharding.AxisType.Auto,)
DENSE = jax.jit(reference.attend, static_argnums=0)


def interpreted(spec, terms, q, k, v):
    """The GPU's kernels, in small blocks where tokens are few."""
    size = 16 if q.x.shape[2] < 100 else 128
    return engine.attend(spec, terms, q, k, v, interpret=True, sizes=(size, size))


@pytest.fixture
def kernels(monkeypatch):
    """The dense engine as kernels of this CPU, which do not agree if they are made `wrong`.

    `calls` of them are counted. Where `runs` is `interpreted`, they are the GPU's.
    """
    module: Any = ModuleType("kernels")
    module.calls = 0
    module.wrong, module.runs = lambda out, lse: (out, lse), DENSE

    def attend(*call):
        module.calls += 1
        return module.wrong(*module.runs(*call))

    module.attend, module.refusal = attend, engine.refusal
    module.sample_length = lambda *call: 41
    monkeypatch.setattr(dispatch, "KERNELS", {"cpu": "fused"})
    monkeypatch.setattr(
        dispatch,
        "_module",
        lambda name, old=dispatch._module: module if name == "fused" else old(name),
    )
    forget()
    yield module
    forget()


def forget():
    """As a new process."""
    self_check._disagreement.cache_clear()
    self_check._verdicts.clear()
    dispatch._log.cache_clear()


def ask(*args, **options):
    """As `attend`, but nothing of the call runs: its shapes are enough for a check."""
    jax.eval_shape(lambda: attend(*args, **options))


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_kernel_that_agrees_runs_and_is_asked_once(kernels, caplog):
    caplog.set_level(logging.INFO, "pe_jax")
    kernels.runs = interpreted
    want = attend(implementation="dense")
    assert_close(attend(), want)
    calls = kernels.calls
    assert calls >= 2 and not said(caplog)  # of the check and of the call
    assert "kernels agree with the dense engine within" in caplog.text
    for length in (LENGTH, LENGTH + 1):  # the second has the same small case
        ask(qkv=operands(length))
        assert kernels.calls == (calls := calls + 1)
    ask("kerple")
    assert kernels.calls > calls + 1


def wrong_output(out, lse):
    return out.at[..., 0].multiply(1.1), lse


@jax.custom_vjp
def _half_gradient(x):
    return x


_half_gradient.defvjp(lambda x: (x, None), lambda _, d: (d.at[..., -1, :].multiply(0.5),))


def no_number(out, lse):
    return out.at[0, 0, 0, 0].set(jnp.nan), lse


def failing(out, lse):
    raise RuntimeError("ptxas: out of registers")


@pytest.mark.parametrize(
    "wrong, reason",
    [
        (wrong_output, "it differs from the dense engine: the "),
        (lambda out, lse: (_half_gradient(out), lse), "it differs from the dense engine: the grad"),
        (no_number, "by nan of its largest number"),
        (failing, "it failed when it was tried (RuntimeError: ptxas: out of registers)"),
    ],
    ids=["output", "a gradient", "NaN", "raises"],
)
def test_a_kernel_that_does_not_agree_is_one_warning_and_tiles(kernels, caplog, wrong, reason):
    want = attend(implementation="tiled")
    kernels.wrong = wrong
    for length in (LENGTH, LENGTH, LENGTH + 1):
        ask(qkv=operands(length))
    np.testing.assert_array_equal(attend(), want)
    (line,) = said(caplog)
    assert reason in line and "tiles of XLA, not the fused kernel: on this cpu" in line, line
    with pytest.raises(ValueError, match="implementation='fused': on this cpu it.*pass 'tiled'"):
        ask(implementation="fused")


def test_half_precision_may_be_off_by_twice_what_tiles_are():
    """Of their worst array; in float32 nothing but the bound counts, and tiles are not run."""
    errors = {"output": 0.01, "table": 0.2, "bias": float("nan")}
    asked = []

    def of_tiles():
        asked.append(1)
        return {"output": 0.001, "table": 0.05, "bias": 0.11}

    beyond = functools.partial(self_check.beyond_rounding, of_tiles=of_tiles)
    assert sorted(beyond(errors, "float32")) == ["bias", "output", "table"] and not asked
    assert not beyond({"output": 0.01}, "bfloat16") and not asked
    assert [*beyond(errors, "bfloat16")] == ["bias"] and asked
    assert [*beyond({"table": 0.23}, "bfloat16")] == ["table"]
    assert self_check.worst(errors)[0] == "bias"


@pytest.mark.parametrize("field", ["q", "k", "v", "coefficients"])
def test_one_gradient_that_is_wrong_is_found(kernels, caplog, monkeypatch, field):
    """Of coefficients that are learned: nothing reads that of ALiBi's slopes."""
    backward = passes._backward

    def wrong(*args):
        grads = backward(*args)
        return grads._replace(**{field: 1.05 * getattr(grads, field)})

    kernels.runs = interpreted
    wrong_attention = passes.common.differentiable(passes._forward, wrong)
    monkeypatch.setattr(passes, "attention", wrong_attention)
    ask("kerple")
    (line,) = said(caplog)
    named = {"coefficients": "terms.0.numbers"}.get(field, field)
    assert f"the gradient of {named} by 0.05" in line


def test_nothing_is_checked_for_calls_that_no_kernel_runs(kernels):
    ask(qkv=operands(64))
    ask("dape")
    ask(implementation="tiled")
    assert not kernels.calls


@pytest.mark.parametrize(
    "spec, options, reason",
    [
        ("rope", {"window": 40, "sinks": 3, "q_segments": DOCUMENTS}, "sinks of several documents"),
        ("shaw", {"q_positions": np.arange(LENGTH) // 2}, "vectors of distances at explicit"),
        ("shaw+fire+fire", {}, "vectors of values beside biases of pairs"),
    ],
)
def test_what_kernels_of_gpus_refuse_runs_in_tiles(kernels, caplog, spec, options, reason):
    assert_close(attend(spec, **options), attend(spec, implementation="dense", **options))
    (line,) = said(caplog)
    assert f"tiles of XLA, not the fused kernel: {reason}" in line and not kernels.calls


def test_under_every_transformation(kernels, caplog):
    """Nothing of the caller's trace, mesh or settings is in the way."""
    q, k, v = operands()
    f = functools.partial(attend, "alibi")
    want = attend(implementation="dense")

    def loss(q):
        return jnp.sum(f(qkv=(q, k, v)) ** 2)

    def step(carry, _):
        return carry, f(qkv=(q + carry, k, v))

    mesh = jax.make_mesh((1,), ("x",), axis_types=AUTO)
    by_rows = PartitionSpec("x")
    runs = {
        "jit": lambda: jax.jit(lambda q: f(qkv=(q, k, v)))(q),
        "vmap": lambda: jax.vmap(lambda *x: f(qkv=x))(*(x[:, None] for x in (q, k, v)))[:, 0],
        "scan": lambda: jax.jit(lambda: jax.lax.scan(step, 0.0, None, 2)[1][1])(),
        "shard_map": lambda: jax.jit(
            jax.shard_map(
                lambda *x: f(qkv=x), mesh=mesh, in_specs=by_rows, out_specs=by_rows, check_vma=False
            )
        )(q, k, v),
        "remat": lambda: jax.jit(jax.checkpoint(lambda q: f(qkv=(q, k, v))))(q),
    }
    for name, run in runs.items():
        forget()
        calls = kernels.calls
        assert_close(run(), want)
        assert kernels.calls > calls + 1, name
    forget()
    jax.jit(jax.grad(loss))(q)
    with jax.transfer_guard("disallow"), jax.default_matmul_precision("bfloat16"):
        forget()
        jax.jit(loss).lower(q)
    assert not said(caplog)


def test_heads_that_devices_share(kernels, caplog):
    """Terms that pick the heads of their device, which a check has none of."""
    (encoding,) = pe_jax.parse(f"{T5}+alibi")
    params, mesh = random_params(encoding), jax.make_mesh((1,), ("x",), axis_types=AUTO)
    given = {"encoding": encoding, "params": params, "dims": DIMS}

    def run(q, k, v):
        return pe_jax.attention(q, k, v, **given, heads_axis="x")

    split = PartitionSpec(None, None, "x")
    run = jax.shard_map(run, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    assert_close(jax.jit(run)(*operands()), pe_jax.attention(*operands(), **given))
    assert kernels.calls > 1 and not said(caplog)


def test_a_program_for_a_device_that_is_not_there_is_not_checked(kernels, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(dispatch, "KERNELS", {"gpu": "fused"})
    ask()
    assert kernels.calls == 1
