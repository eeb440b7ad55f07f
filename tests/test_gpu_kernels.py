"""The GPU engine: in interpret mode it is the dense one; its kernels lower for NVIDIA GPUs."""

import contextlib
import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import (
    DistanceBias,
    DistanceFormula,
    PairBias,
    RelativeKeys,
    Scale,
    Tokens,
)
from pe_jax.engines import reference
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels.gpu import cudnn, engine, operands
from tests import util
from tests.engine_calls import answer, arguments, equations
from tests.util import DIMS, B, E, H, K, assert_close, noise


@dataclasses.dataclass(frozen=True)
class Logarithmic(Encoding):
    """A bias that decays, of learned coefficients."""

    def init_layer(self, key, dims):
        return {"c": jnp.ones((dims.heads, 2))}

    def terms(self, params, dims):
        return (DistanceFormula(logarithm, jnp.abs(params.layer["c"]), decays=True),)


def logarithm(numbers, distance):
    reach = jnp.abs(distance).astype(jnp.float32)
    return -numbers[0] * jnp.log1p(numbers[1] * reach)


@dataclasses.dataclass(frozen=True)
class Wave(Encoding):
    """A learned bias that is constant nowhere and known to kernels by its values alone."""

    def init_layer(self, key, dims):
        return {"a": jnp.ones((dims.heads, 3))}

    def terms(self, params, dims):
        return (DistanceBias(wave, params.layer["a"]),)


def wave(numbers, distance):
    a, b, c = jnp.moveaxis(numbers, 1, 0).reshape(3, -1, *(1,) * distance.ndim)
    d = distance.astype(jnp.float32)
    return a * jnp.sin(b * d) + c * jnp.tanh(d / 9)


@dataclasses.dataclass(frozen=True)
class Scaled(Encoding):
    """Every kind that is multiplied by the scale, and another scale; a bias of the query as well.

    Of Transformer-XL's kinds, but with a horizon.
    """

    def init_layer(self, key, dims):
        heads, width = dims.heads, dims.head_dim
        table = jnp.ones((heads, 7, width + 1))
        return {"table": table, "u": jnp.ones((heads, width))}

    def terms(self, params, dims):
        table, u = params.layer["table"], params.layer["u"]
        return (
            Scale(0.3),
            RelativeKeys(clipped, table[..., 1:], horizon=(-3, 3), u=u),
            DistanceBias(clipped, table[..., 0], horizon=(-3, 3), scaled=True),
        )


def clipped(table, distance):
    return table[:, jnp.clip(distance, -3, 3) + 3]


@dataclasses.dataclass(frozen=True)
class Absolute(Encoding):
    """A learned bias of absolute positions."""

    def init_layer(self, key, dims):
        return {"a": jnp.ones(dims.heads)}

    def terms(self, params, dims):
        return (PairBias(absolute, params.layer["a"]),)


def absolute(rates, q_pos, k_pos):
    rows = rates[:, None, None] * q_pos[:, None, :, None].astype(jnp.float32)
    return jnp.sin(rows) * jnp.cos(k_pos[:, None, None].astype(jnp.float32))


OWN = {c.__name__.lower(): c() for c in (Logarithmic, Wave, Scaled, Absolute)}


def parse(spec: str) -> Encoding:
    """A config's string, in which one part may be one of `OWN`."""
    parts = [OWN[name] if name in OWN else pe_jax.parse(name)[0] for name in spec.split("+")]
    return parts[0] if len(parts) == 1 else pe_jax.Sum(tuple(parts))


