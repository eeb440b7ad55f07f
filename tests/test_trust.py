"""A kernel runs only after it has agreed with the dense engine; what agreed is on disk."""

import functools
import importlib.metadata
import json
import logging
import subprocess
import sys
import textwrap
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import pe_jax
from pe_jax.encodings.terms import DistanceFormula, State, TokenBias, select
from pe_jax.engines import dispatch, reference, small_case, trust
from pe_jax.engines.gpu import engine, passes
from pe_jax.engines.tpu import engine as tpu
from tests.test_gpu_kernels import parse
from tests.util import DIMS, B, E, H, K, assert_close, noise, random_params

AUTO = (jax.sharding.AxisType.Auto,)
LENGTH = 300  # longer than what is always dense
T5 = "t5(num_buckets=6,max_distance=9)"
DENSE = jax.jit(reference.attend, static_argnums=0)


def interpreted(spec, terms, q, k, v):
    """The GPU's kernels, in small blocks where tokens are few."""
    size = 16 if q.x.shape[2] < 100 else 128
    return engine.attend(spec, terms, q, k, v, interpret=True, sizes=(size, size))


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


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """The dense engine as kernels of this CPU, which do not agree if they are made `wrong`.

    `calls` of them are counted. Where `runs` is `interpreted`, they are the GPU's.
    """
    module: Any = ModuleType("kernels")
    module.__file__, module.calls = engine.__file__, 0
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
    monkeypatch.setenv("PE_JAX_CACHE", str(tmp_path))
    forget()
    yield SimpleNamespace(module=module, folder=tmp_path / "kernels")
    forget()


def forget():
    """As a new process."""
    trust._doubt.cache_clear()
    trust._verdicts.clear()
    dispatch._log.cache_clear()


def operands(length=LENGTH, dtype="float32"):
    return tuple(jnp.asarray(noise(B, length, n, E, seed=n), dtype) for n in (H, K, K))


def attend(spec="alibi", qkv=None, **options):
    encoding = parse(spec)
    params = random_params(encoding)
    q, k, v = operands() if qkv is None else qkv
    given = {
        "encoding": encoding,
        "params": params,
        "dims": DIMS,
        "x": q.reshape(*q.shape[:-2], -1),
    }
    return pe_jax.attention(q, k, v, **given, **options)


def ask(*args, **options):
    """As `attend`, but nothing of the call runs: its shapes are enough for a check."""
    jax.eval_shape(lambda: attend(*args, **options))


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def records(kernels):
    return sorted(kernels.folder.glob("*"))


def test_a_kernel_that_agrees_runs_and_a_second_process_need_not_ask(kernels, caplog):
    kernels.module.runs = interpreted
    want = attend(implementation="dense")
    assert_close(attend(), want)
    calls = kernels.module.calls
    assert calls >= 2 and not said(caplog)  # of the check and of the call
    (record,) = records(kernels)
    kept = json.loads(record.read_text())
    assert kept["agreed"]["versions"]["jax"] == jax.__version__
    assert {"the output", "the gradient of q", "the gradient of terms.0.numbers"} <= {
        *kept["differences"]
    }
    assert max(kept["differences"].values()) < 1e-4
    forget()
    ask()
    assert kernels.module.calls == calls + 1 and records(kernels) == [record]


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
    kernels.module.wrong = wrong
    for length in (LENGTH, LENGTH, LENGTH + 1):
        ask(qkv=operands(length))
    np.testing.assert_array_equal(attend(), want)
    (line,) = said(caplog)
    assert reason in line and "tiles of XLA, not the fused kernel: on this cpu" in line, line
    assert not records(kernels)
    with pytest.raises(ValueError, match="implementation='fused': on this cpu it.*pass 'tiled'"):
        ask(implementation="fused")


@pytest.mark.parametrize("field", ["q", "k", "v", "coefficients"])
def test_one_gradient_that_is_wrong_is_found(kernels, caplog, monkeypatch, field):
    backward = passes._backward

    def wrong(*args):
        grads = backward(*args)
        return grads._replace(**{field: 1.05 * getattr(grads, field)})

    kernels.module.runs = interpreted
    wrong_attention = passes.common.differentiable(passes._forward, wrong)
    monkeypatch.setattr(passes, "attention", wrong_attention)
    ask()
    (line,) = said(caplog)
    named = {"coefficients": "terms.0.numbers"}.get(field, field)
    assert f"the gradient of {named} by 0.05" in line


def test_nothing_is_checked_for_calls_that_no_kernel_runs(kernels):
    ask(qkv=operands(64))
    ask("cope")
    ask(implementation="tiled")
    assert not kernels.module.calls and not kernels.folder.exists()


def test_an_upgrade_asks_again(kernels, monkeypatch):
    ask()
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "9.9" if name == "jaxlib" else version(name)
    )
    forget()
    ask()
    assert len(records(kernels)) == 2
    monkeypatch.setattr(trust, "_source", lambda path: "other")
    forget()
    ask()
    assert len(records(kernels)) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"agreed": {}}', "\x00"])
def test_a_damaged_record_is_none(kernels, text):
    ask()
    (record,) = records(kernels)
    whole = record.read_text()
    record.write_text(text)
    calls = kernels.module.calls
    forget()
    ask()
    assert kernels.module.calls > calls + 1 and json.loads(record.read_text()) == json.loads(whole)


def test_where_nothing_can_be_written_each_process_asks_once(kernels, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PE_JAX_CACHE", str(tmp_path / "file"))
    calls = []
    for _ in range(3):
        ask()
        calls.append(kernels.module.calls)
    assert calls[1] - calls[0] == calls[2] - calls[1] == 1
    forget()
    ask()
    assert kernels.module.calls > calls[2] + 1


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PE_JAX_CACHE", "/a")
    assert str(trust._folder()) == "/a/kernels"
    monkeypatch.delenv("PE_JAX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert str(trust._folder()) == "/b/pe_jax/kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert trust._folder() == tmp_path / ".cache" / "pe_jax" / "kernels"


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
        for record in records(kernels):
            record.unlink()
        assert_close(run(), want)
        assert len(records(kernels)) == 1, name
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
    assert len(records(kernels)) == 1 and not said(caplog)


def test_a_program_for_a_device_that_is_not_there_is_not_checked(kernels, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(dispatch, "KERNELS", {"gpu": "fused"})
    ask()
    assert kernels.module.calls == 1 and not kernels.folder.exists()


@pytest.mark.parametrize(
    "spec, dtype, tokens",
    [
        ("nope", "float32", 2 * 256 + 61),
        ("t5", "bfloat16", 2 * 256 + 113 + 61),
        ("alibi", "float32", 2 * 256 + 61),
        ("transformer_xl", "float32", 2 * 256 + 61),
        ("fire", "float32", 4 * 256 + 61),
    ],
)
@pytest.mark.usefixtures("not_kept")
def test_kernels_of_tpus_are_compared_the_same_way(spec, dtype, tokens):
    """The first by splash; the last in strips of four blocks, of which a case has two."""
    case = drawn((), spec, qkv=operands(dtype=dtype), length=150)
    attend = functools.partial(tpu.attend, interpret=True)
    assert tpu.sample_length(*case) == tokens
    errors = trust.differences(attend, case)
    assert max(errors.values()) < trust.bound(dtype) / 2


def test_a_gradient_that_is_only_rounding_is_measured_beside_its_terms_others():
    """FIRE's last bias is the same for a whole row, which the softmax ignores."""
    case = drawn((), "fire", qkv=operands(dtype="bfloat16"), length=100)
    errors = trust.differences(functools.partial(engine.attend, interpret=True), case)
    assert max(errors.values()) < trust.bound("bfloat16")


@pytest.mark.parametrize("spec", ["t5", "fox"])
def test_the_real_size_of_a_case(spec):
    """Two blocks of the real kernels and a part, which bfloat16 rounds as it does small ones."""
    case = drawn((), spec, qkv=operands(1000, "bfloat16"), length=None)
    assert case.q.x.shape[2] == 2 * 128 + 61 + (113 if spec == "t5" else 0)
    errors = trust.differences(functools.partial(engine.attend, interpret=True), case)
    assert max(errors.values()) < trust.bound("bfloat16") / 2


# What makes a case another one.


def describe(spec="alibi", **options):
    """The small case of a call, as text."""
    cases = []

    def engine_of_one_own(*call):
        cases.append(small_case.describe(small_case.shrink(41, *call)))
        return pe_jax.reference.attend(*call)

    attend(spec, implementation=engine_of_one_own, **options)
    return cases[0]


def test_what_is_the_same_to_kernels_is_one_case():
    assert describe("nope") == describe("rope") == describe("rope(base=5e5)")
    assert describe("sink") == describe("nope", return_lse=True)
    assert describe() == describe(qkv=operands(500)) == describe(window=None)
    assert describe(window=200) == describe(window=100) != describe()


@pytest.mark.parametrize(
    "spec, options",
    [
        ("nope", {}),
        ("alibi+rope", {"causal": False}),
        ("alibi", {"window": 9}),
        ("alibi", {"window": 9, "sinks": 2}),
        ("alibi", {"qkv": operands(dtype="bfloat16")}),
        ("alibi", {"qkv": operands(30)}),
        ("alibi", {"q_segments": np.zeros((B, LENGTH), int)}),
        ("alibi", {"q_positions": np.arange(LENGTH)}),
        ("alibi", {"q_positions": np.arange(LENGTH, dtype=np.float32)}),
        ("alibi", {"logit_cap": 3.0}),
        ("alibi", {"return_lse": True, "implementation": None}),
        ("alibi+sink", {}),
        ("alibi+" + T5, {}),
        ("kerple", {}),
        ("kerple(kind='power')", {}),
        ("logarithmic", {}),
    ],
)
def test_what_differs_to_kernels_is_another(spec, options):
    options.pop("implementation", None)
    assert describe(spec, **options) != describe()


def steeper(numbers, distance):
    return -2 * numbers[0] * jnp.abs(distance)


def test_a_function_that_was_rewritten_is_another(monkeypatch):
    before = describe("kerple")
    module = sys.modules["pe_jax.encodings.kerple"]
    monkeypatch.setattr(module, "logarithmic", lambda d, p, a: -p * jnp.log(1 + a * jnp.abs(d)))
    assert describe("kerple") != before


# Numbers.


def drawn(terms=(), spec="nope", qkv=None, length: int | None = 41, **options):
    """The small case of a call with its numbers; as long as the GPU's kernels ask if None."""
    cases = []

    def engine_of_one_own(*call):
        tokens = engine.sample_length(*call) if length is None else length
        cases.append(small_case.draw(small_case.shrink(tokens, *call)))
        return pe_jax.reference.attend(*call)

    attend(spec, qkv, terms=terms, implementation=engine_of_one_own, **options)
    return cases[0]


def growing(numbers, distance):
    return numbers[0] * jnp.abs(distance)


def with_root(numbers, distance):
    return jnp.sqrt(-numbers[0]) * jnp.cos(distance.astype(jnp.float32))


def never(numbers, distance):
    return jnp.sqrt(-1 - numbers[0] ** 2) * distance


def test_numbers_are_of_the_sign_that_a_formula_needs():
    for fn, decays, sign in ((steeper, True, 1), (growing, True, -1), (with_root, False, -1)):
        (term,) = drawn((DistanceFormula(fn, jnp.zeros((H, 1)), decays=decays),)).terms
        assert (sign * term.numbers > 0).all(), fn.__name__
    with pytest.raises(ValueError, match="its DistanceFormula is finite, or decays"):
        drawn((DistanceFormula(never, jnp.zeros((H, 1))),))


def fading(q_state, k_state):
    return q_state[0] - k_state[0]


def numbers_of(arrays, x, before):
    return jnp.zeros((*x.shape[:-1], H, 1))


def test_states_fall_where_a_bias_of_sums_needs_it():
    terms = (TokenBias(fading, State(numbers_of, None, width=1), decays=True),)
    case = drawn(terms)
    assert (np.diff(case.q.states[0], axis=2) < 0).all()
    np.testing.assert_array_equal(case.q.states[0], case.k.states[0])


def test_the_case_is_small_and_of_the_same_kind():
    case = drawn((), q_segments=np.zeros((B, LENGTH), int), window=100)
    assert case.q.x.shape == (2, H, 41, E) and case.k.x.shape == (2, K, 41, E)
    ids = np.asarray(case.q.tokens.segments)
    assert {*ids.ravel()} == {-1, 0, 1} and case.spec.window == 13
    assert not select(case.terms, DistanceFormula)


def test_another_process_reads_the_record(kernels):
    """It does not run the small case; by other kernels, there is none."""
    x = jnp.ones((1, LENGTH, 2, 8))
    jax.jit(lambda x: pe_jax.attention(x, x, x)).lower(x)
    assert kernels.module.calls == 2 and len(records(kernels)) == 1
    code = """
        from types import ModuleType
        import jax, jax.numpy as jnp, pe_jax
        jax.config.update("jax_platforms", "cpu")
        from pe_jax.engines import dispatch, reference, trust
        from pe_jax.engines.gpu import engine
        calls = []
        def attend(*call):
            calls.append(call)
            return reference.attend(*call)
        real = dispatch._module
        dispatch.KERNELS = {"cpu": "fused"}
        dispatch._module = lambda name: fake if name == "fused" else real(name)
        for name in ("kernels", "others"):
            fake = ModuleType(name)
            fake.__file__, fake.attend, fake.refusal = engine.__file__, attend, engine.refusal
            fake.sample_length = lambda *_: 41
            calls.clear()
            x = jnp.ones((1, 300, 2, 8))
            jax.jit(lambda x: pe_jax.attention(x, x, x)).lower(x)
            print(len(calls))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ran = subprocess.run(command, capture_output=True, check=True)
    assert [*map(int, ran.stdout.split())] == [1, 2] and len(records(kernels)) == 2