class Call:
    """A call of an engine: contiguous and aligned unless positions or index are given."""

    def __init__(self, spec, queries=37, keys=None, width=E, sharp=1.0, dtype="float32", **mask):
        known = [mask.pop(name, None) for name in ("positions", "index", "segments")]
        lengths = queries, keys or queries
        self.encoding, self.dims = parse(spec), DIMS
        mask = {"causal": True, "window": None, **mask}
        self.spec = AttentionSpec(
            DIMS, aligned=known[1] is None, contiguous=known[0] is None, **mask
        )
        self.tokens = []
        for side, length in enumerate(lengths):
            places = np.arange(length, dtype=np.int32)[None]
            given = [x if x is None else x[side] for x in known]
            positions, index = (places if x is None else x for x in given[:2])
            self.tokens.append(Tokens(positions, index, given[2]))
        shapes = [(B, H, lengths[0], E), (B, K, lengths[1], E), (B, K, lengths[1], width)]
        q, *rest = (noise(*shape, seed=i) for i, shape in enumerate(shapes))
        self.arrays = tuple(jnp.asarray(x, dtype) for x in (sharp * q, *rest))
        self.params = util.random_params(self.encoding)

    def arguments(self, params, *qkv):
        """What an engine takes."""
        return arguments(self.encoding, self.spec, params, qkv, *self.tokens)

    def step(self, attend, params, arrays):
        """Output and row sums, and the gradients of parameters, q, k and v from both."""

        def f(params, arrays):
            out, lse = attend(*self.arguments(params, *arrays))
            return out, jnp.where(lse == reference.LOWEST, 0, lse)

        results, pull = jax.vjp(f, params, arrays)
        return results, pull(jax.tree.map(cotangent, results))

    def ask(self, question):
        """What the engine answers about the shapes of the call."""
        return answer(question, self.arguments, self.params, *self.arrays)


def cotangent(x):
    return jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)


@functools.cache
def compiled(call, attend):
    return util.jit(functools.partial(call.step, attend))


def run(call, attend):
    return compiled(call, attend)(call.params, call.arrays)


SQUARE, OBLONG = (
    functools.partial(engine.attend, interpret=True, sizes=sizes) for sizes in ((16, 16), (32, 16))
)
PACKED = [np.asarray([[0] * 10 + [1] * 15 + [-1] * 3 + [2] * 9, [0] * 37])] * 2
SHUFFLED = [np.random.default_rng(0).permutation(37)[None]] * 2
ELSEWHERE = {
    "positions": [np.arange(60, 100, 2)[None], np.arange(100, 0, -2)[None]],
    "index": [np.arange(30, 50)[None], np.arange(50)[None]],
}
CROWDED = {"positions": [np.arange(60, 100, 2)[None] // 5, np.arange(50, 0, -1)[None] // 2]}
FEW_PLACES = {"positions": [np.arange(70)[None] // 3, np.arange(20, 0, -1)[None]]}
T5, DEBERTA = "t5(num_buckets=6,max_distance=9)", "deberta(buckets=4,max_distance=7)"
CASES = {
    "none, window both ways": Call("nope", 70, width=5, window=20, causal=False),
    "alibi": Call("alibi", 200, sharp=0.1),
    "alibi, all": Call("alibi", 200, sharp=0.1, causal=False),
    "alibi+rope, elsewhere": Call("alibi+rope", 20, 50, **ELSEWHERE),
    "window, elsewhere": Call("nope", 20, 50, window=5, causal=False, **ELSEWHERE),
    "t5, packed": Call(T5, segments=PACKED),
    "buckets, window": Call("buckets(edges=(0,1,4))", 70, window=30),
    "clipped, shuffled": Call("clipped(clip=3)", window=9, index=SHUFFLED),
    "shaw": Call("shaw(clip=3)+rope", 70),
    "shaw, all, packed": Call("shaw(clip=3)", causal=False, segments=PACKED),
    "every kind": Call(f"clipped(clip=3)+shaw(clip=5)+{DEBERTA}+alibi", window=25, causal=False),
    "t5, shuffled positions": Call(
        T5, positions=[np.random.default_rng(1).integers(0, 20, (B, 37))] * 2
    ),
    "every bias, elsewhere": Call(f"{T5}+clipped(clip=3)+alibi", 20, 50, causal=False, **CROWDED),
    "pairs": Call("absolute", 70),
    "pairs, every bias, packed": Call(
        f"fire(width=3)+{T5}+alibi", window=20, causal=False, segments=PACKED
    ),
    "no horizon, packed": Call("wave", causal=False, segments=PACKED),
    "no horizon, elsewhere": Call("wave+alibi", 70, 20, causal=False, **FEW_PLACES),
    "several tables": Call(f"{T5}+clipped(clip=3)+scaled"),
    "coefficients of two": Call("alibi+logarithmic", 200, sharp=0.1),
    "coefficients and a table of all distances": Call("logarithmic+wave"),
    "no horizon, beside pairs": Call("fire(width=3)+wave"),
    "one token": Call(T5, 1),
}


@pytest.mark.parametrize("call", CASES.values(), ids=list(CASES))
def test_fused_equals_dense_and_so_does_every_gradient(call):
    assert_close(run(call, SQUARE), run(call, reference.attend))


def test_blocks_may_be_oblong():
    assert_close(run(CASES["shaw"], OBLONG), run(CASES["shaw"], reference.attend))


@pytest.mark.parametrize("spec, causal", [("nope", True), ("alibi", False)])
def test_documents_of_a_row_come_out_as_if_each_were_alone(spec, causal):
    """MaxText #4478: its causal call of cuDNN left segment ids out; here that is not called."""
    half = Call(spec, causal=causal, segments=PACKED, dtype="bfloat16")
    assert half.ask(engine.refusal) is None
    assert half.ask(cudnn.refusal) is not None

    def output(call, attend):
        return util.jit(lambda: attend(*call.arguments(call.params, *call.arrays))[0])()

    call = Call(spec, causal=causal, segments=PACKED)
    out = output(call, SQUARE)
    for start, end in ((0, 10), (10, 25), (28, 37)):  # of the first row; between them is padding
        alone = Call(spec, end - start, causal=causal)
        alone.arrays, alone.params = tuple(x[:1, :, start:end] for x in call.arrays), call.params
        assert_close(out[:1, :, start:end], output(alone, reference.attend))


@pytest.mark.parametrize("name", ["t5, packed", "shaw, all, packed"])
def test_rows_that_see_nothing_are_zero_and_gradients_finite(name):
    results, grads = run(CASES[name], SQUARE)  # where a row sum is LOWEST, there is a zero
    assert not any(np.asarray(x)[0, :, 25:28].any() for x in results)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_half_precision_differs_from_dense_as_rounding_does():
    call = Call(T5, dtype="bfloat16")
    assert_close(run(call, SQUARE), run(call, reference.attend), 2e-2)


def test_two_runs_agree_to_the_bit():
    jax.tree.map(np.testing.assert_array_equal, *(run(CASES["every kind"], SQUARE) for _ in "ab"))


@pytest.mark.parametrize("read", [0, 1], ids=["output", "row sums"])
def test_either_result_may_be_all_that_is_read(read):
    call = CASES["shaw"]

    def loss(attend, params, arrays):
        return jnp.sin(attend(*call.arguments(params, *arrays))[read]).sum()

    def gradients(attend):
        return util.jit(jax.grad(functools.partial(loss, attend), argnums=(0, 1)))(
            call.params, call.arrays
        )

    assert_close(gradients(SQUARE), gradients(reference.attend))


@pytest.mark.parametrize(
    "spec, outputs", [("alibi", [2, 1, 2]), ("logarithmic", [2, 2, 2]), ("t5", [2, 2, 2])]
)
def test_gradients_of_constants_are_not_computed(spec, outputs):
    """Of ALiBi's slopes, say: results of the kernels forward, for queries and for keys."""
    call = Call(spec)
    text = jax.make_jaxpr(functools.partial(call.step, SQUARE))(call.params, call.arrays)
    assert [len(e.outvars) for e in equations(text.jaxpr, "pallas_call")] == outputs


def test_no_kernel_runs_twice_for_chunks_of_queries():
    """The backward pass needs its own two kernels; JAX drops others, in 0.12 while it traces."""
    call = CASES["pairs"]
    text = jax.make_jaxpr(functools.partial(call.step, SQUARE))(call.params, call.arrays)
    forward, backward = equations(text.jaxpr, "scan")
    assert forward.params["length"] == backward.params["length"] == 2
    inner = backward.params["jaxpr"].jaxpr
    (again,) = (e for name in ("remat2", "checkpoint") for e in equations(inner, name))
    jaxpr = again.params["jaxpr"]
    read = {id(x) for e in jaxpr.eqns for x in e.invars} | {id(x) for x in jaxpr.outvars}
    kernels = equations(jaxpr, "pallas_call")
    assert sum(any(id(x) in read for x in e.outvars) for e in kernels) == 2


@pytest.mark.parametrize("name", ["alibi", "alibi, all"])
def test_keys_out_of_reach_are_not_visited(name):
    call, blocks = CASES[name], np.arange(13)
    spec, terms, *rest = call.arguments(call.params, *call.arrays)
    plan = operands.make_plan(spec, terms, *rest, (16, 16), True)
    bounds = operands.find_bounds(plan, operands.make_arrays(plan, terms, *rest)).bounds
    assert bounds is not None
    first, last = bounds
    assert (first[:, 0, -1] > 0).all() and not first[:, -1].any()  # slopes 1/4 and 1/256
    assert (first <= blocks).all() and (last > blocks).all()
    assert (last[:, 0, 0] < 13).all() and (last[:, -1] == 13).all()


@pytest.mark.parametrize("spec", ["alibi+t5", "alibi+shaw", "t5"])
def test_all_keys_are_visited_where_not_only_a_decaying_bias_is_added(spec):
    spec, terms, *rest = (call := Call(spec, 200, sharp=0.1)).arguments(call.params, *call.arrays)
    plan = operands.make_plan(spec, terms, *rest, (16, 16), True)
    assert operands.find_bounds(plan, operands.make_arrays(plan, terms, *rest)).bounds is None


# What a GPU would be given.


@contextlib.contextmanager
def hopper():
    """Lowers for a GPU that is not there: newer versions of JAX want to know which."""
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
        if hasattr(jax.sharding, "AbstractDevice"):
            device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
            mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        yield


LOWERED = "nope alibi t5 shaw deberta logarithmic wave alibi+t5"


@pytest.mark.parametrize("spec", LOWERED.split())
def test_kernels_lower_for_cuda(spec):
    """Forward and backward: finds what Triton has no rule for, and runs nothing."""
    call, dims, length = Call(spec, 1), pe_jax.Dims(512, 8, 8, 64), 1024
    call.spec = dataclasses.replace(call.spec, dims=dims)
    call.tokens = [Tokens(*[np.arange(length, dtype=np.int32)[None]] * 2)] * 2
    arrays = [jax.ShapeDtypeStruct((1, 8, length, 64), jnp.bfloat16)] * 3
    params = util.random_params(call.encoding, dims)

    def output(params, arrays):
        return engine.attend(*call.arguments(params, *arrays))[0]

    def gradients(params, arrays):
        out, pull = jax.vjp(output, params, arrays)
        return pull(jnp.ones_like(out))

    with hopper():
        traced = jax.jit(gradients).trace(params, arrays)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla.gpu.triton") == 3 + (spec == "wave")  # forward, queries, keys, diagonals


# Who runs what.


def test_a_refusal_says_why():
    assert not any(call.ask(engine.refusal) for call in CASES.values())
    mixed = Call("nope", 4)
    mixed.arrays = (*mixed.arrays[:2], mixed.arrays[2].astype(jnp.bfloat16))
    plane = Call("alibi", 4, positions=[np.zeros((1, 4, 2), np.int32)] * 2)
    for call, reason in (
        (Call("transformer_xl"), "vectors of distances where a term has no horizon"),
        (Call("shaw+wave"), "vectors of distances where a term has no horizon"),
        (Call("shaw", positions=SHUFFLED), "vectors of distances at explicit positions"),
        (Call("shaw+fire"), "vectors of distances beside biases of pairs"),
        (Call("shaw(clip=2000)", 2500, causal=False), "4001 distances of vectors"),
        (Call("nope", window=5, sinks=3), "it has no attention sinks of a window"),
        (Call("nope", 4, width=300), "heads of width 300"),
        (mixed, "operands in bfloat16 and float32"),
        (plane, "formulas of distances of 2 axes"),
    ):
        assert call.ask(engine.refusal).startswith(reason)


@dataclasses.dataclass(frozen=True)
class Doubled(DistanceBias):
    """A subclass that means something else."""

    def at(self, distance):
        return 2 * super().at(distance)


def test_a_subclass_of_a_kind_is_another_kind():
    spec, _, *rest = (call := Call("nope")).arguments(call.params, *call.arrays)
    assert engine.refusal(spec, (Doubled(wave, jnp.ones((H, 3))),), *rest) == "it has no Doubled"
